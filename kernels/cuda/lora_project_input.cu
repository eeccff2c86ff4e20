// S = s (D o x) A^T, see lora_kernels.h.
//
// A block takes a chunk of 256 rows and up to 64 rank columns of one party and walks over the
// features in steps of 64: x [256, 64] and A [ranks, 64] come through a ring in shared memory. Each
// of 8 warps multiplies 32 rows. The inner index may be permuted if both operands are: a lane reads
// whole 16-byte pieces, so that the 8 features of a piece, which are one Philox call, are in one
// lane's registers.
#include <algorithm>
#include <cassert>

#include "kernels/cuda/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lora_slices.cuh"

namespace lorad::kernels::cuda {
namespace {

struct Arguments {
  LoraTables tables;
  const __nv_bfloat16* x;
  int64_t x_stride;
  __nv_bfloat16* own;
  int64_t own_stride;
  __nv_bfloat16* shared;
  int64_t shared_stride;
  LoraScratch scratch;
  int32_t slices;
  int32_t parallel;  // 1: a block a slice
};

template <int kUnits>
constexpr int StageBytes() {
  return kRowBytes + kUnits * kUnitRanks * kStepFeatures * 2;
}

// Lanes 2i and 2i + 1 of g take rows whose places differ in the piece's high bit: no conflicts.
__device__ int RowOf(int g) { return (g >> 1) + 4 * (g & 1); }

// Copies of the steps of x and A into one stage of the ring. A thread copies the same piece of
// every 32nd row.
template <int kUnits>
class Loader {
 public:
  __device__ Loader(const Arguments& arguments, const LoraInputItem& item)
      : x_stride_(arguments.x_stride), inputs_(arguments.tables.inputs), rows_(item.rows.rows) {
    row_ = static_cast<int>(threadIdx.x) / kStepPieces;
    piece_ = static_cast<int>(threadIdx.x) % kStepPieces;
    x_ = arguments.x + (int64_t{item.rows.first_row} + row_) * x_stride_ + 8 * piece_;
#pragma unroll
    for (int i = 0; i < kFactorCopies; ++i) {
      const int rank = row_ + i * kRowsAtOnce;
      const int unit = rank / kUnitRanks;
      a_[i] = nullptr;
      if (unit >= item.units || rank >= kUnits * kUnitRanks) continue;
      const LoraUnit& u = arguments.tables.units[item.first_unit + unit];
      const auto* a = static_cast<const __nv_bfloat16*>(arguments.tables.pairs[u.pair].a);
      a_[i] = a + (int64_t{u.first_rank} + rank % kUnitRanks) * inputs_ + 8 * piece_;
    }
  }

  __device__ void Load(int step, uint32_t stage) const {
    const int feature = step * kStepFeatures;
    const bool inside = feature + 8 * piece_ < inputs_;
    const uint32_t to = stage + TileOffset<kStepPieces>(row_, piece_);
#pragma unroll
    for (int i = 0; i < kChunkRows / kRowsAtOnce; ++i) {
      const bool valid = inside && row_ + i * kRowsAtOnce < rows_;
      ptx::CopyAsync(to + i * kRowsAtOnce * kStepPieces * 16,
                     valid ? x_ + i * kRowsAtOnce * x_stride_ + feature : x_, valid);
    }
#pragma unroll
    for (int i = 0; i < kFactorCopies; ++i) {
      if (a_[i] == nullptr) continue;
      ptx::CopyAsync(to + kRowBytes + i * kRowsAtOnce * kStepPieces * 16,
                     inside ? a_[i] + feature : a_[i], inside);
    }
  }

 private:
  static constexpr int kRowsAtOnce =
      kChunkThreads / kStepPieces;  // 32, a multiple of the swizzle's 8
  static constexpr int kFactorCopies = (kUnits * kUnitRanks + kRowsAtOnce - 1) / kRowsAtOnce;
  const __nv_bfloat16* x_;
  const __nv_bfloat16* a_[kFactorCopies];
  const int64_t x_stride_;
  const int inputs_;
  const int rows_;
  int row_;
  int piece_;
};

__device__ uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// One step of 64 features from a stage. words: word0 and threshold of each unit's pair.
template <int kUnits, bool kDropout>
__device__ void MultiplyStep(uint32_t stage, const LoraInputItem& item, const uint32_t* word0,
                             const uint32_t* threshold, int feature, Sums<kUnits>& sums) {
  const int lane = threadIdx.x % kWarpLanes;
  const int first_row = static_cast<int>(threadIdx.x) / kWarpLanes * (16 * kRowTiles);
  const int row = RowOf(lane / 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int piece = lane % 4 + 4 * half;
    uint4 raw[kRowTiles][2];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int at = first_row + 16 * tile + 8 * high + row;
        raw[tile][high] = ptx::LoadShared(stage + TileOffset<kStepPieces>(at, piece));
      }
    }
    uint4 v[kRowTiles][2];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit >= item.units) break;
      if (unit == 0 || (kDropout && word0[unit] != word0[unit - 1])) {
        const uint32_t twice = threshold[unit] * 0x10001u;
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          uint4 value = raw[i / 2][i % 2];
          if (kDropout && twice != 0) {
            const int at = first_row + 16 * (i / 2) + 8 * (i % 2) + row;
            value =
                Select(value, DropoutLanes(item.rows, word0[unit], at, feature + 8 * piece), twice);
          }
          v[i / 2][i % 2] = value;
        }
      }
#pragma unroll
      for (int n = 2 * unit; n < 2 * unit + 2; ++n) {
        const uint4 a =
            ptx::LoadShared(stage + kRowBytes + TileOffset<kStepPieces>(8 * n + row, piece));
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            ptx::Multiply(sums.c[tile][n], Word(v[tile][0], i), Word(v[tile][1], i),
                          Word(v[tile][0], i + 1), Word(v[tile][1], i + 1), Word(a, i),
                          Word(a, i + 1));
          }
        }
      }
    }
  }
}

template <int kUnits>
__device__ void WriteSums(const Arguments& arguments, const LoraInputItem& item,
                          const Sums<kUnits>& sums) {
  const int lane = threadIdx.x % kWarpLanes;
  const int first_row =
      static_cast<int>(threadIdx.x) / kWarpLanes * (16 * kRowTiles) + RowOf(lane / 4);
#pragma unroll
  for (int n = 0; n < 2 * kUnits; ++n) {
    if (n / 2 >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + n / 2].pair];
    const bool drops = item.rows.train != 0 && pair.threshold != 0;
    const float scale = drops ? pair.scale * pair.keep_scale : pair.scale;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + 16 * tile + 8 * (i / 2);
        if (row >= item.rows.rows) continue;
        const int column = 8 * n + RowOf(2 * (lane % 4) + i % 2);
        const __nv_bfloat16 value = __float2bfloat16_rn(scale * sums.c[tile][n][i]);
        const int64_t at = int64_t{item.rows.first_row} + row;
        if (arguments.own != nullptr) {
          arguments.own[at * arguments.own_stride + item.own_column + column] = value;
        }
        if (arguments.shared != nullptr) {
          arguments.shared[at * arguments.shared_stride + item.column + column] = value;
        }
      }
    }
  }
}

template <int kUnits, bool kDropout, int kStages>
__global__ void __launch_bounds__(kChunkThreads, kUnits == 1 && !kDropout ? 2 : 1)
    ProjectInputKernel(const Arguments arguments) {
  ptx::TakeTurn();
  if (static_cast<int>(blockIdx.y) >= arguments.tables.input_count) return;
  extern __shared__ __align__(128) unsigned char memory[];
  const LoraInputItem item = arguments.tables.input_items[blockIdx.y];
  const int slice = arguments.parallel != 0 ? static_cast<int>(blockIdx.x) : 0;
  if (slice == 0) {
    WriteZeros(item, arguments.shared != nullptr, arguments.shared, arguments.shared_stride,
               arguments.tables.columns);
  }
  if (item.units == 0) return;
  uint32_t word0[kUnits];
  uint32_t threshold[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + unit].pair];
    word0[unit] = pair.word0;
    threshold[unit] = item.rows.train != 0 ? pair.threshold : 0;
  }

  const int steps = (arguments.tables.inputs + kStepFeatures - 1) / kStepFeatures;
  const int slice_steps = InputSliceFeatures(arguments.tables.inputs) / kStepFeatures;
  const int begin = slice * slice_steps;
  const int end = arguments.parallel != 0 ? min(steps, begin + slice_steps) : steps;
  const Loader<kUnits> loader(arguments, item);
  Total<kUnits> total = {};
  Sums<kUnits> sums = {};
  Walk<kStages, StageBytes<kUnits>()>(
      begin, end, ptx::SharedAddress(memory),
      [&](int step, uint32_t stage) { loader.Load(step, stage); },
      [&](int step, uint32_t stage) {
        MultiplyStep<kUnits, kDropout>(stage, item, word0, threshold, step * kStepFeatures, sums);
        if ((step + 1) % slice_steps == 0 || step + 1 == end) AddSlice(sums, total);
      });
  const bool fold = arguments.parallel != 0 && arguments.slices > 1;
  if (fold && !FoldSlices(total, arguments.scratch, static_cast<int>(blockIdx.y), slice,
                          arguments.slices, arguments.slices)) {
    return;
  }
  WriteSums(arguments, item, total.sums);
}

template <int kUnits, bool kDropout>
void Launch(Arguments& arguments, cudaStream_t stream) {
  // Two blocks a multiprocessor where 3 stages of each fit into its 227 KB, else one.
  constexpr int kStages = kUnits == 1 && !kDropout ? 3 : 5;
  constexpr int kBytes = kStages * StageBytes<kUnits>();
  const int items = arguments.tables.input_count;
  arguments.parallel =
      HaveRoomForSlices<kUnits>(arguments.scratch, items, arguments.slices) ? 1 : 0;
  const dim3 grid(static_cast<unsigned>(arguments.parallel != 0 ? arguments.slices : 1),
                  static_cast<unsigned>(items));
  LaunchKernel(ProjectInputKernel<kUnits, kDropout, kStages>,
               {.grid = grid, .threads = kChunkThreads, .shared_bytes = kBytes, .early = true},
               stream, arguments);
}

template <bool kDropout>
void LaunchUnits(Arguments& arguments, cudaStream_t stream) {
  if (arguments.tables.input_units <= 1) return Launch<1, kDropout>(arguments, stream);
  if (arguments.tables.input_units == 2) return Launch<2, kDropout>(arguments, stream);
  Launch<4, kDropout>(arguments, stream);
}

}  // namespace

void ProjectInput(const LoraTables& tables, const TensorView& x, const TensorView& own,
                  const TensorView& shared, const LoraScratch& scratch, cudaStream_t stream) {
  if (tables.input_count == 0) return;
  assert(x.dtype == DType::kBfloat16 && x.columns == tables.inputs && x.row_stride % 8 == 0);
  const int slice = InputSliceFeatures(tables.inputs);
  Arguments arguments = {.tables = tables,
                         .x = static_cast<const __nv_bfloat16*>(x.data),
                         .x_stride = x.row_stride,
                         .own = static_cast<__nv_bfloat16*>(own.data),
                         .own_stride = own.row_stride,
                         .shared = static_cast<__nv_bfloat16*>(shared.data),
                         .shared_stride = shared.row_stride,
                         .scratch = scratch,
                         .slices = (tables.inputs + slice - 1) / slice,
                         .parallel = 0};
  if (tables.any_dropout != 0) return LaunchUnits<true>(arguments, stream);
  LaunchUnits<false>(arguments, stream);
}

}  // namespace lorad::kernels::cuda
