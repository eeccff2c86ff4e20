// The history of a cluster that is replayed: jobs with the moments at which they come, workers that
// come and go, and what is known of their speed. Plain values; times are seconds from its start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "planner/schedule/view.h"

namespace lorad::planner {

struct HistoryJob {
  // As it is queued first; remaining_steps are all that it has. `arrival` is overwritten.
  QueuedJob content;
  double comes_s = 0;
  // A worker that goes takes the steps since the last multiple of this along; 0: all of them.
  int64_t checkpoint_steps = 50;
  // As it went when the history was recorded, where that is known.
  std::optional<double> started_s = std::nullopt;
  std::optional<double> ended_s = std::nullopt;
  std::optional<int64_t> moves = std::nullopt;
  std::optional<int64_t> evictions = std::nullopt;
};

struct HistoryWorker {
  WorkerView view;  // `idle` and `loaded_base_model` are overwritten
  double comes_s = 0;
  double goes_s = kNever;
};

struct History {
  std::vector<HistoryWorker> workers;  // with names of their own
  std::vector<HistoryJob> jobs;        // likewise
  // As in ClusterView. REQUIRES: times of every base model on every worker's device. They are taken
  // as measured with the recomputation that is usual on the device (EmptyShape).
  std::map<DeviceKey, TimeCoefficients> times;
  std::map<DeviceKey, double> load_s;
  double move_s = 2;
  int64_t microbatch_tokens = 0;
  double empty_group_s = 300;  // the service dissolves a group that has no job for so long
};

}  // namespace lorad::planner
