// What the two roles of the product kernel (hopper.h) share: tile order, shared memory, the ring of
// stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_hopper.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/gemm/hopper.h"

namespace lorad::kernels::cuda {

inline constexpr int kBlockRows = 128;  // of a tile, a block
inline constexpr int kClusterRows = 2 * kBlockRows;
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 3 * kWarpgroup;
inline constexpr int kBox = 64;  // columns of a box
inline constexpr int kTermsCached = 64;
static_assert(kClusterRows == kTermTileRows);

// How W, and the factors of terms, lie in a stage.
template <Product kProduct>
inline constexpr wgmma::Contiguous kContiguousOf =
    kProduct == Product::kForward ? wgmma::Contiguous::kInner : wgmma::Contiguous::kOuter;

// Who multiplies what.
enum class Roles {
  kTogether,  // both warpgroups on one tile, 64 rows each
  kInTurns,   // a tile each: one multiplies while the other sends off its results
};

// What becomes of a tile's sums.
enum class Finish {
  kResult,          // y
  kSwiGlu,          // y is gate beside up, half of a tile's columns each; silu(gate) * up as well
  kSwiGluBackward,  // y is the gradient of SwiGLU's output; those of gate and up are formed of it
  kExponentials,    // y is exp(z - reference), with sums and maxima of the tile's columns
  kRope,            // y's heads are turned
};

// kN columns; kStages of 64 inner elements; kBuffers for boxes of results a warpgroup; kG: of
// kSwiGlu and kSwiGluBackward.
template <Roles kR, int kN, int kStages, int kBuffers, Finish kF = Finish::kResult,
          Gate kG = Gate::kSilu>
struct TileShape {
  static constexpr Gate kGate = kG;
  static constexpr Roles kRoles = kR;
  static constexpr Finish kFinish = kF;
  static constexpr int kColumns = kN;
  static constexpr int kRowBlocks = kR == Roles::kTogether ? 1 : 2;  // of 64 rows, a warpgroup
  // A tile's columns come from two places of the product's, half of them each.
  static constexpr bool kPaired = kF == Finish::kSwiGlu || kF == Finish::kRope;
  static constexpr int kOuts = kPaired ? kN / 2 : kN;  // columns of results
  static constexpr int kOutBox = kPaired ? 32 : kBox;  // of a box of them
  static constexpr int kOutBoxes = kOuts / kOutBox;
  static constexpr int kResults = kRowBlocks * kOutBoxes;  // places of boxes a warpgroup
  // Boxes made at a place: of y; gate, up and what they make; two gradients; or two halves.
  static constexpr int kParts = kF == Finish::kSwiGlu                                  ? 3
                                : kF == Finish::kSwiGluBackward || kF == Finish::kRope ? 2
                                                                                       : 1;
  static constexpr uint32_t kOutBytes = 64 * kOutBox * 2;
  static constexpr int kStageCount = kStages;
  static constexpr int kBufferCount = kBuffers;
  static constexpr int kConsumers = kR == Roles::kTogether ? 2 : 1;  // warpgroups a stage
  static constexpr uint32_t kXBytes = kBlockRows * kBox * 2;
  static constexpr uint32_t kStageBytes = kXBytes + kN * kBox * 2;
  static_assert(kResults % kBuffers == 0);
};

struct RingPosition {
  int stage;
  uint32_t parity;
};

// What the consumers must know of a stage.
struct StageNote {
  int16_t term_steps;    // in stages over x: stages over terms without a mask in this tile,
  int16_t masked_steps;  // and then over terms with one
  int32_t products;      // of 16 inner elements
  int32_t term;          // index of the stage's term; in stages over x, of the first with a mask
};

// A term as the two roles need it.
struct TermNote {
  int32_t rank;
  int32_t first_column;
  int32_t first_output;
  int32_t outputs;
  const uint32_t* mask_words;
  int32_t mask_row_words;
  float mask_scale;
};

__device__ inline TermNote NoteOf(const LowRankTerm& term) {
  return {term.rank,      term.first_column, term.first_output,
          term.outputs,   term.mask_words,   static_cast<int32_t>(term.mask_row_words),
          term.mask_scale};
}

template <typename Shape>
struct SharedMemory {
  unsigned char stages[Shape::kStageCount][Shape::kStageBytes];
  unsigned char results[2][Shape::kBufferCount][Shape::kParts][Shape::kOutBytes];
  StageNote notes[Shape::kStageCount];
  TermNote terms[kTermsCached];
  uint64_t full[Shape::kStageCount];
  uint64_t empty[Shape::kStageCount];
  uint64_t residual[2][Shape::kBufferCount];
  uint64_t terms_ready;
  RingPosition turns[2];  // where a warpgroup's tile ends, for the other
};

template <typename Shape>
__device__ TermNote TermAt(const HopperArguments& arguments, const SharedMemory<Shape>& shared,
                           int index) {
  return index < kTermsCached ? shared.terms[index] : NoteOf(arguments.terms.terms[index]);
}

template <typename Shape>
struct Ring {
  RingPosition at = {0, 0};

  __device__ void Next() {
    if (++at.stage == Shape::kStageCount) at = {0, at.parity ^ 1};
  }
};

struct TilePosition {
  int row_tile;
  int column_tile;
};

// Groups of row tiles, in each of them column by column.
__device__ inline TilePosition PositionOf(int tile, const HopperArguments& arguments) {
  const int group_tiles = arguments.group_tiles * arguments.column_tiles;
  const int first = tile / group_tiles * arguments.group_tiles;
  const int size = min(arguments.group_tiles, arguments.row_tiles - first);
  const int rest = tile % group_tiles;
  return {first + rest % size, rest / size};
}

// Of y, the tile's first.
template <typename Shape>
__device__ int FirstColumn(int column_tile, const HopperArguments& arguments) {
  if constexpr (Shape::kFinish == Finish::kRope) {
    const int head_size = arguments.rope.tables.head_size;
    const int parts = head_size / 2 / kRopePairs;  // of a head, a tile each
    return column_tile / parts * (Shape::kOuts / kRopePairs) * head_size +
           column_tile % parts * kRopePairs;
  }
  return column_tile * Shape::kOuts;
}

__device__ inline int FirstTile() { return static_cast<int>(blockIdx.x) / 2; }
__device__ inline int TileStride() { return static_cast<int>(gridDim.x) / 2; }

}  // namespace lorad::kernels::cuda
