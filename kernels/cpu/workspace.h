// Scratch memory of the operations: some shared by the items of one operation, some of each thread.
#ifndef LORAD_KERNELS_CPU_WORKSPACE_H_
#define LORAD_KERNELS_CPU_WORKSPACE_H_

#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "kernels/batch.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/thread_pool.h"

namespace lorad::kernels::cpu {

// Queries of one attention item.
inline constexpr int64_t kAttentionRows = 64;
// Columns of one item of a product, at most: wide enough that packing the rows costs little, narrow
// enough that a few rows still occupy some threads. A function of the width alone (TileWidth).
inline constexpr int64_t kTileColumns = 768;
// The vocabulary is walked in tiles of this width, and the sum of exponentials kept in so many
// lanes.
inline constexpr int64_t kVocabularyTile = 512;
inline constexpr int64_t kLossLanes = 8;

// The fixed tile width for `columns`: equal tiles of at most kTileColumns, multiples of 16.
constexpr int64_t TileWidth(int64_t columns) {
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  return ((columns + tiles - 1) / tiles + 15) / 16 * 16;
}
constexpr int64_t Tiles(int64_t columns) {
  return (columns + TileWidth(columns) - 1) / TileWidth(columns);
}

struct Workspace {
  Limits limits;
  // Rank columns of all targets of one group.
  int64_t rank_columns = 0;
  float* s = nullptr;   // [T, rank_columns]: S of the forward, or of the backward computed again
  float* ds = nullptr;  // [T, rank_columns]
  uint8_t* mask_bits = nullptr;  // [targets, T, K / 8]
  float* loss_sums = nullptr;    // [T, H]: sum of exp(z - max) W
  float* loss_max = nullptr;     // [T]
  float* loss_lanes = nullptr;   // [T, kLossLanes]: sum of exp(z - max)
  float* loss_target = nullptr;  // [T]: the target's score
  std::vector<float*> scratch;   // of each thread, [scratch_floats]
  int64_t scratch_floats = 0;

  int64_t MaskRowBytes() const { return (limits.features + 7) / 8; }
};

// Plans and takes all of it.
Workspace TakeWorkspace(const Limits& limits, int threads, Arena& arena);

// What an operation needs to run.
struct Context {
  ThreadPool& pool;
  const Loops& loops;
  const Workspace& workspace;
};

}  // namespace lorad::kernels::cpu

#endif  // LORAD_KERNELS_CPU_WORKSPACE_H_
