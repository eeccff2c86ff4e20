// What ProjectInput and ProjectOutput share: 8 warps, a team, multiply the 256 rows of a chunk, 32
// a warp, by up to 64 ranks, steps of 64 features at a time, slice after slice. A block is one
// team, or two that take the same steps.
#ifndef LORAD_KERNELS_CUDA_LORA_SLICES_CUH_
#define LORAD_KERNELS_CUDA_LORA_SLICES_CUH_

#include "kernels/cuda/lora_device.cuh"
#include "kernels/cuda/lora_kernels.h"

namespace lorad::kernels::cuda {

inline constexpr int kChunkThreads = 256;
inline constexpr int kChunkRows = 256;
inline constexpr int kStepFeatures = 64;
inline constexpr int kStepPieces = kStepFeatures / 8;  // of 16 bytes a row
inline constexpr int kRowTiles = 2;                    // m16 tiles of a warp
inline constexpr int kRowBytes = kChunkRows * kStepFeatures * 2;
static_assert(kRowTiles * 16 * (kChunkThreads / kWarpLanes) == kChunkRows);

inline constexpr int kTeamsMax = 2;

__device__ inline int Team() { return static_cast<int>(threadIdx.x) / kChunkThreads; }
__device__ inline int TeamThread() { return static_cast<int>(threadIdx.x) % kChunkThreads; }
__device__ inline int TeamWarp() { return TeamThread() / kWarpLanes; }

// A thread's part of [256 rows, kUnits * 16 ranks].
template <int kUnits>
struct Sums {
  float c[kRowTiles][2 * kUnits][4];
};
template <int kUnits>
union Total {
  Sums<kUnits> sums;
  float values[kRowTiles * 2 * kUnits * 4];
};

// Adds a slice that is complete to the total, and begins the next.
template <int kUnits>
__device__ void AddSlice(Sums<kUnits>& sums, Total<kUnits>& total) {
#pragma unroll
  for (int i = 0; i < kRowTiles * 2 * kUnits; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& sum = sums.c[i / (2 * kUnits)][i % (2 * kUnits)][j];
      total.values[4 * i + j] += sum;
      sum = 0;
    }
  }
}

// Steps [begin, end) through a ring of kStages stages in shared memory: load(step, stage) starts
// the copies of a step, multiply(step, stage) reads them.
template <int kStages, int kStageBytes, typename Load, typename Multiply>
__device__ void Walk(int begin, int end, uint32_t ring, const Load& load,
                     const Multiply& multiply) {
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (begin + i < end) load(begin + i, ring + i * kStageBytes);
    ptx::CommitCopies();
  }
  int stage = 0;
  for (int step = begin; step < end; ++step) {
    ptx::WaitCopies<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before it is free
    if (step + kStages - 1 < end) {
      const int next = stage == 0 ? kStages - 1 : stage - 1;
      load(step + kStages - 1, ring + next * kStageBytes);
    }
    ptx::CommitCopies();
    const uint32_t at = ring + stage * kStageBytes;
    stage = stage == kStages - 1 ? 0 : stage + 1;
    multiply(step, at);
  }
}

// Sums over the inner feature are formed per slice and the slices folded in ascending order from
// zero, whoever forms them: one team all, or one team each. In the second case every thread leaves
// its sums of slice `slice` of the team's item (of at most slices_max) in scratch memory
// ([items][slices_max][values / 4][threads] float4) and the team that comes last adds them up. True
// in the threads of a team that holds the total. By all threads of the block, with as many slices;
// item -1: a team without work.
template <int kUnits>
__device__ bool FoldSlices(Total<kUnits>& total, const LoraScratch& scratch, int item, int slice,
                           int slices, int slices_max) {
  constexpr int kVectors = kRowTiles * 2 * kUnits;
  float4* partial =
      scratch.partial + int64_t{item} * slices_max * kVectors * kChunkThreads + TeamThread();
  if (item >= 0) {
    float4* mine = partial + int64_t{slice} * kVectors * kChunkThreads;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* v = total.values + 4 * i;
      __stcg(mine + i * kChunkThreads, make_float4(v[0], v[1], v[2], v[3]));
    }
  }
  __threadfence();
  __shared__ bool last[kTeamsMax];
  __syncthreads();
  if (TeamThread() == 0) {
    int32_t* counter = scratch.counters + item;
    last[Team()] = item >= 0 && atomicAdd(counter, 1) == slices - 1;
    if (last[Team()]) *counter = 0;  // for the next launch
  }
  __syncthreads();
  if (!last[Team()]) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < 4 * kVectors; ++i) total.values[i] = 0;
  for (int s = 0; s < slices; ++s) {
    const float4* theirs = partial + int64_t{s} * kVectors * kChunkThreads;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 v = __ldcg(theirs + i * kChunkThreads);
      total.values[4 * i] += v.x;
      total.values[4 * i + 1] += v.y;
      total.values[4 * i + 2] += v.z;
      total.values[4 * i + 3] += v.w;
    }
  }
  return true;
}

// Whether that many items of that many slices can be formed by a block a slice.
template <int kUnits>
bool HaveRoomForSlices(const LoraScratch& scratch, int items, int slices) {
  const int64_t bytes =
      int64_t{items} * slices * kRowTiles * 2 * kUnits * int64_t{sizeof(float4)} * kChunkThreads;
  return items <= kLoraCounters && bytes <= scratch.partial_bytes;
}

// Zeros in the item's rows of S or dS [T, columns] outside its party's columns, if they are its to
// write and there is such a tensor.
template <typename Item>
__device__ void WriteZeros(const Item& item, bool exists, __nv_bfloat16* to, int64_t stride,
                           int columns) {
  if (item.zeros == 0 || !exists) return;
  constexpr int kPieceColumns = 8;
  const int pieces = columns / kPieceColumns;
  for (int i = TeamThread(); i < item.rows.rows * pieces; i += kChunkThreads) {
    const int column = i % pieces * kPieceColumns;
    if (column >= item.party_begin && column < item.party_end) continue;
    const int64_t row = item.rows.first_row + i / pieces;
    *reinterpret_cast<uint4*>(to + row * stride + column) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LORA_SLICES_CUH_
