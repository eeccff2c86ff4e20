// The search behind Dispatch; no header of the planner's users.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/replicas/balance.h"
#include "planner/replicas/dispatch.h"

namespace lorad::planner {

// Loads of all groups while sequences are given out bucket by bucket.
class GroupLoads {
 public:
  explicit GroupLoads(const DispatchProblem& problem);

  size_t groups() const { return problem_.groups.size(); }
  size_t buckets() const { return problem_.lengths.size(); }
  int64_t fits(size_t group, size_t bucket) const { return fits_[group][bucket]; }
  int64_t replicas(size_t group) const { return problem_.groups[group].replicas; }
  int64_t sequences(size_t bucket) const { return problem_.sequences[bucket]; }

  // T of one group with counts n_ij on top of the fixed ones.
  double Ms(size_t group, const std::vector<int64_t>& counts) const;
  // Some replica trains a sequence of each bucket: the longest that takes at best.
  double SingleMs() const;
  // The linear program of buckets 0..last with `counts` given out behind them.
  BalanceProblem Rest(const std::vector<std::vector<int64_t>>& counts, int last) const;

 private:
  const DispatchProblem& problem_;
  std::vector<std::vector<int64_t>> fits_;    // sequences a microbatch
  std::vector<std::vector<double>> cost_ms_;  // at least, of one more sequence
};

// Rounds a solution of the linear program over all buckets to whole sequences and improves it.
std::vector<std::vector<int64_t>> RoundAndImprove(const GroupLoads& loads, const Balance& balance);

// Sets plan->sequences, group_ms and step_ms by per_replica.
void Complete(const DispatchProblem& problem, DispatchPlan* plan);

}  // namespace lorad::planner
