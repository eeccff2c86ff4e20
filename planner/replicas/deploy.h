// Which replicas to deploy on N GPUs (LobRA 4.2, equation 2): layouts i of n_i GPUs, p_i replicas
// of each, buckets j of B f_j expected sequences,
//   min over p of Dispatch(p, ceil(B f_j))   with   sum_i p_i n_i <= N.
//
// Method. Plans are integer partitions of N over each set of layouts that holds the longest bucket;
// a plan that leaves room for another replica of its own set is dominated and left out, since
// a further replica never makes a step longer. They are enumerated depth first under lower
// bounds: for any weights w, with W_i = w_i / p_i of the linear program
// (planner/replicas/balance.h),
//   T >= (sum_j B_j min_i W_i c_ij + sum_i W_i p_i base_i) / sum_i W_i p_i,
// where base_i is the least filling of a pipeline. W = n is LobRA's filter (length-based dispatch);
// other W come from the linear programs solved on the way and cut off more. Unlike LobRA's bound,
// which holds under an assumption and therefore drops plans only from 15 % on, these hold
// always, so dropping whatever is not better than the best plan so far loses nothing. The plans
// that are left are dispatched exactly (planner/replicas/dispatch.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/replicas/dispatch.h"

namespace lorad::planner {

struct DeployProblem {
  std::vector<Layout> candidates;  // at most 16
  int64_t gpus = 0;
  std::vector<int64_t> lengths;   // of the buckets, rising
  std::vector<double> sequences;  // expected of a step in each bucket, B f_j
};

struct DeployOptions {
  double gap = 0.005;              // share by which the plan may lie above the optimum
  int64_t dispatch_nodes = 2'000;  // for each plan that is dispatched
  int64_t plans = 20'000'000;      // enumerated
  int64_t linear_programs = 50'000;
  std::function<bool()> cancelled = nullptr;  // the best plan so far is returned
  // With samples: so many of the best plans compete, those at most so much slower than the best.
  int compared = 16;
  double compared_within = 0.05;
};

// The sequences of one step in buckets of its own.
struct StepSample {
  std::vector<int64_t> lengths;
  std::vector<int64_t> sequences;
};

struct Deployment {
  std::vector<int64_t> replicas;  // p_i of each candidate
  DispatchPlan dispatch;          // of the layouts with p_i > 0, in their order
  double step_ms = 0;
  double bound_ms = 0;   // no deployment of the candidates is faster
  bool optimal = false;  // proved to lie within the gap
  // With sequences that need not be equal among a layout's replicas (SpreadOverReplicas), which is
  // how a step is run: the plan's own time, and a bound that no deployment comes below even so.
  double spread_ms = 0;
  double linear_bound_ms = 0;
  double mean_step_ms = 0;  // over the samples, spread over replicas; 0 without
  int64_t enumerated = 0;   // partitions, whole or begun, that were looked at
  int64_t linear_programs = 0;
  int64_t dispatched = 0;

  double gpu_seconds(int64_t gpus) const { return step_ms / 1000 * static_cast<double>(gpus); }
  // "TP1 PP1 x 6, TP8 PP1 x 1: 12.300 s a step, ...; no plan below 12.250 s; spread ..."
  std::string ToText(const DeployProblem& problem) const;
};

// Expected sequences are rounded up and their buckets never vary, so that equation 2 is off by some
// per cent for a real step. With `samples` the plans that it finds best are therefore dispatched
// for each of them, and the one with the least mean is returned (its step_ms and bound are equation
// 2's still). A sample that the plan cannot hold is InvalidArgument.
//
// InvalidArgument as Dispatch, for no or too many candidates, or GPUs outside 1 to 65,536;
// FailedPrecondition if no set of layouts on N GPUs holds every bucket. Deterministic.
absl::StatusOr<Deployment> Deploy(const DeployProblem& problem, const DeployOptions& options = {},
                                  const std::vector<StepSample>& samples = {});

// Mean step of a plan over samples, each dispatched by itself and spread over its replicas.
absl::StatusOr<double> MeanStepMs(const DeployProblem& problem,
                                  const std::vector<int64_t>& replicas,
                                  const std::vector<StepSample>& samples,
                                  const DispatchOptions& options = {.gap = 0.005, .nodes = 500});

// The groups of a plan over the candidates, and the expected sequences as whole ones, rounded up.
DispatchProblem DispatchOf(const DeployProblem& problem, const std::vector<int64_t>& replicas);

}  // namespace lorad::planner
