// How the configurations of one group of GPUs follow one another, in iterations and in seconds.
// Within the planner only; plan.h says what it is for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/sweep/costs.h"
#include "planner/sweep/plan.h"

namespace lorad::planner {

// Configurations of one group: (kind, how many), kinds ascending, none 0.
using SweepMembers = std::vector<std::pair<int32_t, int32_t>>;

// One configuration in the iterations [begin, end) of its group; `set` counts the sets (0 with
// replacement).
struct SweepRun {
  int32_t kind = 0;
  int32_t set = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Iterations that the group runs; every kind must fit the degree. With `runs` also where each is.
// Sets are shelves of first-fit decreasing (by steps). With `replace` it is list scheduling, the
// longest first; where somebody then waits and `both` is asked for, also the largest first, and the
// better of the two. O(kinds * starts).
int64_t LayOut(const SweepProblem& problem, const SweepProblem::Degree& degree,
               const SweepMembers& members, bool replace, bool both,
               std::vector<SweepRun>* runs = nullptr);

// Runs of one group as a job (replace) or as one job a set, in seconds from `start_s`; takes the
// configurations' indexes from `free_indexes` (of each kind, the last first).
std::vector<SweepJob> JobsOf(const SweepProblem& problem, const SweepProblem::Degree& degree,
                             const std::vector<SweepRun>& runs, const std::vector<int>& gpus,
                             double start_s, std::vector<std::vector<int>>* free_indexes);

// The configurations of each kind, the first of them last.
std::vector<std::vector<int>> FreeIndexes(const SweepProblem& problem);

// Makespan, ratio and bounds from the jobs.
void FinishPlan(const SweepProblem& problem, SweepPlan* plan);

}  // namespace lorad::planner
