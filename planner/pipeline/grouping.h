// Which adapters share microbatches, and how their groups take turns. LoRAFusion 4.2 ("Bubble Lemma
// & Adapter Grouping"), mLoRA 3.2.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/window/types.h"

namespace lorad::planner {

// Adapters into `groups` groups (1 .. adapters): sorted by mean length, the groups take the longest
// that are left, then the shortest that are left, and so on in turn; so the longest is paired with
// the shortest. Each group: indices, the longest adapter first. Ties: the later index counts as
// longer. O(n log n).
using Groups = std::vector<std::vector<int>>;
Groups GroupAdapters(const std::vector<double>& mean_lengths, int groups);

// The pipeline order: groups take turns, a global batch each, so that the other groups'
// microbatches lie between a job's last Backward of batch j and its first Forward of batch j + 1. A
// group that has run out is passed over. batches[g][j]: microbatches of batch j of group g; the
// result is numbered from `first`.
std::vector<Microbatch> Interleave(const std::vector<std::vector<std::vector<Microbatch>>>& batches,
                                   int64_t first = 0);

}  // namespace lorad::planner
