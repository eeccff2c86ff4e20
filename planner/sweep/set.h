// F(d, K): the job set of the highest throughput on d GPUs (PLoRA 6.2, expression 18).
//
//   max F(H) = sum_{k in H} r_k / T(H, d)   subject to   sum_{k in H} M_k <= capacity_d
//
// A ratio of two sums is solved by Dinkelbach's iteration (W. Dinkelbach, On nonlinear fractional
// programming, Management Science 13(7), 1967): for the ratio q of the best set so far, solve
//
//   P(q) = max_H  sum_{k in H} r_k - q T(H, d);
//
// a set with P > 0 has a higher ratio and gives the next q, P = 0 proves that q is the maximum. q
// rises superlinearly: 1 to 4 programs in practice. T holds the steps of the longest member, so
// P(q) is the best over L in the different numbers of steps of
//
//   max sum_k (r_k - q S_k w_k) x_k - q a_d L,  x_k in 0..count_k, x_k = 0 where S_k > L,
//
// which is exact although L may exceed the members' own steps (the L that they do have is tried as
// well and is worth more). Each is a bounded knapsack over the few kinds, solved by depth first
// branch and bound with Dantzig's fractional bound: as exact as an integer program by HiGHS and
// far cheaper here, some ten microseconds instead of milliseconds for 30 kinds, which matters as
// the recursion over degrees asks for thousands of sets. In the worst case the search is
// exponential in the kinds; `nodes_max` bounds it, and the result says whether it was reached.
#pragma once

#include "planner/sweep/costs.h"

namespace lorad::planner {

struct SweepSet {
  int gpus = 0;
  SweepCounts counts;  // of each kind; empty: nothing fits
  double seconds = 0;  // T(H, d)
  int64_t bytes = 0;   // beside the base model
  int64_t ranks = 0;   // sum of r_k
  double ratio = 0;    // F
  bool exact = true;   // no node limit was reached
  int iterations = 0;  // of Dinkelbach

  bool empty() const { return counts.empty(); }
};

inline constexpr int64_t kSweepNodesMax = 200000;

// The best set out of `left`. Ties: the first found, which depends on the input alone.
SweepSet BestSweepSet(const SweepProblem& problem, const SweepProblem::Degree& degree,
                      const SweepCounts& left, int64_t nodes_max = kSweepNodesMax);

// T(H, d), bytes and ranks of given counts.
SweepSet MeasureSweepSet(const SweepProblem& problem, const SweepProblem::Degree& degree,
                         const SweepCounts& counts);

}  // namespace lorad::planner
