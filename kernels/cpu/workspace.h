// Scratch memory of the operations: some shared by the items of one operation, some of each thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "kernels/batch.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/thread_pool.h"
#include "sizes/cpu_workspace.h"

namespace lorad::kernels::cpu {

using sizes::kAttentionRows;
using sizes::kLossLanes;
using sizes::kTileColumns;
using sizes::kVocabularyTile;

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
  uint8_t* mask_bits = nullptr;  // [targets, T, mask_row_bytes]
  int64_t mask_row_bytes = 0;    // of the widest input, a bit a feature
  float* loss_sums = nullptr;    // [T, H]: sum of exp(z - max) W
  float* loss_max = nullptr;     // [T]
  float* loss_lanes = nullptr;   // [T, kLossLanes]: sum of exp(z - max)
  float* loss_target = nullptr;  // [T]: the target's score
  std::vector<float*> scratch;   // of each thread, [scratch_floats]
  int64_t scratch_floats = 0;
};

// All of it, where LayCpuWorkspace has it; counting, only its bytes are taken.
Workspace TakeWorkspace(const Limits& limits, int threads, Arena& arena);

// What an operation needs to run.
struct Context {
  ThreadPool& pool;
  const Loops& loops;
  const Workspace& workspace;
};

}  // namespace lorad::kernels::cpu
