// S = s (D o x) A^T, see kernels.h.
//
// A block takes 128 or 256 rows of a chunk and up to 64 rank columns of one party and walks over
// the features in steps of 64: x [rows, 64] and A [ranks, 64] come through a ring in shared memory.
// A warp multiplies 16 rows, if there are any. The inner index may be permuted if both operands
// are: a lane reads whole 16-byte pieces, so that the 8 features of a piece, which are one Philox
// call, are in one lane's registers. What of a call is its features' alone (dropout.h) comes
// through the ring as well.
#include <algorithm>
#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/lora/slices.cuh"

namespace lorad::kernels::cuda {
namespace {

constexpr int kWarpRows = 16;

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

// kR rows a block.
template <int kU, bool kD, int kR, int kS>
struct Shape {
  static constexpr int kUnits = kU;
  static constexpr bool kDropout = kD;
  static constexpr int kRows = kR;
  static constexpr int kStages = kS;
  static constexpr int kThreads = kR / kWarpRows * kWarpLanes;
  static constexpr int kParts = kChunkRows / kR;  // of a chunk
  // In a stage: x, A, and a DropoutColumn of each unit and piece.
  static constexpr int kFactorAt = kR * kStepRowBytes;
  static constexpr int kColumnsAt = kFactorAt + kU * kUnitRanks * kStepRowBytes;
  static constexpr int kStageBytes = kColumnsAt + (kD ? kU * kStepPieces * 16 : 0);
};

// Lanes 2i and 2i + 1 of g take rows whose places differ in the piece's high bit: no conflicts.
__device__ int RowOf(int g) { return (g >> 1) + 4 * (g & 1); }

// The rows of a block.
struct Part {
  LoraInputItem item;
  int first;  // of the item's rows
  int rows;
};

// Copies of one step of x and A after the other, from `first_step`. A thread copies the same piece
// of every kRowsAtOnce-th row.
template <typename Shape>
class Loader {
 public:
  __device__ Loader(const Arguments& arguments, const Part& part, int first_step)
      : next_rows_(kRowsAtOnce * arguments.x_stride) {
    const int row = static_cast<int>(threadIdx.x) / kStepPieces;
    const int piece = static_cast<int>(threadIdx.x) % kStepPieces;
    const int inputs = arguments.tables.inputs;
    const int feature = first_step * kStepFeatures + 8 * piece;
    features_left_ = inputs - feature;
    rows_left_ = part.rows - row;
    warp_rows_left_ = (part.rows + kWarpRows - 1) / kWarpRows * kWarpRows - row;
    place_ = TileOffset<kStepPieces>(row, piece);
    x_ = arguments.x + (int64_t{part.item.rows.first_row} + part.first + row) * arguments.x_stride +
         feature;
#pragma unroll
    for (int i = 0; i < kFactorCopies; ++i) {
      const int rank = row + i * kRowsAtOnce;
      const int unit = rank / kUnitRanks;
      copies_factor_[i] = unit < part.item.units && rank < Shape::kUnits * kUnitRanks;
      a_[i] = nullptr;
      if (!copies_factor_[i]) continue;
      const LoraUnit& u = arguments.tables.units[part.item.first_unit + unit];
      const auto* a = static_cast<const __nv_bfloat16*>(arguments.tables.pairs[u.pair].a);
      a_[i] = a + (int64_t{u.first_rank} + rank % kUnitRanks) * inputs + feature;
    }
  }

  __device__ void LoadNext(uint32_t stage) {
    // What is not valid is not read, and what no warp multiplies not filled.
    const bool inside = features_left_ > 0;
    const uint32_t to = stage + place_;
#pragma unroll
    for (int i = 0; i < Shape::kRows / kRowsAtOnce; ++i) {
      if (i * kRowsAtOnce >= warp_rows_left_) break;
      ptx::CopyAsync(to + i * kRowsAtOnce * kStepRowBytes, x_ + i * next_rows_,
                     inside && i * kRowsAtOnce < rows_left_);
    }
#pragma unroll
    for (int i = 0; i < kFactorCopies; ++i) {
      if (!copies_factor_[i]) continue;
      ptx::CopyAsync(to + Shape::kFactorAt + i * kRowsAtOnce * kStepRowBytes, a_[i], inside);
      a_[i] += kStepFeatures;
    }
    x_ += kStepFeatures;
    features_left_ -= kStepFeatures;
  }

 private:
  // A multiple of the swizzle's 8.
  static constexpr int kRowsAtOnce = Shape::kThreads / kStepPieces;
  static constexpr int kFactorCopies = (Shape::kUnits * kUnitRanks + kRowsAtOnce - 1) / kRowsAtOnce;
  const __nv_bfloat16* x_;
  const __nv_bfloat16* a_[kFactorCopies];
  bool copies_factor_[kFactorCopies];
  const int64_t next_rows_;
  int features_left_;
  int rows_left_;
  int warp_rows_left_;  // with those that fill up a warp's 16
  uint32_t place_;
};

// What a thread knows of the masks of its two rows, and its share of the columns.
struct Masks {
  DropoutKeys keys;
  DropoutRow rows[2];
  uint32_t drops;   // a bit a unit: it has a mask,
  uint32_t shared;  // and that of the unit before it: they are of one pair
  uint32_t word0;   // of unit lane / 8 and piece lane % 8 of step 0
};

// tests [units] in shared memory.
__device__ Masks MasksOf(const Arguments& arguments, const Part& part, DropoutTest* tests) {
  const LoraRows& rows = part.item.rows;
  const int lane = threadIdx.x % kWarpLanes;
  const int first = part.first + static_cast<int>(threadIdx.x) / kWarpLanes * kWarpRows;
  Masks masks = {.keys = KeptKeys(rows.seed), .rows = {}, .drops = 0, .shared = 0, .word0 = 0};
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    masks.rows[high] = DropoutRowAt(rows, first + 8 * high + RowOf(lane / 4));
  }
  uint32_t before = 0;
  for (int unit = 0; unit < part.item.units; ++unit) {
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[part.item.first_unit + unit].pair];
    if (pair.threshold != 0 && rows.train != 0) masks.drops |= 1u << unit;
    if (unit > 0 && pair.word0 == before) masks.shared |= 1u << unit;
    before = pair.word0;
    if (lane / kStepPieces == unit) masks.word0 = pair.word0 + lane % kStepPieces;
    if (threadIdx.x == 0) tests[unit] = TestOf(pair.threshold);
  }
  return masks;
}

// The columns of a step, by one warp.
template <typename Shape>
__device__ void MakeColumns(const Part& part, const Masks& masks, int step, uint32_t stage) {
  const int lane = threadIdx.x % kWarpLanes;
  if (lane / kStepPieces >= part.item.units) return;
  const DropoutColumn column =
      DropoutColumnOf(part.item.rows.seed, part.item.rows.sequence, part.item.rows.step,
                      masks.word0 + static_cast<uint32_t>(step * kStepPieces));
  ptx::StoreShared(
      stage + Shape::kColumnsAt + lane * 16,
      make_uint4(column.second, column.third_high, column.third_low, column.third_other));
}

__device__ uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// v: raw under the mask of a unit. Of either half of a step's features two rows.
template <typename Shape>
__device__ void Drop(uint32_t stage, const Masks& masks, const DropoutTest& test, int unit,
                     const uint4 (&raw)[2][2], uint4 (&v)[2][2]) {
  const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int piece = lane % 4 + 4 * half;
    const uint4 words =
        ptx::LoadShared(stage + Shape::kColumnsAt + (unit * kStepPieces + piece) * 16);
    const DropoutColumn column = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const PhiloxCounter lanes = DropoutLanes(masks.keys, masks.rows[high], column);
      v[half][high] = Select(raw[half][high], TestLanes(lanes, test), test);
    }
  }
}

// One step of 64 features from a stage.
template <typename Shape>
__device__ void MultiplyStep(uint32_t stage, int units, const Masks& masks,
                             const DropoutTest* tests, Sums<Shape::kUnits, 1>& sums) {
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  // The lane's piece of its row; that of the other half lies at its number xor 4.
  const uint32_t place = stage + TileOffset<kStepPieces>(RowOf(lane / 4), lane % 4);
  const uint32_t places[2] = {place, place ^ 64};
  constexpr int kEightRows = 8 * kStepRowBytes;
  uint4 raw[2][2];  // of both halves of the features two rows, 8 apart
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    raw[i / 2][i % 2] = ptx::LoadShared(places[i / 2] + (2 * warp + i % 2) * kEightRows);
  }
  uint4 v[2][2];
#pragma unroll
  for (int unit = 0; unit < Shape::kUnits; ++unit) {
    if (unit >= units) break;
    if (unit == 0 || (Shape::kDropout && (masks.shared >> unit & 1) == 0)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i / 2][i % 2] = raw[i / 2][i % 2];
      if (Shape::kDropout && (masks.drops >> unit & 1) != 0) {
        Drop<Shape>(stage, masks, tests[unit], unit, raw, v);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 2 * unit; n < 2 * unit + 2; ++n) {
        const uint4 a = ptx::LoadShared(places[half] + Shape::kFactorAt + n * kEightRows);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          ptx::Multiply(sums.c[0][n], Word(v[half][0], i), Word(v[half][1], i),
                        Word(v[half][0], i + 1), Word(v[half][1], i + 1), Word(a, i),
                        Word(a, i + 1));
        }
      }
    }
  }
}

template <int kUnits>
__device__ void WriteSums(const Arguments& arguments, const Part& part,
                          const Sums<kUnits, 1>& sums) {
  const LoraInputItem& item = part.item;
  const int lane = threadIdx.x % kWarpLanes;
  const int first_row = static_cast<int>(threadIdx.x) / kWarpLanes * kWarpRows + RowOf(lane / 4);
#pragma unroll
  for (int n = 0; n < 2 * kUnits; ++n) {
    if (n / 2 >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + n / 2].pair];
    const bool drops = item.rows.train != 0 && pair.threshold != 0;
    const float scale = drops ? pair.scale * pair.keep_scale : pair.scale;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + 8 * (i / 2);
      if (row >= part.rows) continue;
      const int column = 8 * n + RowOf(2 * (lane % 4) + i % 2);
      const __nv_bfloat16 value = __float2bfloat16_rn(scale * sums.c[0][n][i]);
      const int64_t at = int64_t{item.rows.first_row} + part.first + row;
      if (arguments.own != nullptr) {
        arguments.own[at * arguments.own_stride + item.own_column + column] = value;
      }
      if (arguments.shared != nullptr) {
        arguments.shared[at * arguments.shared_stride + item.column + column] = value;
      }
    }
  }
}

template <typename Shape>
__device__ Part PartOf(const Arguments& arguments) {
  Part part = {.item = arguments.tables.input_items[blockIdx.y / Shape::kParts]};
  part.first = static_cast<int>(blockIdx.y) % Shape::kParts * Shape::kRows;
  part.rows = min(part.item.rows.rows - part.first, Shape::kRows);
  return part;
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 512 / Shape::kThreads)
    ProjectInputKernel(const Arguments arguments) {
  constexpr int kUnits = Shape::kUnits;
  ptx::TakeTurn();
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ DropoutTest tests[kUnits];
  const Part part = PartOf<Shape>(arguments);
  if (part.rows <= 0) return;
  const int slice = arguments.parallel != 0 ? static_cast<int>(blockIdx.x) : 0;
  if (slice == 0) {
    WriteZeros(part.item, part.first, part.first + part.rows, static_cast<int>(threadIdx.x),
               Shape::kThreads, arguments.shared != nullptr, arguments.shared,
               arguments.shared_stride, arguments.tables.columns);
  }
  if (part.item.units == 0) return;
  Masks masks;
  if (Shape::kDropout) masks = MasksOf(arguments, part, tests);

  const int steps = (arguments.tables.inputs + kStepFeatures - 1) / kStepFeatures;
  const int slice_steps = InputSliceFeatures(arguments.tables.inputs) / kStepFeatures;
  const int begin = slice * slice_steps;
  const int end = arguments.parallel != 0 ? min(steps, begin + slice_steps) : steps;
  Loader<Shape> loader(arguments, part, begin);
  Total<kUnits, 1> total = {};
  Sums<kUnits, 1> sums = {};
  int slice_end = begin + slice_steps;
  const bool has_rows = static_cast<int>(threadIdx.x) / kWarpLanes * kWarpRows < part.rows;
  Walk<Shape::kStages, Shape::kStageBytes>(
      begin, end, ptx::SharedAddress(memory),
      [&](int step, uint32_t stage) {
        loader.LoadNext(stage);
        // Warps in turns; read behind a later step's barrier.
        if (Shape::kDropout && masks.drops != 0 &&
            step % (Shape::kThreads / kWarpLanes) == static_cast<int>(threadIdx.x) / kWarpLanes) {
          MakeColumns<Shape>(part, masks, step, stage);
        }
      },
      [&](int step, uint32_t stage) {
        if (has_rows) MultiplyStep<Shape>(stage, part.item.units, masks, tests, sums);
        if (step + 1 != slice_end && step + 1 != end) return;
        AddSlice(sums, total);
        slice_end += slice_steps;
      });
  const bool fold = arguments.parallel != 0 && arguments.slices > 1;
  if (fold && !FoldSlices<Shape::kThreads>(total, arguments.scratch, static_cast<int>(blockIdx.y),
                                           slice, arguments.slices, arguments.slices, has_rows)) {
    return;
  }
  WriteSums(arguments, part, total.sums);
}

template <typename Shape>
void Launch(Arguments& arguments, cudaStream_t stream) {
  constexpr int kBytes = Shape::kStages * Shape::kStageBytes;
  static_assert(kBytes * (512 / Shape::kThreads) <= 227 * 1024);
  const int parts = arguments.tables.input_count * Shape::kParts;
  arguments.parallel =
      HaveRoomForSlices<Shape::kUnits>(arguments.scratch, parts, Shape::kRows, arguments.slices)
          ? 1
          : 0;
  const dim3 grid(static_cast<unsigned>(arguments.parallel != 0 ? arguments.slices : 1),
                  static_cast<unsigned>(parts));
  LaunchKernel(ProjectInputKernel<Shape>,
               {.grid = grid, .threads = Shape::kThreads, .shared_bytes = kBytes, .early = true},
               stream, arguments);
}

// 16 warps a multiprocessor: in two blocks, or where A is wide in one, which reads it once.
template <bool kDropout>
void LaunchUnits(Arguments& arguments, cudaStream_t stream) {
  if (arguments.tables.input_units <= 1) {
    return Launch<Shape<1, kDropout, 128, 5>>(arguments, stream);
  }
  if (arguments.tables.input_units == 2) {
    return Launch<Shape<2, kDropout, 128, 5>>(arguments, stream);
  }
  Launch<Shape<4, kDropout, 256, 5>>(arguments, stream);
}

}  // namespace

void ProjectInput(const LoraTables& tables, const TensorView& x, const TensorView& own,
                  const TensorView& shared, const LoraScratch& scratch, cudaStream_t stream) {
  assert(x.dtype == DType::kBfloat16 && x.columns == tables.inputs && x.row_stride % 8 == 0);
  if (tables.input_group_count > 0) ProjectInputHopper(tables, x, own, shared, stream);
  if (tables.input_count == 0) return;
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
