// The coordinator's heart: all state that is shared, and every decision about it, in one
// single-threaded function Apply(event) -> effects. No clock, file, thread or network: the same
// code runs under the driver (driver.h) and under the seeded simulator (tests/sim). See
// docs/coordinator.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/effects.h"
#include "server/core/events.h"

namespace lorad::server {

// Of a live job, so many metric rows after its newest checkpoint are kept in memory, to be compared
// with those of steps that are executed again. A difference of an older step shows in these too:
// what it trained is another adapter.
inline constexpr int64_t kMetricRowsKept = 1024;

// A live job's record and revision are stored whole at least every so many revisions; in between,
// its progress alone.
inline constexpr int64_t kWholeEvery = 1024;

struct CoreOptions {
  // Change what is computed: nothing here does. Change speed and patience:
  int32_t microbatch_tokens = 0;  // 0: as suits the device (planner/schedule/schedule.h)
  int64_t heartbeat_ms = 1000;
  int64_t lease_ms = 30'000;  // a worker silent for so long is lost
  // A worker that is alive and says nothing of what it was asked is lost after so many times what
  // that should take, but not before the floor.
  double patience = 10;
  int64_t patience_floor_ms = 600'000;
  int64_t group_idle_ms = 300'000;          // a group without jobs is dissolved after this
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
  int64_t watch_revisions_max = 4096;  // kept for watchers who come back
  // A request_id is forgotten after so long, or when so many came after it; what it was answered,
  // where what it made is gone, when so many did.
  int64_t request_ids_days = 7;
  int64_t request_ids_max = 100'000;
  int64_t request_answers_max = 10'000;
  int64_t rows_max = 20'000;  // summaries of checked rows
  std::string version;
};

// What the store held at start, read by the driver.
struct StoredState {
  std::vector<std::pair<std::string, std::string>> models, datasets, adapters, jobs, rows, requests,
      workers;
  int64_t last_revision = 0;
  int64_t oldest_revision = 0;  // still stored
  int64_t last_epoch = 0;
  int64_t starts = 0;  // of the coordinator on this store
  // Of live jobs, ascending: metric rows after their newest checkpoint, at least the newest
  // kMetricRowsKept; all, where the record has no checkpoint_tokens.
  std::vector<std::pair<std::string, v1::StepMetrics>> metrics;
};

class Core {
 public:
  // Takes up the stored state; every live job waits in the queue again, to go on from its newest
  // checkpoint. The effects are carried out before any event is applied. DATA_LOSS where a record
  // cannot be read.
  static absl::StatusOr<std::unique_ptr<Core>> Create(const CoreOptions& options,
                                                      StoredState stored, Moment now,
                                                      std::vector<Effect>* effects);
  ~Core();

  std::vector<Effect> Apply(const Event& event);

  // Answers what is of this process alone, and changes nothing: the cluster, workers, and estimates
  // of jobs whose rows are checked. None: that takes an event.
  std::optional<ReplyValue> Look(const Request& request);

  // What is kept in memory, in numbers. None of it grows with the time that the coordinator runs:
  // CoreOptions bound some, the rest belongs to what is alive.
  struct Sizes {
    int64_t live_jobs = 0;
    int64_t whole_jobs = 0;          // that are kept as more than their record
    int64_t ended_jobs_at_work = 0;  // of them: a slot is still to be freed, a checkpoint written
    int64_t metric_rows = 0;
    int64_t steps_after_checkpoints = 0;  // of live jobs: no more have a row
    int64_t request_ids = 0;
  };
  Sizes SizesNow() const;

  // OK where all that is kept agrees with itself, else INTERNAL and what does not: for tests,
  // between two events. It takes time in proportion to the jobs.
  absl::Status CheckInvariants() const;

  // Paths below the data directory that records name (files that are not among them are
  // left-overs).
  std::vector<std::string> PathsInUse() const;
  // Those of ended jobs' checkpoints: nothing is written into them any more.
  std::vector<std::string> SettledFolders() const;

 private:
  class State;
  explicit Core(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lorad::server
