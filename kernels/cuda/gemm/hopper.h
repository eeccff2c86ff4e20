// The products of gemm.h for compute capability 9.0, in one launch, bf16 in and out.
//
// Roofline: 2 M O K operations at the matrix units' rate; every output tile of 256 x 256 reads
// 2 * 256 * inner elements through the L2 cache.
//
// A cluster of two blocks owns a tile of 256 rows x 128 to 256 columns, 128 rows a block. In each
// block one thread keeps a ring of stages in shared memory filled by the bulk tensor copy, 64 inner
// elements a stage: its own rows of x, and half of the columns of W, which the copy delivers to
// both blocks (multicast). Two warpgroups multiply (wgmma, sums in registers): together, 64 rows of
// a tile each; or in turns, a tile each, so that one multiplies while the other adds its terms and
// sends off its results. The terms of gemm.h are further stages of the same ring: 64 columns of S
// and of the term's factor, zero where they end, of which only rank / 16 products are made. A term
// with a mask is multiplied by single warps, 16 columns at a time, and added where its mask says.
// Results leave through shared memory by the copy engine. Blocks are persistent; tiles are ordered
// in groups of rows so that those at work share their inputs in the L2 cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/gemm/gemm.h"

namespace lorad::kernels::cuda {

// What the kernel is given: all sizes in elements.
struct HopperArguments {
  TensorMap x;  // boxes 128 rows x 64
  // 64 x 64 (kInputGradient); kForward: 32 x 64 (kRope192), or half the tile's columns x 64
  TensorMap weight;
  TensorMap coefficients;  // 128 x 64
  TensorMap residual;      // 64 x 64
  TensorMap y;             // 64 x 64; kRope192: 64 x 32
  // HopperTile::kSwiGlu192: written, as y is where gate(g) * up goes, 64 x 32.
  // kSwiGluBackward192: read, 64 x 64, and their gradients written.
  TensorMap gate, up;
  TensorMap dgate, dup;
  LowRankTable terms;  // terms null: none
  ExponentialTables exponentials;
  TargetTables target_rows;
  const void* weight_rows;  // where there are target_rows: W, bf16
  int64_t weight_stride;
  const void* bias;  // bf16 [columns], or null
  int32_t has_residual;
  int32_t awaits_late;  // 1: the kernel before this one makes the coefficients and may still run
  int32_t rows;
  int32_t columns;       // of y
  int32_t inner_steps;   // of 64 inner elements
  int32_t row_tiles;     // of 256 rows
  int32_t column_tiles;  // of the tile's columns
  int32_t group_tiles;   // tiles are ordered in groups of so many rows of tiles
  GemmRope rope;
};

inline constexpr int kHopperStepColumns = 64;  // inner elements a stage
// Of the factor of a term of kForward: tiles whose columns are not in one piece have pieces of it.
// Of W for kRope192.
inline constexpr int kFactorBoxRows = 32;

// Variants differ in speed alone: equal bits.
enum class HopperTile : uint8_t {
  kTogether256,  // both warpgroups on one tile of 256 columns
  kTogether128,
  kInTurns192,  // a tile each, 192 columns
  kInTurns128,
  // The same for GemmArguments::gated and ::gate_up, and for those alone. A tile's last step moves
  // more than y and takes exponentials, so it must pass under the products of another tile.
  kSwiGlu192,  // 96 columns of gate and 96 of up
  kSwiGluBackward192,
  kExponentials192,  // for GemmArguments::exponentials alone: a tile is a part
  kRope192,          // for GemmArguments::rope alone: 96 columns of lower and 96 of upper halves
  // kSwiGlu192 and kSwiGluBackward192 with GELU: kernels of their own, for a branch would cost
  // both.
  kGeGlu192,
  kGeGluBackward192,
};
constexpr bool IsSwiGlu(HopperTile tile) {
  return tile == HopperTile::kSwiGlu192 || tile == HopperTile::kGeGlu192;
}
constexpr bool IsSwiGluBackward(HopperTile tile) {
  return tile == HopperTile::kSwiGluBackward192 || tile == HopperTile::kGeGluBackward192;
}
static_assert(kPartColumns == 192);
// Those that make y.
inline constexpr HopperTile kHopperTiles[] = {HopperTile::kTogether256, HopperTile::kTogether128,
                                              HopperTile::kInTurns192, HopperTile::kInTurns128};
constexpr int ColumnsOf(HopperTile tile) {
  constexpr int kColumns[] = {256, 128, 192, 128, 192, 192, 192, 192, 192, 192};
  return kColumns[static_cast<int>(tile)];
}
constexpr bool InTurns(HopperTile tile) { return tile >= HopperTile::kInTurns192; }

// kRope192: pair d of a head of D elements is its elements d and d + D/2. A tile is of the same
// pairs of three heads, turned by the same angles: the lower elements of all three, then the upper.
inline constexpr int kRopePairs = 32;

// `clusters`: at most this many pairs of blocks.
void LaunchHopper(Product product, HopperTile tile, const HopperArguments& arguments, int clusters,
                  cudaStream_t stream);

}  // namespace lorad::kernels::cuda
