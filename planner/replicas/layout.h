// A layout: how one replica of the base model lies on GPUs, and what a step of it costs. Symbols:
//   L length of a sequence as padded, b = floor(capacity / L) sequences of a microbatch,
//   t(k, L) = a + k (b1 L + c L^2) time of k sequences on one stage, n sequences, S stages.
//   n = m b + r:   m microbatches of b sequences and one of r < b, for every length
//   T({n_L}) = sum_L [m t(b, L) + t(r, L)] + (S - 1) max of the t in use
// (LobRA, appendix D, equations 10 to 12; t(0, L) = 0.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/cost/time.h"

namespace lorad::planner {

struct Layout {
  int tensor_parallel = 1;
  int pipeline_stages = 1;
  int64_t capacity_tokens = 0;  // padded tokens of a microbatch that fit
  TimeCoefficients stage_ms;    // forward and backward of one microbatch on one stage

  int gpus() const { return tensor_parallel * pipeline_stages; }
  // Sequences of one microbatch; 0: the layout cannot hold the length.
  int64_t Fit(int64_t length) const { return capacity_tokens / length; }
  double SequenceMs(int64_t length) const;  // what one more sequence adds to a microbatch
  // "TP2 PP4"
  std::string Name() const;
};

// Milliseconds of a replica that trains counts[j] sequences of lengths[j] (each > 0 and, where the
// count is, at most the capacity: asserted). O(buckets).
double ReplicaMs(const Layout& layout, const std::vector<int64_t>& lengths,
                 const std::vector<int64_t>& counts);

// Tokens a second and GPU over `microbatches` full microbatches of one length; 0 where it does not
// fit.
double TokensPerGpuSecond(const Layout& layout, int64_t length, int64_t microbatches);

// One cell of a throughput table; 0 = the length does not fit.
struct Throughput {
  int layout = 0;  // index
  int64_t length = 0;
  double tokens_per_gpu_second = 0;
};

// LobRA's configuration filter (appendix A): for each number of GPUs among gpus[] and each length,
// the layout with the highest throughput of those that need no more GPUs (replicas fill the
// rest); of equals the one with fewer GPUs, then the first. Sorted indices. O(cells^2).
std::vector<int> ProposeLayouts(const std::vector<int>& gpus, const std::vector<Throughput>& table);

}  // namespace lorad::planner
