// dA += dS^T (D o x), see lora_kernels.h.
//
// A block takes a chunk of 256 rows, up to 64 ranks of one party and 512 features; dS [256, ranks]
// lies in shared memory. A warp takes 64 features of its own and walks over the rows, 16 at a time,
// which come through a ring of its own: no barriers. A lane reads pieces of 8 features (one Philox
// call) of four rows and pairs the rows up in registers, as the matrix units want them: feature f
// of piece g is column g of the f-th product.
#include <cassert>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lora_device.cuh"
#include "kernels/cuda/lora_kernels.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kRows = 256;
constexpr int kWarpFeatures = 64;
constexpr int kBlockFeatures = kWarps * kWarpFeatures;
constexpr int kPieces = kWarpFeatures / 8;
constexpr int kStepRows = 16;
constexpr int kStages = 6;
constexpr int kStageBytes = kStepRows * kWarpFeatures * 2;
constexpr int kWarpBytes = kStages * kStageBytes;
constexpr int kTransposePitch = kWarpFeatures + 4;  // floats
static_assert(kUnitRanks * kTransposePitch * 4 <= kWarpBytes);

struct Arguments {
  LoraTables tables;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const __nv_bfloat16* ds;
  int64_t ds_stride;
  int64_t mask_row_bytes;
};

template <int kUnits>
constexpr int CoefficientBytes() {
  return kRows * kUnits * kUnitRanks * 2;
}

template <int kUnits>
__device__ void LoadCoefficients(const Arguments& arguments, const LoraInputItem& item,
                                 uint32_t tile) {
  constexpr int kTilePieces = 2 * kUnits;
  const __nv_bfloat16* ds =
      arguments.ds + int64_t{item.rows.first_row} * arguments.ds_stride + item.column;
  for (int i = threadIdx.x; i < kRows * kTilePieces; i += kThreads) {
    const int row = i / kTilePieces;
    const int piece = i % kTilePieces;
    const bool valid = row < item.rows.rows && piece < 2 * item.units;
    CopyAsync(tile + TileOffset<kTilePieces>(row, piece),
              valid ? ds + row * arguments.ds_stride + 8 * piece : ds, valid);
  }
}

// Rows [16 step, 16 step + 16) of the warp's features.
__device__ void LoadRows(const Arguments& arguments, const LoraInputItem& item, int first_feature,
                         int step, uint32_t stage) {
  const int lane = threadIdx.x % kWarpLanes;
  const int piece = lane % kPieces;
  const int feature = first_feature + 8 * piece;
#pragma unroll
  for (int i = 0; i < kStepRows / 4; ++i) {
    const int at = 4 * i + lane / kPieces;
    const int row = kStepRows * step + at;
    const bool valid = row < item.rows.rows && feature < arguments.tables.inputs;
    const __nv_bfloat16* from =
        arguments.x +
        (valid ? (int64_t{item.rows.first_row} + row) * arguments.x_stride + feature : 0);
    CopyAsync(stage + TileOffset<kPieces>(at, piece), from, valid);
  }
}

struct Mask {
  uint32_t word0;
  uint32_t threshold;
  uint8_t* bytes;  // null: nothing is dropped
};

// Draws the mask of the lane's four pieces, applies it and leaves its bits.
__device__ void Drop(const Arguments& arguments, const LoraInputItem& item, const Mask& mask,
                     int step, int feature, const uint4 (&raw)[4], uint4 (&v)[4]) {
  const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = kStepRows * step + 2 * (lane % 4) + i % 2 + 8 * (i / 2);
    const PhiloxCounter lanes = DropoutLanes(item.rows, mask.word0, row, feature);
    v[i] = Select(raw[i], lanes, mask.threshold * 0x10001u);
    if (row < item.rows.rows && feature < arguments.tables.inputs) {
      mask.bytes[(int64_t{item.rows.first_row} + row) * arguments.mask_row_bytes + feature / 8] =
          static_cast<uint8_t>(MaskByte(lanes, mask.threshold));
    }
  }
}

// b[f]: the pairs (row 2q, row 2q + 1) and (row 2q + 8, row 2q + 9) of feature f.
__device__ void PairRows(const uint4 (&v)[4], uint32_t (&b)[8][2]) {
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const uint4& even = v[2 * high];
    const uint4& odd = v[2 * high + 1];
    b[0][high] = __byte_perm(even.x, odd.x, 0x5410);
    b[1][high] = __byte_perm(even.x, odd.x, 0x7632);
    b[2][high] = __byte_perm(even.y, odd.y, 0x5410);
    b[3][high] = __byte_perm(even.y, odd.y, 0x7632);
    b[4][high] = __byte_perm(even.z, odd.z, 0x5410);
    b[5][high] = __byte_perm(even.z, odd.z, 0x7632);
    b[6][high] = __byte_perm(even.w, odd.w, 0x5410);
    b[7][high] = __byte_perm(even.w, odd.w, 0x7632);
  }
}

template <int kUnits, bool kDropout>
__device__ void MultiplyStep(const Arguments& arguments, const LoraInputItem& item,
                             const Mask (&masks)[kUnits], uint32_t stage, uint32_t coefficients,
                             int step, int first_feature, float (&c)[kUnits][8][4]) {
  const int lane = threadIdx.x % kWarpLanes;
  const int piece = lane / 4;
  uint4 raw[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 2 * (lane % 4) + i % 2 + 8 * (i / 2);
    raw[i] = LoadShared(stage + TileOffset<kPieces>(row, piece));
  }
  uint32_t b[8][2];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    if (kDropout && masks[unit].bytes != nullptr) {
      if (unit == 0 || masks[unit].word0 != masks[unit - 1].word0) {
        uint4 v[4];
        Drop(arguments, item, masks[unit], step, first_feature + 8 * piece, raw, v);
        PairRows(v, b);
      }
    } else if (unit == 0 || kDropout) {
      PairRows(raw, b);
    }
    uint32_t a[4];
    LoadMatricesTransposed(
        coefficients + TileOffset<2 * kUnits>(kStepRows * step + lane % 8 + lane / 16 * 8,
                                              2 * unit + lane / 8 % 2),
        a);
#pragma unroll
    for (int f = 0; f < 8; ++f) Multiply(c[unit][f], a[0], a[1], a[2], a[3], b[f][0], b[f][1]);
  }
}

// Adds one unit's gradients: through shared memory, so that lanes add neighbours.
__device__ bool AddUnit(const Arguments& arguments, const LoraUnit& unit, int first_feature,
                        const float (&c)[8][4], float* tile) {
  const int lane = threadIdx.x % kWarpLanes;
  const LoraPair& pair = arguments.tables.pairs[unit.pair];
  const int64_t inputs = arguments.tables.inputs;
  float* to = tile + lane / 4 * kTransposePitch + lane % 4 * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int f = 0; f < 8; ++f) to[i / 2 * 8 * kTransposePitch + i % 2 * 8 + f] = c[f][i];
  }
  __syncwarp();
  bool finite = true;
  for (int r = 0; r < kUnitRanks && unit.first_rank + r < pair.rank; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int f = lane + half * kWarpLanes;
      if (first_feature + f >= inputs) continue;
      finite &= AddFixed(pair.da + (int64_t{unit.first_rank} + r) * inputs + first_feature + f,
                         pair.mask != nullptr ? pair.keep_scale * tile[r * kTransposePitch + f]
                                              : tile[r * kTransposePitch + f]);
    }
  }
  __syncwarp();
  return finite;
}

template <int kUnits, bool kDropout>
__global__ void __launch_bounds__(kThreads, kUnits == 1 ? 2 : 1)
    GradientAKernel(const Arguments arguments) {
  if (static_cast<int>(blockIdx.y) >= arguments.tables.input_count) return;
  extern __shared__ __align__(128) unsigned char memory[];
  const LoraInputItem item = arguments.tables.input_items[blockIdx.y];
  if (item.units == 0 || item.rows.train == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int first_feature = static_cast<int>(blockIdx.x) * kBlockFeatures + warp * kWarpFeatures;
  const uint32_t coefficients = SharedAddress(memory);
  unsigned char* ring_memory = memory + CoefficientBytes<kUnits>() + warp * kWarpBytes;
  const uint32_t ring = SharedAddress(ring_memory);
  const int steps = (item.rows.rows + kStepRows - 1) / kStepRows;

  LoadCoefficients<kUnits>(arguments, item, coefficients);
  CommitCopies();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < steps) LoadRows(arguments, item, first_feature, i, ring + i * kStageBytes);
    CommitCopies();
  }
  Mask masks[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + unit].pair];
    masks[unit] = {pair.word0, pair.threshold, pair.mask};
  }
  WaitCopies<kStages - 1>();
  __syncthreads();  // dS is there
  if (first_feature >= arguments.tables.inputs) return;

  float c[kUnits][8][4] = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    WaitCopies<kStages - 2>();
    __syncwarp();
    const int next = stage == 0 ? kStages - 1 : stage - 1;
    if (step + kStages - 1 < steps) {
      LoadRows(arguments, item, first_feature, step + kStages - 1, ring + next * kStageBytes);
    }
    CommitCopies();
    MultiplyStep<kUnits, kDropout>(arguments, item, masks, ring + stage * kStageBytes, coefficients,
                                   step, first_feature, c);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  WaitCopies<0>();
  __syncwarp();
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    const LoraUnit& u = arguments.tables.units[item.first_unit + unit];
    if (!AddUnit(arguments, u, first_feature, c[unit], reinterpret_cast<float*>(ring_memory))) {
      *arguments.tables.pairs[u.pair].overflow = 1;
    }
  }
}

template <int kUnits, bool kDropout>
void Launch(const Arguments& arguments, cudaStream_t stream) {
  constexpr int kBytes = CoefficientBytes<kUnits>() + kWarps * kWarpBytes;
  const auto kernel = GradientAKernel<kUnits, kDropout>;
  LORAD_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(
      static_cast<unsigned>((arguments.tables.inputs + kBlockFeatures - 1) / kBlockFeatures),
      static_cast<unsigned>(arguments.tables.input_count));
  kernel<<<grid, kThreads, kBytes, stream>>>(arguments);
  LORAD_CUDA_LAUNCHED();
}

template <bool kDropout>
void LaunchUnits(const Arguments& arguments, cudaStream_t stream) {
  if (arguments.tables.block_units <= 1) return Launch<1, kDropout>(arguments, stream);
  if (arguments.tables.block_units == 2) return Launch<2, kDropout>(arguments, stream);
  Launch<4, kDropout>(arguments, stream);
}

}  // namespace

void GradientA(const LoraTables& tables, const TensorView& x, const TensorView& ds,
               int64_t mask_row_bytes, cudaStream_t stream) {
  if (tables.input_count == 0 || tables.any_train == 0) return;
  assert(x.dtype == DType::kBfloat16 && x.columns == tables.inputs && x.row_stride % 8 == 0);
  const Arguments arguments = {.tables = tables,
                               .x = static_cast<const __nv_bfloat16*>(x.data),
                               .x_stride = x.row_stride,
                               .ds = static_cast<const __nv_bfloat16*>(ds.data),
                               .ds_stride = ds.row_stride,
                               .mask_row_bytes = mask_row_bytes};
  if (tables.any_dropout != 0) return LaunchUnits<true>(arguments, stream);
  LaunchUnits<false>(arguments, stream);
}

}  // namespace lorad::kernels::cuda
