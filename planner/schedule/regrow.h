// Microbatches grow back when the jobs that needed the room have left. Within the planner only.
//
// A group was given a shape for all the jobs that it had: shorter microbatches, longer sequences, a
// higher rank or more recomputation than those need that are left. It is formed again, for nobody
// new, where the time model says that this pays. With S the sum of its jobs' ends (ends.h), C the
// tokens of a microbatch and f what a step takes with recomputation r over what it takes without
// (1, 1.025 for products, 4/3 for blocks: sizes/group.h),
//   S(C_new) f(r_new) / f(r_now) + k (load_s + move_s) < S(C_now),   by DecideMove
// as all k jobs wait for it. Never under minimum_run_s after it was formed, so at most once in that
// time; never a group of several workers; never while a job joins, leaves, comes, or waits for the
// group to drain.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "planner/schedule/state.h"

namespace lorad::planner {

struct Regrowth {
  size_t group = 0;  // index of Round::groups
  GroupShape shape;
  std::string why;
};

// REQUIRES: the queue has been gone over. `touched`, by group: something was decided of it. Needs
// SchedulePolicy::rebalance.
std::vector<Regrowth> Regrow(Round& round, const std::vector<bool>& touched);

}  // namespace lorad::planner
