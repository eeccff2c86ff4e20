// What the kernels of the LoRA linear for Hopper share: warpgroup products of 16 to 64 columns,
// whose operands come through rings in shared memory. And the walk over dy: blocks take tiles of 32
// KB, 256 rows (a chunk) of 64 columns or 128 rows of 128. Memory is faster the more of a row is
// read at once, and the nearer to it others read: 256 bytes here, and the next 256 by the block of
// the next slice.
//
// Tiles are those of device.cuh, whose places are those of the hardware's swizzles of 128, 64 and
// 32 bytes; each lies at a multiple of 1,024 bytes.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx_hopper.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/lora/slices.cuh"

namespace lorad::kernels::cuda::wgmma {

// Descriptor of B [16, 16 kUnits] at `address`, rows of the inner index with columns contiguous.
template <int kUnits>
__device__ inline uint64_t SkinnyDescriptor(uint32_t address) {
  static_assert(kUnits == 1 || kUnits == 2 || kUnits == 4);
  constexpr uint64_t kSwizzle = uint64_t{kUnits == 1 ? 3 : kUnits == 2 ? 2 : 1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kUnits * 32 >> 4} << 32;
  return kSwizzle | kEightRows | uint64_t{1} << 16 | ((address & 0x3ffff) >> 4);
}
// What the next 16 rows add to it.
template <int kUnits>
inline constexpr uint64_t kSkinnyStep = 16 * kUnits * 32 >> 4;

// d += A B; A [64, 16].
template <Contiguous kA, Contiguous kB>
__device__ inline void AddSkinny(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, %10, %11;"
      : LORAD_WGMMA_SUMS_8("+f", 0)
      : "l"(a), "l"(b), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}
template <Contiguous kA, Contiguous kB>
__device__ inline void AddSkinny(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_16
               "}, %16, %17, 1, 1, 1, %18, %19;"
               : LORAD_WGMMA_SUMS_16("+f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}
template <Contiguous kA, Contiguous kB>
__device__ inline void AddSkinny(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_32
               "}, %32, %33, 1, 1, 1, %34, %35;"
               : LORAD_WGMMA_SUMS_32("+f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}

}  // namespace lorad::kernels::cuda::wgmma

namespace lorad::kernels::cuda::ptx {

// Adds int64 values in shared memory to as many in global memory; `bytes` and both addresses are
// multiples of 16. One of this thread's stores (CommitStores).
// Source: the PTX instruction set's manual, "cp.reduce.async.bulk".
__device__ inline void AddBulk(int64_t* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}

}  // namespace lorad::kernels::cuda::ptx

namespace lorad::kernels::cuda::tiles {

inline constexpr int kGroupThreads = 128;              // a warpgroup
inline constexpr int kRowThreads = 2 * kGroupThreads;  // those that copy, and sum over columns
inline constexpr int kTileRows = 64;                   // of one product
inline constexpr int kTileBytes = kChunkRows * kStepRowBytes;
inline constexpr int kBarrierAll = 0;
inline constexpr int kBarrierAdd = 1;

// kThreads a block; up to kC chunks in turns. A tile is kW boxes of 64 columns beside each other,
// and one of kW parts of a chunk's rows. In shared memory: coefficients [256, ranks] of all chunks,
// the ring of tiles, the ring of factors of a step's columns by the ranks, what is added to memory,
// the group's chunks.
template <int kU, int kC, int kS, int kW, int kT, int kAddBytes>
struct Shape {
  static constexpr int kUnits = kU;
  static constexpr int kChunks = kC;
  static constexpr int kStages = kS;
  static constexpr int kBoxes = kW;
  static constexpr int kThreads = kT;
  static constexpr int kColumns = kW * kStepFeatures;  // of a step
  static constexpr int kPartRows = kChunkRows / kW;
  static constexpr int kBoxBytes = kPartRows * kStepRowBytes;
  static constexpr int kSums = 8 * kU;     // of a thread in a product of 64 rows
  static constexpr int kVectors = 4 * kU;  // of a thread and chunk, in memory
  static constexpr int kRankBytes = kU * kUnitRanks * 2;
  static constexpr int kFactorBoxBytes = kStepFeatures * kRankBytes;
  static constexpr int kFactorBytes = kW * kFactorBoxBytes;
  static constexpr int kCoefficientBytes = kChunkRows * kRankBytes;
  static constexpr int kRingAt = kC * kCoefficientBytes;
  static constexpr int kFactorsAt = kRingAt + kS * kTileBytes;
  static constexpr int kAddAt = kFactorsAt + kS * kFactorBytes;
  static constexpr int kChunksAt = kAddAt + kAddBytes;
  static constexpr int kBytes = kChunksAt + kC * static_cast<int>(sizeof(LoraTileGroup::Chunk));
  static_assert(kBytes <= 227 * 1024);
  static_assert(kW == 1 || kW == 2);
};

// Of a chunk with so many rows: parts that have any.
template <typename Shape>
__device__ int Parts(int rows) {
  return Shape::kBoxes == 1 || rows > Shape::kPartRows ? Shape::kBoxes : 1;
}

// What all threads of a block know.
struct Work {
  int units;
  int chunks;
  int columns;
  int slice;
  int slices;
  int steps;
  const LoraTileGroup::Chunk* chunk;  // in shared memory
  uint32_t memory;
};

// The first column of a step; it may lie behind the last of all.
template <typename Shape>
__device__ int FirstColumn(const Work& work, int step) {
  constexpr int kSteps = kSlicePieceColumns / Shape::kColumns;  // of a piece
  return (work.slice + step / kSteps * work.slices) * kSlicePieceColumns +
         step % kSteps * Shape::kColumns;
}

// The block's part of a group over so many columns, steps = 0: none. By all threads.
template <typename Shape>
__device__ Work WorkOf(const LoraTileGroup& group, int columns, unsigned char* memory) {
  auto* chunk = reinterpret_cast<LoraTileGroup::Chunk*>(memory + Shape::kChunksAt);
  if (static_cast<int>(threadIdx.x) < group.chunks) chunk[threadIdx.x] = group.chunk[threadIdx.x];
  ptx::SyncThreads<kBarrierAll>(Shape::kThreads);
  const int slice = static_cast<int>(blockIdx.x);
  const int slices = TileSlices(columns);
  const int pieces = slice < slices ? (TilePieces(columns) - slice + slices - 1) / slices : 0;
  return {.units = group.units,
          .chunks = group.chunks,
          .columns = columns,
          .slice = slice,
          .slices = slices,
          .steps = pieces * (kSlicePieceColumns / Shape::kColumns),
          .chunk = chunk,
          .memory = ptx::SharedAddress(memory)};
}

// A place in a ring of kStages of kBytes each.
template <int kStages, int kBytes>
struct Ring {
  uint32_t begin;
  uint32_t at;
  __device__ explicit Ring(uint32_t first) : begin(first), at(first) {}
  __device__ void Advance() {
    at += kBytes;
    if (at == begin + kStages * kBytes) at = begin;
  }
};
template <typename Shape>
using TileRing = Ring<Shape::kStages, kTileBytes>;
// A step has a factor, and no more steps than tiles are in flight.
template <typename Shape>
using FactorRing = Ring<Shape::kStages, Shape::kFactorBytes>;

// Copies of tiles of a matrix, by kRowThreads threads: of a step all parts of all chunks, then the
// next step's.
template <typename Shape>
class RowLoader {
 public:
  __device__ RowLoader(const __nv_bfloat16* from, int64_t stride, const Work& work)
      : work_(work), stride_(stride) {
    row_ = static_cast<int>(threadIdx.x) / kPieces;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    column_ = 8 * piece;
    from_ = from + row_ * stride + column_;
    place_ =
        piece / kStepPieces * Shape::kBoxBytes + TileOffset<kStepPieces>(row_, piece % kStepPieces);
  }

  __device__ bool done() const { return step_ == work_.steps; }
  // Whether the next tile is its step's first.
  __device__ bool begins() const { return chunk_ == 0 && part_ == 0; }
  __device__ int step() const { return step_; }

  // REQUIRES: !done().
  __device__ void LoadNext(uint32_t stage) {
    const LoraTileGroup::Chunk chunk = work_.chunk[chunk_];
    const int first = FirstColumn<Shape>(work_, step_);
    const int first_row = part_ * Shape::kPartRows;
    // What is not valid is not read.
    const int rows = first + column_ < work_.columns ? chunk.rows - first_row : 0;
    const __nv_bfloat16* from = from_ + (int64_t{chunk.first_row} + first_row) * stride_ + first;
    const uint32_t to = stage + place_;
#pragma unroll
    for (int i = 0; i < Shape::kPartRows / kRowsAtOnce; ++i) {
      ptx::CopyAsync(to + i * kRowsAtOnce * kStepRowBytes, from + i * kRowsAtOnce * stride_,
                     row_ + i * kRowsAtOnce < rows);
    }
    if (++part_ < Parts<Shape>(chunk.rows)) return;
    part_ = 0;
    if (++chunk_ < work_.chunks) return;
    chunk_ = 0;
    ++step_;
  }

 private:
  static constexpr int kPieces = Shape::kBoxes * kStepPieces;
  static constexpr int kRowsAtOnce = kRowThreads / kPieces;  // a multiple of the swizzle's 8
  const Work& work_;
  const __nv_bfloat16* from_;
  const int64_t stride_;
  int step_ = 0;
  int chunk_ = 0;
  int part_ = 0;
  int row_;
  int column_;
  uint32_t place_;
};

// [rows of a chunk, ranks] of all chunks, from columns of a matrix, by kRowThreads threads.
template <typename Shape>
__device__ void LoadCoefficients(const __nv_bfloat16* from, int64_t stride, const Work& work) {
  constexpr int kPieces = 2 * Shape::kUnits;
  for (int i = static_cast<int>(threadIdx.x); i < work.chunks * kChunkRows * kPieces;
       i += kRowThreads) {
    const int chunk = i / (kChunkRows * kPieces);
    const int row = i / kPieces % kChunkRows;
    const int piece = i % kPieces;
    const bool valid = row < work.chunk[chunk].rows && piece < 2 * work.units;
    const int64_t at = int64_t{work.chunk[chunk].first_row} + row;
    ptx::CopyAsync(work.memory + chunk * Shape::kCoefficientBytes + TileOffset<kPieces>(row, piece),
                   valid ? from + at * stride + 8 * piece : from, valid);
  }
}

// Sums over the columns of the block's slice, of two warpgroups: thread group g of them has rows
// 64 (2 i + g) of a chunk in sums[chunk][i]. load_factor(step, place): starts the copies of a
// step's factor.
template <typename Shape, typename LoadFactor>
__device__ void SumColumns(const Work& work, RowLoader<Shape>& rows, LoadFactor&& load_factor,
                           float (&sums)[Shape::kChunks][2][Shape::kSums]) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  TileRing<Shape> next(work.memory + Shape::kRingAt);
  FactorRing<Shape> next_factor(work.memory + Shape::kFactorsAt);
  const auto load = [&] {
    if (!rows.done()) {
      if (rows.begins()) {
        load_factor(rows.step(), next_factor.at);
        next_factor.Advance();
      }
      rows.LoadNext(next.at);
    }
    ptx::CommitCopies();
    next.Advance();
  };
#pragma unroll 1
  for (int i = 0; i < Shape::kStages - 1; ++i) load();
  TileRing<Shape> ring(work.memory + Shape::kRingAt);
  FactorRing<Shape> factor(work.memory + Shape::kFactorsAt);
  for (int step = 0; step < work.steps; ++step) {
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      if (chunk >= work.chunks) break;
      const int parts = Parts<Shape>(work.chunk[chunk].rows);
#pragma unroll
      for (int part = 0; part < Shape::kBoxes; ++part) {
        if (part >= parts) break;
        ptx::WaitCopies<Shape::kStages - 2>();
        ptx::FenceSharedWrites();
        // The stage is there, and the one before it free.
        ptx::SyncThreads<kBarrierAll>(Shape::kThreads);
        load();
        wgmma::Fence();
#pragma unroll
        for (int i = 0; i < 2 / Shape::kBoxes; ++i) {
          const uint32_t at = ring.at + (2 * i + group) * wgmma::kBoxBytes;
#pragma unroll
          for (int box = 0; box < Shape::kBoxes; ++box) {
            const uint64_t a =
                wgmma::Descriptor<wgmma::Contiguous::kInner>(at + box * Shape::kBoxBytes);
            const uint64_t b =
                wgmma::SkinnyDescriptor<Shape::kUnits>(factor.at + box * Shape::kFactorBoxBytes);
#pragma unroll
            for (int k = 0; k < kStepFeatures / 16; ++k) {
              wgmma::AddSkinny<wgmma::Contiguous::kInner, wgmma::Contiguous::kOuter>(
                  sums[chunk][i + part], a + k * wgmma::Step(wgmma::Contiguous::kInner),
                  b + k * wgmma::kSkinnyStep<Shape::kUnits>);
            }
          }
        }
        wgmma::Commit();
        wgmma::WaitGroups<0>();
        ring.Advance();
      }
    }
    factor.Advance();
  }
}

// Sums of slices in memory: [groups of the launch, chunks, slices, kVectors, kRowThreads].
struct Partial {
  float4* sums;
  int32_t chunks;  // of a group at most
  int32_t slices;  // likewise
};

template <typename Shape>
__device__ void WritePartial(const Partial& partial, const Work& work,
                             const float (&sums)[Shape::kChunks][2][Shape::kSums]) {
  float4* to = partial.sums +
               (int64_t{blockIdx.y} * partial.chunks * partial.slices + blockIdx.x) *
                   Shape::kVectors * kRowThreads +
               threadIdx.x;
#pragma unroll
  for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
    if (chunk >= work.chunks) break;
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      const float* v = &sums[chunk][i / (2 * Shape::kUnits)][i % (2 * Shape::kUnits) * 4];
      __stcg(to + i * kRowThreads, make_float4(v[0], v[1], v[2], v[3]));
    }
    to += int64_t{partial.slices} * Shape::kVectors * kRowThreads;
  }
}

// What a block of a kernel that folds slices has: a vector of each thread that made them, of a
// chunk. Grid: kVectors, chunks of each group.
template <typename Shape>
struct FoldPlace {
  int group;  // of the launch
  int chunk;
  int vector;
  int eight;  // columns
  __device__ explicit FoldPlace(const Partial& partial)
      : group(static_cast<int>(blockIdx.y) / partial.chunks),
        chunk(static_cast<int>(blockIdx.y) % partial.chunks),
        vector(static_cast<int>(blockIdx.x)),
        eight(vector % (2 * Shape::kUnits)) {}
  // Of the thread's rows the first; the other lies 8 further.
  __device__ int Row() const {
    const int thread = static_cast<int>(threadIdx.x);
    return (vector / (2 * Shape::kUnits) * 2 + thread / kGroupThreads) * kTileRows +
           thread / kWarpLanes % 4 * 16 + thread % kWarpLanes / 4;
  }
  // Of the thread's two columns of the eight the first.
  __device__ int Column() const { return static_cast<int>(threadIdx.x) % 4 * 2; }
};

// The slices in ascending order.
template <typename Shape>
__device__ float4 Fold(const Partial& partial, const FoldPlace<Shape>& place, int slices) {
  const float4* from =
      partial.sums +
      (int64_t{blockIdx.y} * partial.slices * Shape::kVectors + place.vector) * kRowThreads +
      threadIdx.x;
  float4 sum = {};
#pragma unroll 8
  for (int slice = 0; slice < slices; ++slice) {
    const float4 v = __ldcg(from + int64_t{slice} * Shape::kVectors * kRowThreads);
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  return sum;
}

// A place's share of the zeros of a chunk's rows.
template <typename Shape>
__device__ void FoldZeros(const LoraTileGroup& group, const FoldPlace<Shape>& place,
                          __nv_bfloat16* to, int64_t stride, int columns) {
  const LoraTileGroup::Chunk chunk = group.chunk[place.chunk];
  const LoraOutputItem item = {.rows = {.first_row = chunk.first_row},
                               .zeros = group.zeros,
                               .party_begin = group.party_begin,
                               .party_end = group.party_end};
  WriteZeros(item, chunk.rows * place.vector / Shape::kVectors,
             chunk.rows * (place.vector + 1) / Shape::kVectors, static_cast<int>(threadIdx.x),
             kRowThreads, to != nullptr, to, stride, columns);
}

// Sums over the rows of the chunks in turns, of one warpgroup: [64 columns, ranks] in fixed point
// of each box of each step of the block's slice. add(first column, quanta) takes a step's where any
// chunk trains. False where a chunk's do not fit.
template <typename Shape, typename Add>
__device__ bool SumRows(const Work& work, Add&& add) {
  constexpr int kSums = Shape::kSums;
  constexpr int kBoxes = Shape::kBoxes;
  bool finite = true;
  TileRing<Shape> ring(work.memory + Shape::kRingAt);
  for (int step = 0; step < work.steps; ++step) {
    long long quanta[kBoxes][kSums] = {};
    bool any = false;
    for (int chunk = 0; chunk < work.chunks; ++chunk) {
      const bool train = work.chunk[chunk].train != 0;
      any |= train;
      const int parts = Parts<Shape>(work.chunk[chunk].rows);
      float c[kBoxes][kSums] = {};
#pragma unroll
      for (int part = 0; part < kBoxes; ++part) {
        if (part >= parts) break;
        ptx::SyncThreads<kBarrierAll>(Shape::kThreads);
        const uint64_t b =
            wgmma::SkinnyDescriptor<Shape::kUnits>(work.memory + chunk * Shape::kCoefficientBytes +
                                                   part * Shape::kPartRows * Shape::kRankBytes);
        if (train) {
#pragma unroll
          for (int box = 0; box < kBoxes; ++box) wgmma::Pin(c[box]);
          wgmma::Fence();
#pragma unroll
          for (int box = 0; box < kBoxes; ++box) {
            const uint64_t a =
                wgmma::Descriptor<wgmma::Contiguous::kOuter>(ring.at + box * Shape::kBoxBytes);
#pragma unroll
            for (int k = 0; k < Shape::kPartRows / 16; ++k) {
              wgmma::AddSkinny<wgmma::Contiguous::kOuter, wgmma::Contiguous::kOuter>(
                  c[box], a + k * wgmma::Step(wgmma::Contiguous::kOuter),
                  b + k * wgmma::kSkinnyStep<Shape::kUnits>);
            }
          }
          wgmma::Commit();
          wgmma::WaitGroups<0>();
#pragma unroll
          for (int box = 0; box < kBoxes; ++box) wgmma::Pin(c[box]);
        }
        ring.Advance();
      }
      if (!train) continue;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          if (i / 8 >= work.units) break;
          finite &= AddFixed(quanta[box][i], c[box][i]);
        }
      }
    }
    if (any && FirstColumn<Shape>(work, step) < work.columns) {
      add(FirstColumn<Shape>(work, step), quanta);
    }
  }
  return finite;
}

// Of value i of a thread of that warpgroup: which of the box's 64 columns, and which rank.
__device__ inline int ColumnOf(int i) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  return thread / kWarpLanes * 16 + thread % kWarpLanes / 4 + i / 2 % 2 * 8;
}
__device__ inline int RankOf(int i) {
  return i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}

// Runs kProducts for as many groups at a time as scratch memory has room for, and kFolds behind it,
// which adds up their slices.
template <typename Shape, auto kProducts, auto kFolds, typename Arguments>
void LaunchGroups(Arguments& arguments, int groups, int64_t partial_bytes, cudaStream_t stream) {
  const Partial& partial = arguments.partial;
  const int64_t group_bytes = int64_t{partial.chunks} * partial.slices * Shape::kVectors *
                              kRowThreads * int64_t{sizeof(float4)};
  assert(partial_bytes >= group_bytes);
  const int most = static_cast<int>(std::min<int64_t>(partial_bytes / group_bytes, groups));
  for (int first = 0; first < groups; first += most) {
    arguments.first_group = first;
    const int count = std::min(most, groups - first);
    const dim3 blocks(static_cast<unsigned>(partial.slices), static_cast<unsigned>(count));
    LaunchKernel(
        kProducts,
        {.grid = blocks, .threads = Shape::kThreads, .shared_bytes = Shape::kBytes, .early = true},
        stream, arguments);
    const dim3 folds(Shape::kVectors, static_cast<unsigned>(count * partial.chunks));
    LaunchKernel(kFolds, {.grid = folds, .threads = kRowThreads, .early = true}, stream, arguments);
  }
}

}  // namespace lorad::kernels::cuda::tiles
