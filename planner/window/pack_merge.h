// The merge pass over consecutive global batches of one group of jobs: sequences of the next batch
// move into what is free in the last microbatch of this one. LoRAFusion 4.2, Algorithm 1, lines 12
// to 14, and its bubble lemma.
//
// A sample of job a of batch b + 1 may stand at place q of the pipeline (microbatches of all
// batches in their order) only where the last microbatch that holds batch b of a stands at p <= q -
// S with S stages: then Step(a, b) comes before its Forward on every stage, and no Noop has to be
// put in for it (order.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/window/pack_batch.h"

namespace lorad::planner {

// Which sample of which batch.
struct BatchSample {
  int batch = 0;
  int sample = 0;

  bool operator==(const BatchSample&) const = default;
};

struct MergedPacking {
  std::vector<std::vector<BatchSample>> bins;  // in pipeline order
  int64_t bins_before = 0;                     // of the batches packed each by itself
  int64_t moved = 0;                           // samples that stand with the batch before theirs
};

// `packed[b]` is PackBatch of `batches[b]` with empty_last_bin (solved side by side by the caller).
// The free room in the last bin is filled with the longest samples of the next batch that fit and
// may; what is left of that batch is packed again (under `limits`) where something moved out of it,
// and stays as it was where that has no fewer bins and no emptier last one. Deterministic;
// O(samples log samples) and the packing. INVALID_ARGUMENT: lists of different length, stages < 1;
// errors of PackBatch.
absl::StatusOr<MergedPacking> MergeBatches(const std::vector<std::vector<Sample>>& batches,
                                           const std::vector<PackResult>& packed, int stages,
                                           const PackOptions& options, const PackLimits& limits);

// "12 bins (13 without merging, 2 samples moved): [0#1 0#3] [0#2 1#0] ..." (batch#sample)
std::string ToText(const MergedPacking& packing);

}  // namespace lorad::planner
