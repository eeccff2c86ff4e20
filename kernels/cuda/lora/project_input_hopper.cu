// S = s x A^T without dropout, see kernels.h: the kernel for Hopper.
//
// A block takes 64 rows of a chunk, up to 64 rank columns of one party and all features; where that
// is too few blocks or too many registers, two or four blocks of a cluster take every second or
// fourth part of the features. Two warpgroups take pieces of 128 features in turns, in steps of 64:
// x [64, 64] and A [ranks, 64] come through a ring of the warpgroup's own. So a slice (tables.h) is
// one warpgroup's. The sums of all its slices stay in registers, side by side, until the end; then
// all meet in shared memory and are added up. No sum goes to memory on the way, and a row is read
// from one end to the other, 512 bytes at a time; for that A is read again for every 64 rows.

#include <algorithm>

#include "kernels/cuda/lora/hopper.cuh"
#include "kernels/cuda/lora/kernels.h"

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
};

constexpr int kChunkParts = kChunkRows / kTileRows;
constexpr int kWarpgroups = 2;

// Up to kSlices slices, by clusters of kB blocks.
template <int kU, int kSlices, int kB>
struct InputShape {
  static constexpr int kUnits = kU;
  static constexpr int kSlicesMost = kSlices;
  static constexpr int kBlocks = kB;
  static constexpr int kPeriod = kWarpgroups * kB;  // warpgroups that take pieces in turns
  static constexpr int kSlots = kSlices / kPeriod;  // slices of one
  static constexpr int kSums = 8 * kU;              // of a thread and slice
  static constexpr int kVectors = 2 * kU;           // likewise, in shared memory
  static constexpr int kXBytes = kTileRows * kStepRowBytes;
  static constexpr int kStageBytes = kXBytes + kU * kUnitRanks * kStepRowBytes;
  // Blocks that a multiprocessor has room for, by their registers.
  static constexpr int kResident = kSlots * kSums <= 64 ? 2 : 1;
  static constexpr int kStages = 226 * 1024 / (kResident * kWarpgroups * kStageBytes);
  static constexpr int kRingBytes = kStages * kStageBytes;  // in the end the sums lie there
  static constexpr int kBytes = kWarpgroups * kRingBytes;
  static_assert(kSlices % kPeriod == 0);
  static_assert(kSlots * kVectors * kGroupThreads * 16 <= kRingBytes);
};

// Rows of a chunk: what a block works on.
struct Part {
  int first_row;
  int rows;  // 0: nothing
};

__device__ Part PartOf(const LoraTileGroup& group) {
  const LoraTileGroup::Chunk chunk = group.chunk[0];  // it has no more
  const int first = static_cast<int>(blockIdx.y) % kChunkParts * kTileRows;
  return {.first_row = chunk.first_row + first, .rows = min(max(chunk.rows - first, 0), kTileRows)};
}

// Copies of a warpgroup's steps of x and A, one after the other. A thread's are the same piece of
// every 16th row, and of the same rank of each unit.
template <typename Shape>
class StepLoader {
 public:
  __device__ StepLoader(const InputArguments& arguments, const LoraTileGroup& group,
                        const Part& part, int first_piece)
      : stride_(arguments.x_stride), columns_(arguments.tables.inputs) {
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    const int row = thread / kStepPieces;
    const int piece = thread % kStepPieces;
    column_ = first_piece * kSlicePieceColumns + 8 * piece;
    rows_ = part.rows - row;
    place_ = TileOffset<kStepPieces>(row, piece);
    x_ = arguments.x + (int64_t{part.first_row} + row) * stride_;
#pragma unroll
    for (int unit = 0; unit < Shape::kUnits; ++unit) {
      a_[unit] = nullptr;
      if (unit >= group.units) continue;
      const LoraUnit& u = arguments.tables.units[group.first_unit + unit];
      a_[unit] = static_cast<const __nv_bfloat16*>(arguments.tables.pairs[u.pair].a) +
                 (int64_t{u.first_rank} + row) * columns_;
    }
  }

  // `second`: of a piece.
  __device__ void Load(uint32_t stage, bool second) {
    const uint32_t to = stage + place_;
    const bool inside = column_ < columns_;  // what is not valid is not read
#pragma unroll
    for (int i = 0; i < kTileRows / kUnitRanks; ++i) {
      ptx::CopyAsync(to + i * kUnitRanks * kStepRowBytes, x_ + i * kUnitRanks * stride_ + column_,
                     inside && i * kUnitRanks < rows_);
    }
#pragma unroll
    for (int unit = 0; unit < Shape::kUnits; ++unit) {
      if (a_[unit] == nullptr) continue;
      ptx::CopyAsync(to + Shape::kXBytes + unit * kUnitRanks * kStepRowBytes, a_[unit] + column_,
                     inside);
    }
    column_ += second ? Shape::kPeriod * kSlicePieceColumns - kStepFeatures : kStepFeatures;
  }

 private:
  static_assert(kGroupThreads / kStepPieces == kUnitRanks);
  const __nv_bfloat16* x_;
  const __nv_bfloat16* a_[Shape::kUnits];
  const int64_t stride_;
  const int columns_;
  int column_;
  int rows_;
  uint32_t place_;
};

// Waits for all threads of the warpgroup.
__device__ void SyncWarpgroup() {
  if (threadIdx.x < kGroupThreads) {
    ptx::SyncThreads<1>(kGroupThreads);
  } else {
    ptx::SyncThreads<2>(kGroupThreads);
  }
}

// By one warpgroup: sums of its slices over its pieces, `pieces` of them, ring at `ring`.
template <typename Shape>
__device__ void SumSlices(StepLoader<Shape>& loader, int pieces, uint32_t ring,
                          float (&sums)[Shape::kSlots][Shape::kSums]) {
  constexpr auto kInner = wgmma::Contiguous::kInner;
  static_assert(kSlicePieceColumns == 2 * kStepFeatures);
  using StageRing = Ring<Shape::kStages, Shape::kStageBytes>;
  StageRing next(ring);
  StageRing at(ring);
  int left = 2 * pieces;  // to load
  const auto load = [&](bool second) {
    if (left > 0) loader.Load(next.at, second);
    --left;
    ptx::CommitCopies();
    next.Advance();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) load(i % 2 != 0);
  for (int first = 0; first < pieces; first += Shape::kSlots) {
#pragma unroll
    for (int slot = 0; slot < Shape::kSlots; ++slot) {
      if (first + slot >= pieces) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::WaitCopies<Shape::kStages - 2>();
        ptx::FenceSharedWrites();
        // The stage is there, and the one before it free.
        SyncWarpgroup();
        load((half + Shape::kStages - 1) % 2 != 0);
        const uint64_t x = wgmma::Descriptor<kInner>(at.at);
        const uint64_t a = wgmma::Descriptor<kInner>(at.at + Shape::kXBytes);
        wgmma::Pin(sums[slot]);
        wgmma::Fence();
#pragma unroll
        for (int k = 0; k < kStepFeatures / 16; ++k) {
          wgmma::AddSkinny<kInner, kInner>(sums[slot], x + k * wgmma::Step(kInner),
                                           a + k * wgmma::Step(kInner));
        }
        wgmma::Commit();
        wgmma::WaitGroups<0>();
        wgmma::Pin(sums[slot]);
        at.Advance();
      }
    }
  }
}

// Waits for all threads of the cluster.
template <typename Shape>
__device__ void SyncBlocks() {
  if constexpr (Shape::kBlocks > 1) {
    ptx::ClusterSync();
  } else {
    __syncthreads();
  }
}

// A thread's sums of its slices into its warpgroup's ring, [kSlots, kVectors, kGroupThreads].
template <typename Shape>
__device__ void LeaveSums(uint32_t ring, const float (&sums)[Shape::kSlots][Shape::kSums]) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const uint32_t to = ring + static_cast<uint32_t>(thread) * 16;
#pragma unroll
  for (int i = 0; i < Shape::kSlots * Shape::kVectors; ++i) {
    const float* v = &sums[i / Shape::kVectors][i % Shape::kVectors * 4];
    ptx::StoreShared(to + i * kGroupThreads * 16,
                     make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                                __float_as_uint(v[3])));
  }
}

// Of vector `vector` of thread `thread` the slices in ascending order.
template <typename Shape>
__device__ float4 Fold(uint32_t memory, int vector, int thread, int slices) {
  const uint32_t from = memory + static_cast<uint32_t>(vector * kGroupThreads + thread) * 16;
  uint4 v[Shape::kSlicesMost];
#pragma unroll
  for (int slice = 0; slice < Shape::kSlicesMost; ++slice) {
    if (slice >= slices) break;
    const uint32_t at = from + slice % kWarpgroups * Shape::kRingBytes +
                        slice / Shape::kPeriod * Shape::kVectors * kGroupThreads * 16;
    constexpr bool kAlone = Shape::kBlocks == 1;
    const int block = slice / kWarpgroups % Shape::kBlocks;
    v[slice] = kAlone ? ptx::LoadShared(at) : ptx::LoadSharedAt(at, block);
  }
  float4 sum = {};
#pragma unroll
  for (int slice = 0; slice < Shape::kSlicesMost; ++slice) {
    if (slice >= slices) break;
    sum.x += __uint_as_float(v[slice].x);
    sum.y += __uint_as_float(v[slice].y);
    sum.z += __uint_as_float(v[slice].z);
    sum.w += __uint_as_float(v[slice].w);
  }
  return sum;
}

// The block's share of S of the rows.
template <typename Shape>
__device__ void WriteRows(const InputArguments& arguments, const LoraTileGroup& group,
                          const Part& part, uint32_t memory) {
  constexpr int kShare = Shape::kVectors * kGroupThreads / Shape::kBlocks;
  const LoraTables& tables = arguments.tables;
  const int slices = TileSlices(tables.inputs);
  for (int i = static_cast<int>(threadIdx.x); i < kShare; i += kRowThreads) {
    const int at = static_cast<int>(blockIdx.x) * kShare + i;
    const int vector = at / kGroupThreads;
    const int thread = at % kGroupThreads;
    if (vector >= 2 * group.units) break;
    const float scale = tables.pairs[tables.units[group.first_unit + vector / 2].pair].scale;
    const float4 sum = Fold<Shape>(memory, vector, thread, slices);
    const int column = 8 * vector + thread % 4 * 2;
    const auto write = [&](int row, float first, float second) {
      if (row >= part.rows) return;
      const __nv_bfloat162 value = __floats2bfloat162_rn(scale * first, scale * second);
      const int64_t to = int64_t{part.first_row} + row;
      if (arguments.own != nullptr) {
        *reinterpret_cast<__nv_bfloat162*>(arguments.own + to * arguments.own_stride +
                                           group.own_column + column) = value;
      }
      if (arguments.shared != nullptr) {
        *reinterpret_cast<__nv_bfloat162*>(arguments.shared + to * arguments.shared_stride +
                                           group.column + column) = value;
      }
    };
    const int row = thread / kWarpLanes * 16 + thread % kWarpLanes / 4;
    write(row, sum.x, sum.y);
    write(row + 8, sum.z, sum.w);
  }
}

// The block's share of the zeros of the rows.
template <typename Shape>
__device__ void WriteZeros(const InputArguments& arguments, const LoraTileGroup& group,
                           const Part& part) {
  const LoraOutputItem item = {.rows = {.first_row = part.first_row},
                               .zeros = group.zeros,
                               .party_begin = group.party_begin,
                               .party_end = group.party_end};
  const int block = static_cast<int>(blockIdx.x);
  cuda::WriteZeros(item, part.rows * block / Shape::kBlocks,
                   part.rows * (block + 1) / Shape::kBlocks, static_cast<int>(threadIdx.x),
                   kRowThreads, arguments.shared != nullptr, arguments.shared,
                   arguments.shared_stride, arguments.tables.columns);
}

// Grid: the blocks of a cluster; parts of groups.
template <typename Shape>
__global__ void __cluster_dims__(Shape::kBlocks, 1, 1)
    __launch_bounds__(kRowThreads, Shape::kResident)
        ProjectInputKernel(const InputArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  // Tables are older than the kernel before this one, which every block awaits: who awaits this
  // kernel relies on it.
  const LoraTables& tables = arguments.tables;
  const LoraTileGroup& group = tables.input_groups[static_cast<int>(blockIdx.y) / kChunkParts];
  const Part part = PartOf(group);
  if (part.rows == 0) return ptx::AwaitPreviousKernel();
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int first_piece = static_cast<int>(blockIdx.x) * kWarpgroups + warpgroup;
  StepLoader<Shape> loader(arguments, group, part, first_piece);
  ptx::TakeTurn();
  WriteZeros<Shape>(arguments, group, part);
  if (group.units == 0) return;
  const int pieces =
      max(TilePieces(tables.inputs) - first_piece + Shape::kPeriod - 1, 0) / Shape::kPeriod;
  const uint32_t begin = ptx::SharedAddress(memory);
  const uint32_t ring = begin + warpgroup * Shape::kRingBytes;
  float sums[Shape::kSlots][Shape::kSums] = {};
  SumSlices<Shape>(loader, pieces, ring, sums);
  SyncWarpgroup();  // nobody reads the ring any more
  LeaveSums<Shape>(ring, sums);
  SyncBlocks<Shape>();
  WriteRows<Shape>(arguments, group, part, begin);
  __syncwarp();
  // Others may still read this block's sums.
  if constexpr (Shape::kBlocks > 1) ptx::ClusterSync();
}

template <int kU, int kSlices, int kB>
void Launch(const InputArguments& arguments, cudaStream_t stream) {
  using Shape = InputShape<kU, kSlices, kB>;
  constexpr int kGroupsMost = 65535 / kChunkParts;  // of a grid
  for (int first = 0; first < arguments.tables.input_group_count; first += kGroupsMost) {
    InputArguments some = arguments;
    some.tables.input_groups += first;
    some.tables.input_group_count =
        std::min(arguments.tables.input_group_count - first, kGroupsMost);
    const dim3 grid(kB, static_cast<unsigned>(some.tables.input_group_count * kChunkParts));
    LaunchKernel(
        ProjectInputKernel<Shape>,
        {.grid = grid, .threads = kRowThreads, .shared_bytes = Shape::kBytes, .early = true},
        stream, some);
  }
}

// As few blocks a cluster as leave few multiprocessors without one: for the same bytes each, two
// take about 1.5 us longer than one, and four 6 (H100).
template <int kU, int kSlices>
void LaunchBlocks(const InputArguments& arguments, cudaStream_t stream) {
  constexpr int kLeast = std::max(kU * kSlices / 32, 1);  // by its registers
  const int multiprocessors = arguments.tables.multiprocessors;
  const int parts = arguments.tables.input_group_count * kChunkParts;
  if constexpr (kLeast == 1) {
    if (4 * parts >= 3 * multiprocessors) return Launch<kU, kSlices, 1>(arguments, stream);
  }
  if (5 * parts >= multiprocessors) return Launch<kU, kSlices, 2>(arguments, stream);
  Launch<kU, kSlices, 4>(arguments, stream);
}

template <int kU>
void LaunchSlices(const InputArguments& arguments, cudaStream_t stream) {
  if (TileSlices(arguments.tables.inputs) <= 8) return LaunchBlocks<kU, 8>(arguments, stream);
  LaunchBlocks<kU, 16>(arguments, stream);
}

}  // namespace
}  // namespace lorad::kernels::cuda::tiles

namespace lorad::kernels::cuda {

void ProjectInputHopper(const LoraTables& tables, const TensorView& x, const TensorView& own,
                        const TensorView& shared, cudaStream_t stream) {
  using namespace tiles;
  const InputArguments arguments = {.tables = tables,
                                    .x = static_cast<const __nv_bfloat16*>(x.data),
                                    .x_stride = x.row_stride,
                                    .own = static_cast<__nv_bfloat16*>(own.data),
                                    .own_stride = own.row_stride,
                                    .shared = static_cast<__nv_bfloat16*>(shared.data),
                                    .shared_stride = shared.row_stride};
  if (tables.input_group_units <= 1) return LaunchSlices<1>(arguments, stream);
  if (tables.input_group_units == 2) return LaunchSlices<2>(arguments, stream);
  LaunchSlices<4>(arguments, stream);
}

}  // namespace lorad::kernels::cuda
