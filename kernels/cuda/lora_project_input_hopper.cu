// S = s x A^T without dropout, see lora_kernels.h: the kernel for Hopper.
//
// A block takes up to four chunks of one party, up to 64 rank columns and a slice of the features,
// in steps of 64, chunk after chunk in each: x [256, 64] and A [ranks, 64] come through the ring.
// Sums stay in registers until the slice is done; FoldKernel adds up the slices.

#include "kernels/cuda/lora_hopper.cuh"
#include "kernels/cuda/lora_kernels.h"

namespace lorad::kernels::cuda::tiles {
namespace {

struct InputArguments {
  LoraTables tables;
  const __nv_bfloat16* x;
  int64_t x_stride;
  __nv_bfloat16* own;
  int64_t own_stride;
  __nv_bfloat16* shared;
  int64_t shared_stride;
  Partial partial;
  int32_t first_group;
};

template <int kU, int kC, int kS>
using InputShape = Shape<kU, kC, kS, 2, kRowThreads, false, true, 0>;

// Copies of A of a step: a thread's are the same piece of every 32nd rank.
template <typename Shape>
class FactorLoader {
 public:
  __device__ FactorLoader(const LoraTables& tables, const LoraTileGroup& group, const Work& work)
      : work_(work) {
    rank_ = static_cast<int>(threadIdx.x) / kStepPieces;
    piece_ = static_cast<int>(threadIdx.x) % kStepPieces;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int rank = rank_ + i * kRanksAtOnce;
      const int unit = rank / kUnitRanks;
      from_[i] = nullptr;
      if (unit >= group.units || rank >= Shape::kUnits * kUnitRanks) continue;
      const LoraUnit& u = tables.units[group.first_unit + unit];
      from_[i] = static_cast<const __nv_bfloat16*>(tables.pairs[u.pair].a) +
                 (int64_t{u.first_rank} + rank % kUnitRanks) * work.columns + 8 * piece_;
    }
  }

  // A box of 64 features after the other.
  __device__ void Load(int step, uint32_t place) const {
    const int first = FirstColumn<Shape>(work_, step);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (from_[i] == nullptr) continue;
      const uint32_t to = place + TileOffset<kStepPieces>(rank_ + i * kRanksAtOnce, piece_);
#pragma unroll
      for (int box = 0; box < Shape::kBoxes; ++box) {
        const int feature = first + box * kStepFeatures;
        ptx::CopyAsync(to + box * Shape::kFactorBoxBytes, from_[i] + feature,
                       feature + 8 * piece_ < work_.columns);
      }
    }
  }

 private:
  static constexpr int kRanksAtOnce = kRowThreads / kStepPieces;
  static constexpr int kCopies = (Shape::kUnits * kUnitRanks + kRanksAtOnce - 1) / kRanksAtOnce;
  const Work& work_;
  const __nv_bfloat16* from_[kCopies];
  int rank_;
  int piece_;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    ProjectInputKernel(const InputArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  // Tables are older than the kernel before this one, which every block awaits: who awaits this
  // kernel relies on it.
  const LoraTileGroup& group =
      arguments.tables.input_groups[arguments.first_group + static_cast<int>(blockIdx.y)];
  if (group.units == 0) return ptx::AwaitPreviousKernel();
  const Work work = WorkOf<Shape>(group, arguments.tables.inputs, memory);
  if (work.steps == 0) return ptx::AwaitPreviousKernel();
  RowLoader<Shape> rows(arguments.x, arguments.x_stride, work);
  const FactorLoader<Shape> factor(arguments.tables, group, work);
  ptx::TakeTurn();
  float sums[Shape::kChunks][2][Shape::kSums] = {};
  SumColumns<Shape, wgmma::Contiguous::kInner>(
      work, rows, [&](int step, uint32_t place) { factor.Load(step, place); }, sums);
  WritePartial<Shape>(arguments.partial, work, sums);
}

template <typename Shape>
__global__ void __launch_bounds__(kRowThreads) FoldKernel(const InputArguments arguments) {
  const FoldPlace<Shape> place(arguments.partial);
  const LoraTables& tables = arguments.tables;
  const LoraTileGroup& group = tables.input_groups[arguments.first_group + place.group];
  if (place.chunk >= group.chunks) return;
  const LoraTileGroup::Chunk chunk = group.chunk[place.chunk];
  const bool any = place.eight < 2 * group.units;
  const float scale =
      any ? tables.pairs[tables.units[group.first_unit + place.eight / 2].pair].scale : 0;
  ptx::TakeTurn();
  FoldZeros(group, place, arguments.shared, arguments.shared_stride, tables.columns);
  if (!any) return;
  const float4 sum = Fold(arguments.partial, place, arguments.partial.slices);
  const int column = 8 * place.eight + place.Column();
  const auto write = [&](int row, float first, float second) {
    if (row >= chunk.rows) return;
    const __nv_bfloat162 value = __floats2bfloat162_rn(scale * first, scale * second);
    const int64_t at = int64_t{chunk.first_row} + row;
    if (arguments.own != nullptr) {
      *reinterpret_cast<__nv_bfloat162*>(arguments.own + at * arguments.own_stride +
                                         group.own_column + column) = value;
    }
    if (arguments.shared != nullptr) {
      *reinterpret_cast<__nv_bfloat162*>(arguments.shared + at * arguments.shared_stride +
                                         group.column + column) = value;
    }
  };
  write(place.Row(), sum.x, sum.y);
  write(place.Row() + 8, sum.z, sum.w);
}

template <typename Shape>
void Launch(InputArguments& arguments, int64_t partial_bytes, cudaStream_t stream) {
  LaunchGroups<Shape, ProjectInputKernel<Shape>, FoldKernel<Shape>>(
      arguments, arguments.tables.input_group_count, partial_bytes, stream);
}

}  // namespace
}  // namespace lorad::kernels::cuda::tiles

namespace lorad::kernels::cuda {

void ProjectInputHopper(const LoraTables& tables, const TensorView& x, const TensorView& own,
                        const TensorView& shared, const LoraScratch& scratch, cudaStream_t stream) {
  using namespace tiles;
  InputArguments arguments = {.tables = tables,
                              .x = static_cast<const __nv_bfloat16*>(x.data),
                              .x_stride = x.row_stride,
                              .own = static_cast<__nv_bfloat16*>(own.data),
                              .own_stride = own.row_stride,
                              .shared = static_cast<__nv_bfloat16*>(shared.data),
                              .shared_stride = shared.row_stride,
                              .partial = {.sums = scratch.partial,
                                          .chunks = tables.input_group_chunks,
                                          .slices = TileSlices(tables.inputs)},
                              .first_group = 0};
  const int64_t bytes = scratch.partial_bytes;
  if (tables.input_group_units <= 1) return Launch<InputShape<1, 4, 5>>(arguments, bytes, stream);
  if (tables.input_group_units == 2) return Launch<InputShape<2, 4, 5>>(arguments, bytes, stream);
  Launch<InputShape<4, 2, 4>>(arguments, bytes, stream);
}

}  // namespace lorad::kernels::cuda
