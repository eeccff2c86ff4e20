// The settings of the core.
#pragma once

#include <cstdint>
#include <string>

#include "planner/schedule/view.h"

namespace lorad::server {

struct CoreOptions {
  // Change what is computed: nothing here does. Change speed and patience:
  int32_t microbatch_tokens = 0;  // 0: as suits the device (planner/schedule/view.h)
  int64_t heartbeat_ms = 1000;
  int64_t lease_ms = 30'000;  // a worker silent for so long is lost
  // A job that fits nowhere is not judged before no new worker has come for so long.
  int64_t join_ms = 10'000;
  // A worker that is alive and says nothing of what it was asked is lost after so many times what
  // that should take, but not before the floor.
  double patience = 10;
  int64_t patience_floor_ms = 600'000;
  // Nothing is learned of a pass that took, as its worker says, longer than since it was asked for
  // by so much.
  int64_t pass_slack_ms = 1000;
  bool mpi = false;  // the site has an ompi-server, by which stages may be joined over MPI
  int64_t group_idle_ms = 300'000;  // a group without jobs is dissolved after this
  planner::SchedulePolicy policy = {};
  // Whose values are the users of policy.fair_share, and share the checks of rows: "team".
  std::string share_label;
  int64_t evaluate_sequences = 16;          // of one job in one window
  int32_t losses_without_progress_max = 5;  // of a job that was alone, then it fails (losses.h)
  // Between the losses that count against a job that was alone: the first time so long, then for
  // twice as long each time, up to postpone_max_ms.
  int64_t loss_pause_ms = 10'000;
  // A worker whose device's memory others have taken rests before it is asked again: the first
  // time for so long, then for twice as long each time.
  int64_t rest_ms = 5000;
  int64_t rest_max_ms = 60'000;
  // A job that met a failure that passes is tried again after so long, then after twice as long.
  int64_t postpone_ms = 1000;
  int64_t postpone_max_ms = 60'000;
  // Changes are kept at least so long for watchers who come back, but of no more than so many
  // revisions: what a thousand steps and a hundred jobs a second make in an hour. The newest are in
  // memory too.
  int64_t watch_keep_ms = 3'600'000;
  int64_t watch_revisions_max = 16'000'000;
  int64_t watch_memory_max = 4096;
  // A request_id is forgotten after so long, or when so many came after it; what it was answered,
  // where what it made is gone, when so many did.
  int64_t request_ids_days = 7;
  int64_t request_ids_max = 100'000;
  int64_t request_answers_max = 10'000;
  int64_t rows_max = 20'000;  // summaries of checked rows
  std::string version;
  std::string
      group_key;  // nobody guesses it: the secrets of groups of several stages are made of it

  // The user of a job with these labels (a map of strings): the value of share_label, or "".
  template <class Labels>
  std::string LabelGroup(const Labels& labels) const {
    const auto label = labels.find(share_label);
    return label == labels.end() ? "" : label->second;
  }
};

}  // namespace lorad::server
