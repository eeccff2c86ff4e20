// Sequences into microbatches: first-fit decreasing, and the bound that shows how good it is.
// LoRAFusion 4.2 (greedy); Martello and Toth, "Lower bounds and reduction procedures for the bin
// packing problem" (1990), for L2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::planner {

// One or more sequences that must share a microbatch.
struct Sample {
  std::string job;
  std::vector<int64_t> lengths;  // tokens of each sequence, each > 0
};

int64_t Tokens(const Sample& sample);

struct PackOptions {
  int64_t capacity = 0;  // tokens of a microbatch
  int64_t padding = 1;   // P: the tokens of one adapter in a microbatch count as a multiple of P
};

// Each bin a microbatch: indices of samples, ascending.
using Packing = std::vector<std::vector<int>>;

// Samples in order of falling length (ties: job, then index), each into the first bin that still
// has room. Deterministic; O(n log n) but for bins that have room for another job alone (P > 1).
// INVALID_ARGUMENT where a sample cannot fit any bin, a length or an option is not positive.
absl::StatusOr<Packing> PackFirstFitDecreasing(const std::vector<Sample>& samples,
                                               const PackOptions& options);

// No packing has fewer bins: Martello-Toth L2 of the samples' lengths, and with a padding multiple
// also ceil(padded tokens of all / C). O(n log n).
int64_t LowerBoundL2(const std::vector<Sample>& samples, const PackOptions& options);

// Tokens that a bin holds, each adapter's rounded up to a multiple of P.
int64_t PaddedTokens(const std::vector<Sample>& samples, const std::vector<int>& bin,
                     const PackOptions& options);

// The same of all samples together: no packing has less in all of its bins.
int64_t PaddedTokens(const std::vector<Sample>& samples, const PackOptions& options);

// "[0 3] [1 2]"
std::string ToText(const Packing& packing);

}  // namespace lorad::planner
