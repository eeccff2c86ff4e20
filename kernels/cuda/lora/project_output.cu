// dS = s dy B and dB += dy^T S in one pass over dy, see kernels.h.
//
// A team of 8 warps takes a chunk of 256 rows, up to 64 rank columns of one pair and a slice of its
// outputs, in steps of 64 outputs: dy [256, 64] and B [64, ranks] come through a ring in shared
// memory, S [256, ranks] stays there. Each warp multiplies 32 rows for dS, summed over all steps,
// and then 16 outputs by half the ranks for dB, complete after 256 rows, so added at once. Up to 16
// ranks a block is two teams. Where their chunks are of one pair, they add up their dB first, each
// for half of the outputs: half as many 8-byte additions in the L2 cache.
#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/lora/slices.cuh"

namespace lorad::kernels::cuda {
namespace {

constexpr int kChunkThreads = 256;
constexpr int kRowTiles = 2;  // m16 tiles of a warp
constexpr int kRowBytes = kChunkRows * kStepRowBytes;
static_assert(kRowTiles * 16 * (kChunkThreads / kWarpLanes) == kChunkRows);

constexpr int kTeamsMax = 2;

__device__ int Team() { return static_cast<int>(threadIdx.x) / kChunkThreads; }
__device__ int TeamThread() { return static_cast<int>(threadIdx.x) % kChunkThreads; }
__device__ int TeamWarp() { return TeamThread() / kWarpLanes; }

struct Arguments {
  LoraTables tables;
  const __nv_bfloat16* dy;
  int64_t dy_stride;
  const __nv_bfloat16* own;
  int64_t own_stride;
  __nv_bfloat16* ds;
  int64_t ds_stride;
  LoraScratch scratch;
  int32_t slices;  // of the widest pair
  int32_t parallel;
};

template <int kUnits>
constexpr int FactorBytes() {
  return kStepFeatures * kUnits * kUnitRanks * 2;
}
template <int kUnits>
constexpr int StageBytes() {
  return kRowBytes + FactorBytes<kUnits>();
}
template <int kUnits>
constexpr int CoefficientBytes() {
  return kChunkRows * kUnits * kUnitRanks * 2;
}

template <int kUnits, int kStages>
constexpr int TeamBytes() {
  return CoefficientBytes<kUnits>() + kStages * StageBytes<kUnits>();
}
// What the teams of a block tell each other: two values a thread.
constexpr int kExchangeBytes = kTeamsMax * kChunkThreads * static_cast<int>(sizeof(float2));

// Copies of steps of dy and B.
template <int kUnits>
class Loader {
 public:
  __device__ Loader(const Arguments& arguments, const LoraOutputItem& item, const LoraPair& pair)
      : dy_stride_(arguments.dy_stride),
        b_stride_(pair.b_stride),
        outputs_(pair.outputs),
        rows_(item.rows.rows),
        pieces_(2 * item.units) {
    const int thread = TeamThread();
    row_ = thread / kStepPieces;
    piece_ = thread % kStepPieces;
    dy_ = arguments.dy + (int64_t{item.rows.first_row} + row_) * dy_stride_ + pair.first_output +
          8 * piece_;
    output_ = thread / kFactorPieces;
    factor_piece_ = thread % kFactorPieces;
    b_ = static_cast<const __nv_bfloat16*>(pair.b) + item.first_rank + 8 * factor_piece_;
  }

  __device__ void Load(int step, uint32_t stage) const {
    const int first = step * kStepFeatures;
    const bool inside = first + 8 * piece_ < outputs_;
    const uint32_t to = stage + TileOffset<kStepPieces>(row_, piece_);
#pragma unroll
    for (int i = 0; i < kChunkRows / kRowsAtOnce; ++i) {
      const bool valid = inside && row_ + i * kRowsAtOnce < rows_;
      ptx::CopyAsync(to + i * kRowsAtOnce * kStepPieces * 16,
                     valid ? dy_ + i * kRowsAtOnce * dy_stride_ + first : dy_, valid);
    }
#pragma unroll
    for (int i = 0; i < kFactorCopies; ++i) {
      const int output = output_ + i * kOutputsAtOnce;
      if (output >= kStepFeatures || factor_piece_ >= pieces_) continue;
      const bool valid = first + output < outputs_;
      ptx::CopyAsync(stage + kRowBytes + TileOffset<kFactorPieces>(output, factor_piece_),
                     valid ? b_ + (first + output) * b_stride_ : b_, valid);
    }
  }

 private:
  static constexpr int kRowsAtOnce = kChunkThreads / kStepPieces;
  static constexpr int kFactorPieces = 2 * kUnits;
  static constexpr int kOutputsAtOnce = kChunkThreads / kFactorPieces;
  static constexpr int kFactorCopies = (kStepFeatures + kOutputsAtOnce - 1) / kOutputsAtOnce;
  const __nv_bfloat16* dy_;
  const __nv_bfloat16* b_;
  const int64_t dy_stride_;
  const int64_t b_stride_;
  const int outputs_;
  const int rows_;
  const int pieces_;
  int row_;
  int piece_;
  int output_;
  int factor_piece_;
};

template <int kUnits>
__device__ void LoadCoefficients(const Arguments& arguments, const LoraOutputItem& item,
                                 const LoraPair& pair, uint32_t tile) {
  constexpr int kTilePieces = 2 * kUnits;
  const __nv_bfloat16* s = arguments.own + int64_t{item.rows.first_row} * arguments.own_stride +
                           pair.own_column + item.first_rank;
  for (int i = TeamThread(); i < kChunkRows * kTilePieces; i += kChunkThreads) {
    const int row = i / kTilePieces;
    const int piece = i % kTilePieces;
    const bool valid = row < item.rows.rows && piece < 2 * item.units;
    ptx::CopyAsync(tile + TileOffset<kTilePieces>(row, piece),
                   valid ? s + row * arguments.own_stride + 8 * piece : s, valid);
  }
}

// dS of the warp's 32 rows.
template <int kUnits>
__device__ void MultiplyRows(uint32_t stage, int units, Sums<kUnits, kRowTiles>& sums) {
  const int lane = threadIdx.x % kWarpLanes;
  const int first_row = TeamWarp() * (16 * kRowTiles);
#pragma unroll
  for (int k = 0; k < kStepFeatures / 16; ++k) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      ptx::LoadMatrices(
          stage + TileOffset<kStepPieces>(first_row + 16 * tile + lane % 16, 2 * k + lane / 16),
          a[tile]);
    }
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit >= units) break;
      uint32_t b[4];
      ptx::LoadMatricesTransposed(
          stage + kRowBytes + TileOffset<2 * kUnits>(16 * k + lane % 16, 2 * unit + lane / 16), b);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        ptx::Multiply(sums.c[tile][2 * unit], a[tile][0], a[tile][1], a[tile][2], a[tile][3], b[0],
                      b[1]);
        ptx::Multiply(sums.c[tile][2 * unit + 1], a[tile][0], a[tile][1], a[tile][2], a[tile][3],
                      b[2], b[3]);
      }
    }
  }
}

// dB of 16 outputs of the step and half the ranks, over the chunk's rows.
template <int kUnits>
__device__ void MultiplyOutputs(uint32_t stage, uint32_t coefficients, int units, int row_steps,
                                float (&c)[kUnits][4]) {
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = TeamWarp();
  const int first_piece = warp % 4 * 2;
  const int first_tile = warp / 4 * kUnits;
#pragma unroll 4
  for (int k = 0; k < row_steps; ++k) {
    uint32_t a[4];
    ptx::LoadMatricesTransposed(stage + TileOffset<kStepPieces>(16 * k + lane % 8 + lane / 16 * 8,
                                                                first_piece + lane / 8 % 2),
                                a);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if ((first_tile + i) / 2 >= units) break;
      uint32_t b[2];
      ptx::LoadMatricesTransposed(
          coefficients + TileOffset<2 * kUnits>(16 * k + lane % 16, first_tile + i), b);
      ptx::Multiply(c[i], a[0], a[1], a[2], a[3], b[0], b[1]);
    }
  }
}

// Values of a tile of 16 outputs and 8 ranks: of ranks lane % 4 and 4 + lane % 4, and of outputs
// lane / 4 and 8 + lane / 4.
struct TileValues {
  float of[2][2];
};

// Lanes exchange values so that the four of a row have 32 bytes in a piece to add.
__device__ TileValues InRows(const float (&c)[4]) {
  const int lane = threadIdx.x % kWarpLanes;
  TileValues values;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int source = lane / 4 * 4 + half * 2 + lane % 4 / 2;
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const float even = __shfl_sync(0xFFFFFFFF, c[2 * high], source);
      const float odd = __shfl_sync(0xFFFFFFFF, c[2 * high + 1], source);
      values.of[half][high] = lane % 2 == 0 ? even : odd;
    }
  }
  return values;
}

// Adds what MultiplyOutputs made.
template <int kUnits>
__device__ bool AddOutputs(const LoraOutputItem& item, const LoraPair& pair, int first_output,
                           const float (&c)[kUnits][4]) {
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = TeamWarp();
  const int first_tile = warp / 4 * kUnits;
  const int output = first_output + warp % 4 * 16 + lane / 4;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if ((first_tile + i) / 2 >= item.units) break;
    const TileValues values = InRows(c[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int rank = item.first_rank + 8 * (first_tile + i) + 4 * half + lane % 4;
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int row = output + 8 * high;
        finite &= AddFixed(pair.db + int64_t{row} * pair.rank + rank, values.of[half][high],
                           row < pair.outputs && rank < pair.rank);
      }
    }
  }
  return finite;
}

// The same for both teams' chunks, each team for 8 of the 16 outputs of a warp. `exchange`: not
// written again before the next barrier of the block.
__device__ bool AddOutputsTogether(const LoraOutputItem& item, const LoraPair& pair,
                                   int first_output, const float (&c)[1][4], float2* exchange) {
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = TeamWarp();
  const bool high = Team() != 0;
  const TileValues values = InRows(c[0]);
  exchange[threadIdx.x] = high ? make_float2(values.of[0][0], values.of[1][0])
                               : make_float2(values.of[0][1], values.of[1][1]);
  ptx::SyncThreads(1 + warp, kTeamsMax * kWarpLanes);  // with the same warp of the other team
  const float2 theirs = exchange[threadIdx.x ^ kChunkThreads];
  const int row = first_output + warp % 4 * 16 + lane / 4 + (high ? 8 : 0);
  bool finite = true;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int rank = item.first_rank + 8 * (warp / 4) + 4 * half + lane % 4;
    const bool wanted = row < pair.outputs && rank < pair.rank;
    long long quanta = 0;
    bool fits = AddFixed(quanta, high ? values.of[half][1] : values.of[half][0]);
    fits &= AddFixed(quanta, half == 0 ? theirs.x : theirs.y);
    AddQuanta(pair.db + int64_t{row} * pair.rank + rank, quanta, wanted);
    finite &= fits || !wanted;
  }
  return finite;
}

template <int kUnits>
__device__ void WriteSums(const Arguments& arguments, const LoraOutputItem& item,
                          const LoraPair& pair, const Sums<kUnits, kRowTiles>& sums) {
  const int lane = threadIdx.x % kWarpLanes;
  const int first_row = TeamWarp() * (16 * kRowTiles) + lane / 4;
#pragma unroll
  for (int n = 0; n < 2 * kUnits; ++n) {
    if (n / 2 >= item.units) break;
    const int column = pair.column + item.first_rank + 8 * n + 2 * (lane % 4);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int row = first_row + 16 * tile + 8 * high;
        if (row >= item.rows.rows) continue;
        const float* c = &sums.c[tile][n][2 * high];
        *reinterpret_cast<__nv_bfloat162*>(
            arguments.ds + (int64_t{item.rows.first_row} + row) * arguments.ds_stride + column) =
            __floats2bfloat162_rn(pair.scale * c[0], pair.scale * c[1]);
      }
    }
  }
}

// A team's work.
struct Work {
  int index;  // of the item; -1: none, the rows of `item` are none
  bool together;
  LoraOutputItem item;
};

template <int kTeams>
__device__ Work WorkOf(const LoraTables& tables) {
  if (kTeams == 1) {
    const int index = static_cast<int>(blockIdx.y);
    return {index, false, tables.output_items[index]};
  }
  const LoraOutputPair both = tables.output_pairs[blockIdx.y];
  const int index = Team() == 0 ? both.items[0] : both.items[1];
  Work work = {index, both.together != 0, tables.output_items[index < 0 ? both.items[0] : index]};
  if (index < 0) work.item.rows.rows = work.item.rows.train = work.item.zeros = 0;
  return work;
}

template <int kUnits, int kStages, int kTeams>
__global__ void __launch_bounds__(kTeams* kChunkThreads, 1)
    ProjectOutputKernel(const Arguments arguments) {
  ptx::TakeTurn();
  extern __shared__ __align__(128) unsigned char memory[];
  const Work work = WorkOf<kTeams>(arguments.tables);
  const LoraOutputItem& item = work.item;
  const int slice = arguments.parallel != 0 ? static_cast<int>(blockIdx.x) : 0;
  if (slice == 0) {
    WriteZeros(item, 0, item.rows.rows, TeamThread(), kChunkThreads, true, arguments.ds,
               arguments.ds_stride, arguments.tables.columns);
  }
  if (item.units == 0) return;
  const LoraPair pair = arguments.tables.pairs[item.pair];
  const int steps = (pair.outputs + kStepFeatures - 1) / kStepFeatures;
  const int slice_steps = OutputSliceFeatures(pair.outputs) / kStepFeatures;
  const int slices = (steps + slice_steps - 1) / slice_steps;
  if (slice >= slices) return;
  const int begin = slice * slice_steps;
  const int end = arguments.parallel != 0 ? min(steps, begin + slice_steps) : steps;
  const bool train = item.rows.train != 0;
  const int row_steps = (item.rows.rows + 15) / 16;

  const uint32_t coefficients = ptx::SharedAddress(memory) + Team() * TeamBytes<kUnits, kStages>();
  const uint32_t ring = coefficients + CoefficientBytes<kUnits>();
  float2* exchange = reinterpret_cast<float2*>(memory + kTeams * TeamBytes<kUnits, kStages>());
  const Loader<kUnits> loader(arguments, item, pair);
  if (train) LoadCoefficients<kUnits>(arguments, item, pair, coefficients);
  Total<kUnits, kRowTiles> total = {};
  Sums<kUnits, kRowTiles> sums = {};
  bool finite = true;
  int slice_end = begin + slice_steps;
  const auto add_outputs = [&](int step, const float(&c)[kUnits][4]) {
    if constexpr (kTeams == 2) {
      if (work.together) {
        return AddOutputsTogether(item, pair, step * kStepFeatures, c, exchange);
      }
    }
    return AddOutputs<kUnits>(item, pair, step * kStepFeatures, c);
  };
  Walk<kStages, StageBytes<kUnits>()>(
      begin, end, ring, [&](int step, uint32_t stage) { loader.Load(step, stage); },
      [&](int step, uint32_t stage) {
        MultiplyRows<kUnits>(stage, item.units, sums);
        if (train) {
          float c[kUnits][4] = {};
          MultiplyOutputs<kUnits>(stage, coefficients, item.units, row_steps, c);
          finite &= add_outputs(step, c);
        }
        if (step + 1 != slice_end && step + 1 != end) return;
        AddSlice(sums, total);
        slice_end += slice_steps;
      });
  if (!finite) *pair.overflow = 1;
  const bool fold = arguments.parallel != 0 && slices > 1;
  if (fold && !FoldSlices<kChunkThreads>(total, arguments.scratch, work.index, slice, slices,
                                         arguments.slices)) {
    return;
  }
  WriteSums<kUnits>(arguments, item, pair, total.sums);
}

template <int kUnits>
void Launch(Arguments& arguments, cudaStream_t stream) {
  constexpr int kTeams = kUnits == 1 ? 2 : 1;
  constexpr int kStages = kUnits == 1 ? 3 : 4;
  constexpr int kBytes = kTeams * TeamBytes<kUnits, kStages>() + (kTeams == 2 ? kExchangeBytes : 0);
  static_assert(kBytes <= 227 * 1024);
  const LoraTables& tables = arguments.tables;
  arguments.parallel = HaveRoomForSlices<kUnits>(arguments.scratch, tables.output_count, kChunkRows,
                                                 arguments.slices)
                           ? 1
                           : 0;
  const int work = kTeams == 2 ? tables.output_pair_count : tables.output_count;
  const dim3 grid(static_cast<unsigned>(arguments.parallel != 0 ? arguments.slices : 1),
                  static_cast<unsigned>(work));
  LaunchKernel(
      ProjectOutputKernel<kUnits, kStages, kTeams>,
      {.grid = grid, .threads = kTeams * kChunkThreads, .shared_bytes = kBytes, .early = true},
      stream, arguments);
}

}  // namespace

void ProjectOutput(const LoraTables& tables, const TensorView& dy, const TensorView& own,
                   const TensorView& ds, const LoraScratch& scratch, cudaStream_t stream) {
  assert(dy.dtype == DType::kBfloat16 && dy.row_stride % 8 == 0 && own.row_stride % 8 == 0);
  if (tables.output_group_count > 0) {
    ProjectOutputHopper(tables, dy, own, ds, scratch, stream);
  }
  if (tables.output_count == 0) return;
  Arguments arguments = {.tables = tables,
                         .dy = static_cast<const __nv_bfloat16*>(dy.data),
                         .dy_stride = dy.row_stride,
                         .own = static_cast<const __nv_bfloat16*>(own.data),
                         .own_stride = own.row_stride,
                         .ds = static_cast<__nv_bfloat16*>(ds.data),
                         .ds_stride = ds.row_stride,
                         .scratch = scratch,
                         .slices = tables.output_slices,
                         .parallel = 0};
  if (tables.output_units <= 1) return Launch<1>(arguments, stream);
  if (tables.output_units == 2) return Launch<2>(arguments, stream);
  Launch<4>(arguments, stream);
}

}  // namespace lorad::kernels::cuda
