// The split of jobs over groups, made better than one pass over the queue leaves it, by a local
// search over moves and swaps. Within the planner only.
//
// It lessens, for each base model, the sum of the predicted ends of all jobs (ends.h):
//   sum over groups of (sum_j end_j + delay |jobs|)
// First over the jobs that are placed in this round, which costs nothing: each goes where that sum
// is least, and any two change places, until neither helps. Then, with SchedulePolicy::rebalance
// and where all times and steps concerned are known, over running jobs: the move, or the exchange
// of two, that gains the most, as long as DecideMove (cost/move.h, LobRA 5.1) finds that it pays.
// There the current step is the sum of ends of the two groups as they are, the new one that after
// the move, there is one step to go, and moving costs move_s for each job and the time until a
// group that is not formed yet is. So a move takes at least `least_share` off the two groups' sum.
//
// A running job moves only out of an open group that runs, if nothing is under way with it, no
// suspicion is on it and it was not moved within minimum_run_s; into a group that has room for it
// beside all it has now, that takes newcomers and does not drain for a job that waits, or onto an
// idle worker; never into or out of a group of several workers. As the queue has been gone over, no
// job that waits would fit that worker. A worker whose group has no jobs, and is of another base
// model that nobody in the queue is of who could train there, or was formed for shorter sequences
// or lower ranks than some running job of its base model has, is as good as idle: the group is
// dissolved first, and the move, weighed again, comes in the next round.
//
// The work is bounded by kWork jobs looked at, of which each base model has its share, never by a
// clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/schedule/choose.h"
#include "planner/schedule/state.h"

namespace lorad::planner {

// A sum of ends looks at every job of a group, and the shape of a group costs as much as
// kWorkOfShape of these for each of its jobs.
inline constexpr int64_t kWork = 400'000;
inline constexpr int64_t kWorkOfShape = 32;

// A running job that goes on elsewhere.
struct Replacement {
  size_t from = 0;    // index of Round::groups
  size_t member = 0;  // of that
  size_t to = 0;      // index of Round::groups; it may be formed in this round
  std::string why;
};

struct Improvement {
  std::vector<Replacement> replacements;
  std::vector<size_t> vacated;  // indexes of Round::groups, to be dissolved
};

// Changes who joins which group in round.groups, and their shapes; forms groups on idle workers.
// REQUIRES: every job of the queue was placed or waits.
Improvement Improve(Round& round, Lookahead& lookahead);

}  // namespace lorad::planner
