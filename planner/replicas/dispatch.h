// Which replicas train which sequences of a step (LobRA 4.3, equation 3). Groups i of p_i equal
// replicas, buckets j of B_j sequences; n_ij sequences of bucket j go to each replica of group i:
//   min max_i T_i({f_ij + n_ij})   with   sum_i p_i n_ij >= B_j,   n_ij = 0 where j does not fit i
// with T of planner/replicas/layout.h, exact: whole microbatches, their rests and the pipeline's
// filling. n_ij = ceil(d_ij / p_i) of the paper's d_ij. f_ij are sequences that a group trains
// anyhow (its own adapters', planner/replicas/ownership.h).
//
// Method: the linear program (planner/replicas/balance.h) gives a lower bound; its solution rounded
// down, filled up greedily and improved by moves of one sequence gives a first plan; then branch
// and bound over the buckets, longest first, with the linear program of the rest as a bound. An own
// search and no general solver, because T is not linear (rests, max) and because it has to take
// milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/replicas/layout.h"

namespace lorad::planner {

inline constexpr size_t kGroupsMax = 32;
inline constexpr size_t kBucketsMax = 64;

struct ReplicaGroup {
  Layout layout;
  int replicas = 1;
  std::vector<int64_t> fixed = {};  // f_ij of each bucket; empty: none
};

struct DispatchProblem {
  std::vector<ReplicaGroup> groups;
  std::vector<int64_t> lengths;    // of the buckets, rising
  std::vector<int64_t> sequences;  // B_j
};

struct DispatchOptions {
  double gap = 0;          // share by which the plan may lie above the optimum
  int64_t nodes = 20'000;  // of the search, a large linear program counting as many; beyond them
                           // the best plan so far, with its bound
  // Only plans faster than this are of interest: the search ends where it knows there is none.
  double cutoff_ms = std::numeric_limits<double>::infinity();
  std::function<bool()> cancelled = nullptr;
};

struct DispatchPlan {
  std::vector<std::vector<int64_t>> per_replica;  // n_ij, fixed ones not counted
  std::vector<std::vector<int64_t>> sequences;    // d_ij <= p_i n_ij; sum_i d_ij = B_j
  std::vector<double> group_ms;                   // T_i
  double step_ms = 0;                             // max_i T_i
  double bound_ms = 0;                            // no plan is faster
  double linear_bound_ms = 0;  // nor is any spread over single replicas faster than this
  bool optimal = false;        // proved to lie within the gap
  int64_t nodes = 0;

  // A line for each group and a last one with time and bound.
  std::string ToText(const DispatchProblem& problem) const;
};

// InvalidArgument: no groups or buckets, sizes that differ, negative numbers, lengths that do not
// rise, coefficients that are negative or not finite, more than 32 groups, 64 buckets or 10^9
// sequences; a sequence that fits no group (FailedPrecondition). Deterministic.
absl::StatusOr<DispatchPlan> Dispatch(const DispatchProblem& problem,
                                      const DispatchOptions& options = {});
absl::Status CheckDispatch(const DispatchProblem& problem);

// The sequences that each replica of each group gets, [group][replica][bucket], fixed ones not
// counted: as even as whole sequences allow, what is left over to the replica that is then the
// least busy; then sequences leave the slowest replica, moved or exchanged for one of another
// length, as long as that helps. No replica takes longer than the plan's step, and the slowest is
// usually faster, since the n_ij of a group's replicas need not be equal. linear_bound_ms holds for
// it too.
std::vector<std::vector<std::vector<int64_t>>> SpreadOverReplicas(const DispatchProblem& problem,
                                                                  const DispatchPlan& plan);

// The slowest replica of such a spread.
double SpreadMs(const DispatchProblem& problem,
                const std::vector<std::vector<std::vector<int64_t>>>& spread);

// Baselines of LobRA's ablation. Uniform: every group's replicas the same share of every bucket
// (groups that cannot hold it get none). Length-based: each bucket to the groups that train it with
// the fewest GPU seconds.
absl::StatusOr<DispatchPlan> DispatchUniformly(const DispatchProblem& problem);
absl::StatusOr<DispatchPlan> DispatchByLength(const DispatchProblem& problem);

}  // namespace lorad::planner
