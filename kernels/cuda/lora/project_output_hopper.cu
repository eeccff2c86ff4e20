// dS = s dy B and dB += dy^T S in one pass over dy, see kernels.h: the kernel for Hopper.
//
// A block takes up to four chunks of one adapter, up to 64 ranks of a pair and a slice of its
// outputs, in steps of 64 outputs, chunk after chunk in each: dy [256, 64] and B [64, ranks] come
// through the ring, S [256, ranks] of all chunks stays in shared memory. Two warpgroups form dS,
// whose sums stay in registers until the slice is done, and leave it to FoldKernel; a third forms
// dB, complete after a chunk's rows. The chunks' dB is added up in fixed point in its registers,
// and goes to memory as one bulk reduction.
#include <algorithm>

#include "kernels/cuda/lora/hopper.cuh"
#include "kernels/cuda/lora/kernels.h"

namespace lorad::kernels::cuda::tiles {
namespace {

struct OutputArguments {
  LoraTables tables;
  const __nv_bfloat16* dy;
  int64_t dy_stride;
  const __nv_bfloat16* own;
  int64_t own_stride;
  __nv_bfloat16* ds;
  int64_t ds_stride;
  Partial partial;
  int32_t first_group;
};

template <int kU, int kC, int kS, int kW>
struct OutputShape
    : Shape<kU, kC, kS, kW, kRowThreads + kGroupThreads, kW * kStepFeatures * kU * kUnitRanks * 8> {
  // Of 168 registers a thread at entry those that sum over columns take more; else other kernels'
  // blocks find room beside.
  static constexpr bool kSharesRegisters = kU > 1;
};

// Copies of B of a step.
template <typename Shape>
class FactorLoader {
 public:
  __device__ FactorLoader(const LoraPair& pair, const Work& work, int first_rank)
      : work_(work), stride_(pair.b_stride) {
    const int thread = static_cast<int>(threadIdx.x);
    output_ = thread / kPieces;
    piece_ = thread % kPieces;
    from_ = static_cast<const __nv_bfloat16*>(pair.b) + output_ * stride_ + first_rank + 8 * piece_;
  }

  // A box of 64 outputs after the other.
  __device__ void Load(int step, uint32_t place) const {
    const int first = FirstColumn<Shape>(work_, step);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int output = output_ + i * kOutputsAtOnce;
      if (output >= Shape::kColumns || piece_ >= 2 * work_.units) continue;
      ptx::CopyAsync(place + TileOffset<kPieces>(output, piece_),
                     from_ + (first + i * kOutputsAtOnce) * stride_,
                     first + output < work_.columns);
    }
  }

 private:
  static constexpr int kPieces = 2 * Shape::kUnits;
  static constexpr int kOutputsAtOnce = kRowThreads / kPieces;
  static constexpr int kCopies = (Shape::kColumns + kOutputsAtOnce - 1) / kOutputsAtOnce;
  const Work& work_;
  const __nv_bfloat16* from_;
  const int64_t stride_;
  int output_;
  int piece_;
};

// Adds dB of a step's outputs from first_output, as the last warpgroup has it.
template <typename Shape>
__device__ void AddOutputs(const LoraTileGroup& group, const LoraPair& pair, int first_output,
                           const long long (&quanta)[Shape::kBoxes][Shape::kSums],
                           unsigned char* tile) {
  const bool lead = threadIdx.x == kRowThreads;
  const int ranks = min(pair.rank - group.first_rank, group.units * kUnitRanks);
  const int outputs = min(Shape::kColumns, pair.outputs - first_output);
  // All ranks of an output, so that outputs are neighbours in memory.
  const bool bulk = ranks == pair.rank;
  int64_t* db = pair.db + int64_t{first_output} * pair.rank + group.first_rank;
  if (bulk) {
    if (lead) ptx::WaitStoresRead<0>();
    ptx::SyncThreads<kBarrierAdd>(kGroupThreads);  // the tile is free
  }
#pragma unroll
  for (int box = 0; box < Shape::kBoxes; ++box) {
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      const int output = box * kStepFeatures + ColumnOf(i);
      const int at = output * pair.rank + RankOf(i);
      if (bulk) {
        if (RankOf(i) < ranks) reinterpret_cast<int64_t*>(tile)[at] = quanta[box][i];
      } else {
        AddQuanta(db + at, quanta[box][i], RankOf(i) < ranks && output < outputs);
      }
    }
  }
  if (!bulk) return;
  ptx::FenceSharedWrites();
  ptx::SyncThreads<kBarrierAdd>(kGroupThreads);
  if (!lead) return;
  ptx::AddBulk(db, ptx::SharedAddress(tile), outputs * pair.rank * 8);
  ptx::CommitStores();
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    ProjectOutputKernel(const OutputArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  // Tables are older than the kernel before this one, which every block awaits: who awaits this
  // kernel relies on it.
  const LoraTileGroup& group =
      arguments.tables.output_groups[arguments.first_group + static_cast<int>(blockIdx.y)];
  if (group.units == 0) return ptx::AwaitPreviousKernel();
  const LoraPair& pair = arguments.tables.pairs[group.pair];
  const Work work = WorkOf<Shape>(group, pair.outputs, memory);
  if (work.steps == 0) return ptx::AwaitPreviousKernel();
  ptx::TakeTurn();
  if (threadIdx.x < kRowThreads) {
    if constexpr (Shape::kSharesRegisters) ptx::TakeRegisters<184>();
    RowLoader<Shape> rows(arguments.dy + pair.first_output, arguments.dy_stride, work);
    const FactorLoader<Shape> factor(pair, work, group.first_rank);
    LoadCoefficients<Shape>(arguments.own + pair.own_column + group.first_rank,
                            arguments.own_stride, work);
    float sums[Shape::kChunks][2][Shape::kSums] = {};
    SumColumns<Shape>(
        work, rows, [&](int step, uint32_t place) { factor.Load(step, place); }, sums);
    WritePartial<Shape>(arguments.partial, work, sums);
  } else {
    if constexpr (Shape::kSharesRegisters) ptx::GiveRegisters<136>();
    const bool finite = SumRows<Shape>(work, [&](int first, const auto& quanta) {
      AddOutputs<Shape>(group, pair, first, quanta, memory + Shape::kAddAt);
    });
    if (!finite) *pair.overflow = 1;
    if (threadIdx.x == kRowThreads) ptx::WaitStoresRead<0>();
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kRowThreads) FoldKernel(const OutputArguments arguments) {
  const FoldPlace<Shape> place(arguments.partial);
  const LoraTileGroup& group = arguments.tables.output_groups[arguments.first_group + place.group];
  if (place.chunk >= group.chunks) return;
  const LoraTileGroup::Chunk chunk = group.chunk[place.chunk];
  const LoraPair& pair = arguments.tables.pairs[group.pair];
  const int slices = TileSlices(pair.outputs);
  const float scale = pair.scale;
  const int column = group.column + 8 * place.eight + place.Column();
  ptx::TakeTurn();
  FoldZeros(group, place, arguments.ds, arguments.ds_stride, arguments.tables.columns);
  if (place.eight >= 2 * group.units) return;
  const float4 sum = Fold(arguments.partial, place, slices);
  __nv_bfloat16* to =
      arguments.ds + (int64_t{chunk.first_row} + place.Row()) * arguments.ds_stride + column;
  if (place.Row() < chunk.rows) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(scale * sum.x, scale * sum.y);
  }
  if (place.Row() + 8 < chunk.rows) {
    *reinterpret_cast<__nv_bfloat162*>(to + 8 * arguments.ds_stride) =
        __floats2bfloat162_rn(scale * sum.z, scale * sum.w);
  }
}

template <typename Shape>
void Launch(OutputArguments& arguments, int64_t partial_bytes, cudaStream_t stream) {
  LaunchGroups<Shape, ProjectOutputKernel<Shape>, FoldKernel<Shape>>(
      arguments, arguments.tables.output_group_count, partial_bytes, stream);
}

}  // namespace
}  // namespace lorad::kernels::cuda::tiles

namespace lorad::kernels::cuda {

void ProjectOutputHopper(const LoraTables& tables, const TensorView& dy, const TensorView& own,
                         const TensorView& ds, const LoraScratch& scratch, cudaStream_t stream) {
  using namespace tiles;
  OutputArguments arguments = {.tables = tables,
                               .dy = static_cast<const __nv_bfloat16*>(dy.data),
                               .dy_stride = dy.row_stride,
                               .own = static_cast<const __nv_bfloat16*>(own.data),
                               .own_stride = own.row_stride,
                               .ds = static_cast<__nv_bfloat16*>(ds.data),
                               .ds_stride = ds.row_stride,
                               .partial = {.sums = scratch.partial,
                                           .chunks = tables.output_group_chunks,
                                           .slices = std::max(TileSlices(tables.outputs_max), 1)},
                               .first_group = 0};
  const int64_t bytes = scratch.partial_bytes;
  if (tables.output_group_units <= 1)
    return Launch<OutputShape<1, 4, 4, 2>>(arguments, bytes, stream);
  if (tables.output_group_units == 2)
    return Launch<OutputShape<2, 4, 3, 2>>(arguments, bytes, stream);
  Launch<OutputShape<4, 2, 3, 1>>(arguments, bytes, stream);
}

}  // namespace lorad::kernels::cuda
