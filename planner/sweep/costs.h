// The costs of a sweep over LoRA hyperparameters: the values behind PLoRA's F(H, d) (PLoRA 6 and
// A.1).
//
// A job set H trains its configurations together over one copy of the base model, on d GPUs:
//
//   T(H, d) = a_d max_{k in H} S_k + sum_{k in H} S_k w_k(d)          seconds
//   M_base + sum_{k in H} M_k <= C_load M_gpu d                       bytes
//
//   S_k    steps of configuration k
//   a_d    seconds of an iteration that do not depend on what is in it
//   w_k(d) seconds that configuration k adds to each iteration it takes part in
//   M_k    bytes of its adapter, gradients, moments and activations
//
// A configuration leaves the set after its last step, and iterations are shorter from then on; its
// memory is counted to the end of the set. Only rank, batch and steps cost anything, so
// configurations alike in these are one kind: 120 of a grid are 30 kinds or fewer, and every
// algorithm here works on how many of each kind there are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::planner {

struct SweepConfiguration {
  std::string name;
  int64_t rank = 0;
  int64_t batch = 0;  // sequences of a step
  int64_t steps = 0;
};

// How an iteration shrinks on `gpus` GPUs, relative to one.
struct SweepDegree {
  int gpus = 1;            // a power of two
  double fixed_scale = 1;  // of iteration_s
  double work_scale = 1;   // of everything else
};

struct SweepCosts {
  // Memory; M_k = rank_bytes r_k + sample_bytes b_k.
  int64_t base_bytes = 0;
  int64_t rank_bytes = 0;    // of one rank: weights, gradients, moments
  int64_t sample_bytes = 0;  // of one sequence of a batch: activations
  int64_t gpu_bytes = 0;
  double load_factor = 1;  // C_load
  // Time; a_d = fixed_scale_d iteration_s,
  // w_k(d) = work_scale_d (adapter_s + rank_s r_k + sample_s b_k).
  double iteration_s = 0;
  double adapter_s = 0;
  double rank_s = 0;
  double sample_s = 0;
  std::vector<SweepDegree> degrees;
};

// Counts of each kind; the unit in which sets and plans are computed.
using SweepCounts = std::vector<int32_t>;

// A checked sweep: kinds and what they cost on each degree.
class SweepProblem {
 public:
  struct Kind {
    int64_t rank = 0;
    int64_t batch = 0;
    int64_t steps = 0;
    int64_t bytes = 0;
    std::vector<int> configurations;  // indexes into the list given to Create, ascending
  };
  struct Degree {
    int gpus = 0;
    int64_t capacity_bytes = 0;  // C_load M_gpu d - M_base
    double fixed_s = 0;          // a_d
    std::vector<double> work_s;  // S_k w_k(d) of each kind
  };

  // InvalidArgument names what is wrong: no configuration, more than kConfigurationsMax of them,
  // numbers that are not positive or not finite, gpus outside 1..kGpusMax, degrees that are not
  // ascending powers of two, products that overflow, or a configuration that fits no degree
  // of at most `gpus` GPUs. Degrees beyond `gpus` are left out.
  static absl::StatusOr<SweepProblem> Create(const SweepCosts& costs,
                                             const std::vector<SweepConfiguration>& configurations,
                                             int gpus);
  static constexpr int kConfigurationsMax = 5000;
  static constexpr int kGpusMax = 1024;
  static constexpr int64_t kStepsMax = int64_t{1} << 40;
  static constexpr int64_t kRankMax = 1 << 20;
  static constexpr int64_t kBatchMax = 1 << 30;

  int gpus() const { return gpus_; }
  const std::vector<Kind>& kinds() const { return kinds_; }  // steps falling, then bytes falling
  const std::vector<Degree>& degrees() const { return degrees_; }  // GPUs rising
  SweepCounts All() const;                                         // every configuration
  // T({k}, d), infinite where k does not fit.
  double AloneSeconds(size_t kind, const Degree& degree) const;
  // No plan on these GPUs is faster. On a degree d a configuration holds M_k of capacity_d for S_k
  // iterations, so it takes at least d (a_d S_k M_k / capacity_d + S_k w_k(d)) GPU seconds; the
  // bound is the larger of the sum of the smallest of these over the GPUs, and of the longest
  // configuration alone on the degree that suits it best. It holds as well for plans in which
  // configurations replace one another within a set.
  double LowerBoundSeconds() const;
  // The makespan of one configuration at a time on the fewest GPUs that hold it, longest first
  // ("Min GPU" of PLoRA 7.1), the others' GPUs being free for it at once.
  double OneEachSeconds() const;

 private:
  int gpus_ = 0;
  std::vector<Kind> kinds_;
  std::vector<Degree> degrees_;
};

}  // namespace lorad::planner
