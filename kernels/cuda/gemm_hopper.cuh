// What the two roles of the product kernel (gemm_hopper.h) share: tile order, shared memory, the
// ring of stages.
#ifndef LORAD_KERNELS_CUDA_GEMM_HOPPER_CUH_
#define LORAD_KERNELS_CUDA_GEMM_HOPPER_CUH_

#include <cstdint>

#include "kernels/cuda/gemm_hopper.h"
#include "kernels/cuda/gemm_ptx.cuh"
#include "kernels/cuda/gemm_wgmma.cuh"

namespace lorad::kernels::cuda {

inline constexpr int kBlockRows = 128;  // of a tile, a block; 64 a warpgroup
inline constexpr int kClusterRows = 2 * kBlockRows;
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 3 * kWarpgroup;
inline constexpr int kBox = 64;  // columns of a box
inline constexpr int kTermsCached = 96;
inline constexpr int kRowTilesOfGroup = 8;
static_assert(kClusterRows == kTermTileRows);

// kN columns; kStages of 64 inner elements; kBuffers boxes of results a warpgroup, of which kRound
// are filled and sent off together.
template <int kN, int kStages, int kBuffers, int kRound>
struct TileShape {
  static constexpr int kColumns = kN;
  static constexpr int kBoxes = kN / kBox;
  static constexpr int kStageCount = kStages;
  static constexpr int kBufferCount = kBuffers;
  static constexpr int kRoundBoxes = kRound;
  static constexpr uint32_t kXBytes = kBlockRows * kBox * 2;
  static constexpr uint32_t kStageBytes = kXBytes + kN * kBox * 2;
  static_assert(kBoxes % kBuffers == 0 && kBuffers % kRound == 0 && kBoxes % 2 == 0);
};

// What the consumers must know of a stage.
struct StageNote {
  int16_t term_steps;    // in stages over x: stages over terms without a mask in this tile,
  int16_t masked_steps;  // and then over terms with one
  int32_t products;      // of 16 inner elements
  int32_t term;          // index of the term, in stages over terms
};

// A term as the producer needs it.
struct TermNote {
  int16_t rank;
  int16_t masked;
  int32_t first_column;
  int32_t first_output;
  int32_t outputs;
};

template <typename Shape>
struct SharedMemory {
  unsigned char stages[Shape::kStageCount][Shape::kStageBytes];
  unsigned char results[2][Shape::kBufferCount][wgmma::kBoxBytes];
  StageNote notes[Shape::kStageCount];
  TermNote terms[kTermsCached];
  uint64_t full[Shape::kStageCount];
  uint64_t empty[Shape::kStageCount];
  uint64_t residual[2][Shape::kBufferCount];
  uint64_t terms_ready;
};

// Position in the ring.
template <typename Shape>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Next() {
    if (++stage == Shape::kStageCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct TilePosition {
  int row_tile;
  int column_tile;
};

// Groups of kRowTilesOfGroup row tiles, in each group column by column.
__device__ inline TilePosition PositionOf(int tile, const HopperArguments& arguments) {
  const int group_tiles = kRowTilesOfGroup * arguments.column_tiles;
  const int first = tile / group_tiles * kRowTilesOfGroup;
  const int rows = min(kRowTilesOfGroup, arguments.row_tiles - first);
  const int rest = tile % group_tiles;
  return {first + rest % rows, rest / rows};
}

__device__ inline int FirstTile() { return static_cast<int>(blockIdx.x) / 2; }
__device__ inline int TileStride() { return static_cast<int>(gridDim.x) / 2; }

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_GEMM_HOPPER_CUH_
