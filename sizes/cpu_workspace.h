// Scratch memory of kernels/cpu: how large its tiles are, and where everything lies.
#pragma once

#include <cstdint>

#include "sizes/batch.h"

namespace lorad::sizes {

// Queries of one attention item.
inline constexpr int64_t kAttentionRows = 64;
// Columns of one item of a product, at most: wide enough that packing the rows costs little, narrow
// enough that a few rows still occupy some threads. A function of the width alone (TileWidth).
inline constexpr int64_t kTileColumns = 768;
// The vocabulary is walked in tiles of this width, and the sum of exponentials kept in so many
// lanes.
inline constexpr int64_t kVocabularyTile = 512;
inline constexpr int64_t kLossLanes = 8;

// In bytes from the workspace's first one; kernels/cpu/workspace.h says what each is.
struct CpuWorkspaceLayout {
  int64_t rank_columns = 0;    // of all targets of one group
  int64_t mask_row_bytes = 0;  // of the widest input
  int64_t s_at = 0;
  int64_t ds_at = 0;
  int64_t mask_bits_at = 0;
  int64_t loss_sums_at = 0;
  int64_t loss_max_at = 0;
  int64_t loss_lanes_at = 0;
  int64_t loss_target_at = 0;
  int64_t scratch_at = 0;          // of the first thread; the others' follow
  int64_t scratch_floats = 0;      // of one thread
  int64_t scratch_step_bytes = 0;  // from one thread's to the next
  int64_t bytes = 0;
};

CpuWorkspaceLayout LayCpuWorkspace(const Limits& limits, int threads);

}  // namespace lorad::sizes
