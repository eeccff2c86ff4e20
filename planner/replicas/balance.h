// The linear program under dispatch and deployment: sequences may be cut at will.
//   min T   with   base_i + sum_j c_ij X_ij / p_i <= T,   sum_i X_ij >= B_j,   X >= 0
// for groups i of p_i equal replicas and buckets j of B_j sequences; c_ij ms a sequence, infinite
// where the bucket does not fit. The dual gives weights w_i >= 0, sum_i w_i = 1, and with them
//   T >= sum_i w_i base_i + sum_j B_j min_i (w_i / p_i) c_ij,
// a lower bound of any dispatch, whole sequences included. It is valid for every w, so it is
// evaluated as it stands: what the solver rounds cannot make it wrong.
#pragma once

#include <vector>

namespace lorad::planner {

struct BalanceProblem {
  std::vector<double> base_ms;               // of a replica of each group, >= 0
  std::vector<double> replicas;              // p_i > 0
  std::vector<std::vector<double>> cost_ms;  // [group][bucket], > 0
  std::vector<double> sequences;             // B_j >= 0
};

struct Balance {
  double ms = 0;                               // of `sequences`: an optimal solution's T
  std::vector<std::vector<double>> sequences;  // X_ij
  std::vector<double> weights;                 // w_i
  double bound_ms = 0;                         // by the weights; equals ms up to rounding
};

// Primal simplex on a dense table from "every bucket in one group"; Bland's rule after ten pivots a
// row; after twenty a row it returns the solution so far, whose bound is as valid. A bucket of
// B_j > 0 that fits nowhere: ms and bound are infinite, the rest empty.
// O((groups + buckets) groups buckets) a pivot, tens of pivots.
Balance BalanceLoads(const BalanceProblem& problem);

// The bound above for any weights.
double BalanceBound(const BalanceProblem& problem, const std::vector<double>& weights);

}  // namespace lorad::planner
