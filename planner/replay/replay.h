// A history in simulated time under a policy: who trains where and when, and when all is done. Pure
// and deterministic. What is exact, and what is not in it:
//
// - Jobs of a group take a step a round, and a round lasts as ends.h says, by the times of the base
//   model on the device, and longer where more is computed again than usual (RecomputationFactor).
// - A group that is formed trains load_s later, whatever its worker held before: so the service
//   does it. Empty, it stays for empty_group_s.
// - A job that is evicted or moved stops at once, holds its slot for move_s, and then is queued, or
//   is in the group that it moves to. All jobs of a group that is formed again stop likewise, and
//   are queued before all others. No step is lost.
// - A worker that goes takes along what its jobs did since their last checkpoint.
// - Saves, evaluations, the planning of windows and what is lost at their borders take no time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/replay/history.h"

namespace lorad::planner {

// What becomes of a cluster as it stands: Schedule, or what it is measured against (baselines.h).
using Decide = std::function<std::vector<Decision>(const ClusterView&)>;

// When the policy is asked: at the first multiple of `turn_s` after something happened (0: at
// once), and every `look_s` while nothing happens, as points and run times grow meanwhile (kNever:
// not then). Where nothing has happened, nor been decided, for more than a thousand looks, it is
// asked again after a thousandth of that time, so that what is long takes hardly more looks.
struct Turns {
  double turn_s = 1;
  double look_s = 60;
};

// A job in a group.
struct Stay {
  size_t job = 0;     // of History::jobs,
  size_t worker = 0;  // and workers
  int64_t group = 0;  // counted from 0 as they are formed
  double from_s = 0;
  double to_s = 0;
  double steps = 0;  // that it took
  double lost = 0;   // of these, with the worker
};

struct JobOutcome {
  double waited_s = 0;     // in the queue, over all its stays there
  double ends_s = kNever;  // kNever: it never ended, as there is no worker for it
};

struct Outcome {
  std::vector<JobOutcome> jobs;  // as in the history
  std::vector<Stay> stays;       // by their ends
  double training_s = 0;         // of workers, in all
  int64_t groups = 0;            // that were formed
  int64_t moves = 0;             // of jobs to other groups
  int64_t evictions = 0;         // of jobs back to the queue
  int64_t reforms = 0;           // of groups
  int64_t turns = 0;             // the policy was asked
};

// REQUIRES: times as history.h says, and decisions that hold for the view that was asked about.
Outcome Replay(const History& history, const SchedulePolicy& policy, const Decide& decide,
               const Turns& turns = {});

// What came of it in figures; seconds.
struct Summary {
  int64_t ended = 0;             // jobs, to which the times refer
  double makespan_s = 0;         // from the first that comes to the last end
  double mean_completion_s = 0;  // from when a job comes to its end
  double mean_wait_s = 0;        // in the queue
  double worst_wait_s = 0;
  // Of the makespan, where workers are there, the share in which no job trains on them.
  double idle_share = 0;
  double tokens_per_s = 0;           // over the makespan,
  double tokens_per_training_s = 0;  // and of a worker while it trains
};
Summary Summarize(const History& history, const Outcome& outcome);

// Of the recorded starts and ends, which do not say idle_share and tokens_per_training_s.
Summary SummarizeRecord(const History& history);

}  // namespace lorad::planner
