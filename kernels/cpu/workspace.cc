#include "kernels/cpu/workspace.h"

#include <algorithm>

namespace lorad::kernels::cpu {
namespace {

// The largest need of any one operation's item (each file says its own layout).
int64_t ScratchFloats(const Limits& limits) {
  const int64_t lora_rows = kChunkTokens * limits.features;  // x under a mask
  const int64_t lora_gradient = kChunkTokens * kTileColumns + limits.rank * kTileColumns;
  const int64_t loss = kChunkTokens * (limits.hidden + kVocabularyTile);
  const int64_t attention = 2 * kAttentionRows * limits.longest_segment + kAttentionRows;
  return std::max({lora_rows, lora_gradient, loss, attention});
}

}  // namespace

Workspace TakeWorkspace(const Limits& limits, int threads, Arena& arena) {
  Workspace workspace;
  workspace.limits = limits;
  workspace.rank_columns = limits.rank * limits.targets_in_group;
  workspace.s = arena.Allocate<float>(limits.tokens * workspace.rank_columns);
  workspace.ds = arena.Allocate<float>(limits.tokens * workspace.rank_columns);
  workspace.mask_bits =
      arena.Allocate<uint8_t>(limits.targets_in_group * limits.tokens * workspace.MaskRowBytes());
  workspace.loss_sums = arena.Allocate<float>(limits.tokens * limits.hidden);
  workspace.loss_max = arena.Allocate<float>(limits.tokens);
  workspace.loss_lanes = arena.Allocate<float>(kLossLanes * limits.tokens);
  workspace.loss_target = arena.Allocate<float>(limits.tokens);
  workspace.scratch_floats = ScratchFloats(limits);
  for (int thread = 0; thread < threads; ++thread) {
    workspace.scratch.push_back(arena.Allocate<float>(workspace.scratch_floats));
  }
  return workspace;
}

}  // namespace lorad::kernels::cpu
