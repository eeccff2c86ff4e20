// Sweeps: which configurations train together, on how many GPUs, and when, so that all of them end
// as early as possible (PLoRA 6). Costs and bounds: costs.h; the best single set:
// set.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/sweep/costs.h"
#include "planner/sweep/set.h"

namespace lorad::planner {

// One set of GPUs working without a break.
struct SweepJob {
  struct Member {
    int configuration = 0;  // index
    double start_s = 0;
    double end_s = 0;
  };
  std::vector<int> gpus;  // indexes, ascending
  double start_s = 0;
  double end_s = 0;
  std::vector<Member> members;  // by start, then index

  double gpu_seconds() const { return static_cast<double>(gpus.size()) * (end_s - start_s); }
};

struct SweepPlan {
  std::vector<SweepJob> jobs;  // by start, then first GPU
  double makespan_s = 0;
  double lower_bound_s = 0;  // SweepProblem::LowerBoundSeconds: of any plan
  // makespan G / sum_j d_j t_j: 1 where no GPU idles before the end.
  double approximation_ratio = 1;
  // PLoRA's theorem 6.1, F / (F - T_last (G - D) / G): T_last from the last start to the end, D
  // GPUs in use when the last set starts. It bounds the ratio above where GPUs idle behind the
  // last start alone.
  double ratio_bound = 1;
  bool exact_sets = true;  // no knapsack and no recursion met its node limit
  std::string by;          // the rule that made it
};

// ---- PLoRA's own rule ----

// Which of the policies that DTM enumerates it keeps. Algorithm 1, line 11, keeps the least
// makespan, whatever the policies leave over for later; expression 13, which it is to maximize,
// says the sum of the sets' throughputs. Both are here.
enum class SweepRule { kLeastMakespan, kMostThroughput };

// DTM(g, K): d in {2^floor(log2 g), .., 1}: take F(d, K), go on with g - d and what is left; keep
// the best policy. Every order of degrees is tried for up to kAnyOrderGpusMax GPUs, falling orders
// beyond (the recursion doubles with each GPU; PLoRA's proof assumes falling orders). States met
// before are not searched again. Past `nodes_max` calls of F a policy goes on with the degree of
// the highest F a GPU alone, and is not exact.
inline constexpr int kAnyOrderGpusMax = 8;
inline constexpr int64_t kDtmNodesMax = 20000;
struct SweepPolicy {
  std::vector<SweepSet> sets;
  double makespan_s = 0;
  double throughput = 0;  // sum of F
  int64_t nodes = 0;      // calls of F
  bool exact = true;
};
SweepPolicy Dtm(const SweepProblem& problem, int gpus, const SweepCounts& left, SweepRule rule,
                int64_t nodes_max = kDtmNodesMax);

// Algorithm 2: while configurations remain, DTM on the free GPUs; then on to the next completion.
SweepPlan PlanByThroughput(const SweepProblem& problem, SweepRule rule,
                           int64_t nodes_max = kDtmNodesMax);
// Whether that takes seconds at most: up to 64 GPUs, and up to 4,096 kinds times different numbers
// of steps (F costs a pass over the kinds for each of these).
bool RulesAffordable(const SweepProblem& problem);

// ---- ours ----

struct SweepOptions {
  // False: a set starts and ends as a whole, as PLoRA's jobs do. True: a configuration takes the
  // place of one that has ended, as the service admits jobs at a window's border.
  bool replace = true;
  // Evaluations of a group of GPUs that the local search may make (one of many members counts as
  // several); it decides how long planning takes, at some 10 microseconds each.
  int64_t evaluations_max = 150000;
};

// Makespan itself as the aim. The GPUs are nested groups: those of the largest degree work first,
// then the smaller ones that they fall apart into, each on its own (groups.h); any of them
// may be empty. For each of some ways to start (groups of one degree, or of two, side by side):
//   1. configurations, longest first, go to the group where they end first; or to the first group
//      that ends within a target, which is bisected; what fits none of them goes to larger groups;
//   2. while the group that ends last can end earlier by giving one configuration to any other
//      group or by exchanging one with it, and the other does not end as late, that is done, the
//      best such change first.
// The best plan is shaken: some random moves, then step 2 again, kept where it ends earlier.
// Within a group: sets as shelves of first-fit decreasing (by steps), or, with `replace`, list
// scheduling: the first configuration of the list that fits starts as soon as memory is free, the
// longest or the largest being first in it, whichever ends earlier.
// Deterministic. PlanByThroughput's two rules are tried as well where RulesAffordable, and the best
// plan is kept.
SweepPlan PlanSweep(const SweepProblem& problem, const SweepOptions& options = {});

// Asserts what a plan must keep: every configuration once and for its steps, no GPU twice at a
// time, memory of every set within its GPUs'. The empty string, or what is broken.
std::string CheckSweepPlan(const SweepProblem& problem, const SweepPlan& plan);

// One line for the plan, one for each job:
//   "makespan 12.5 s, lower bound 11.9 s (1.05), ratio 1.02 (bound 1.08), by search"
//   "GPU 0-1: 0.0 .. 12.5 s: r8-b1 r16-b1 @3.2 r8-b4"
std::string ToText(const SweepPlan& plan, const std::vector<SweepConfiguration>& configurations);

}  // namespace lorad::planner
