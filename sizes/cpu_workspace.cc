#include "sizes/cpu_workspace.h"

#include <algorithm>

namespace lorad::sizes {
namespace {

// The largest need of any one operation's item (each file of kernels/cpu says its own layout).
int64_t ScratchFloats(const Limits& limits) {
  const int64_t lora_rows = kChunkTokens * limits.features;  // x under a mask
  const int64_t lora_gradient = kChunkTokens * kTileColumns + limits.rank * kTileColumns;
  const int64_t loss = kChunkTokens * (limits.hidden + kVocabularyTile);
  const int64_t attention = 2 * kAttentionRows * limits.longest_segment + kAttentionRows;
  return std::max({lora_rows, lora_gradient, loss, attention});
}

}  // namespace

CpuWorkspaceLayout LayCpuWorkspace(const Limits& limits, int threads) {
  Layout layout;
  const auto floats = [&layout](int64_t count) {
    return layout.Take(count * int64_t{sizeof(float)});
  };
  CpuWorkspaceLayout to;
  to.rank_columns = limits.rank * limits.targets_in_group;
  to.mask_row_bytes = CeilDivide(limits.features, 8);
  to.s_at = floats(limits.tokens * to.rank_columns);
  to.ds_at = floats(limits.tokens * to.rank_columns);
  to.mask_bits_at = layout.Take(limits.targets_in_group * limits.tokens * to.mask_row_bytes);
  to.loss_sums_at = floats(limits.tokens * limits.hidden);
  to.loss_max_at = floats(limits.tokens);
  to.loss_lanes_at = floats(kLossLanes * limits.tokens);
  to.loss_target_at = floats(limits.tokens);
  to.scratch_floats = ScratchFloats(limits);
  to.scratch_step_bytes = ArenaBytes(to.scratch_floats * int64_t{sizeof(float)});
  to.scratch_at = layout.Take(threads * to.scratch_step_bytes);
  to.bytes = layout.bytes();
  return to;
}

}  // namespace lorad::sizes
