// What ProjectInput and ProjectOutput share: warps multiply the rows of a chunk, 16 or 32 a warp,
// by up to 64 ranks, steps of 64 features at a time, slice after slice.
#pragma once

#include "kernels/cuda/lora/device.cuh"
#include "kernels/cuda/lora/kernels.h"

namespace lorad::kernels::cuda {

inline constexpr int kChunkRows = 256;
inline constexpr int kStepFeatures = 64;
inline constexpr int kStepPieces = kStepFeatures / 8;  // of 16 bytes a row
inline constexpr int kStepRowBytes = kStepFeatures * 2;

// A thread's part of [rows, kUnits * 16 ranks]: kTiles m16 tiles a warp.
template <int kUnits, int kTiles>
struct Sums {
  float c[kTiles][2 * kUnits][4];
};
template <int kUnits, int kTiles>
union Total {
  Sums<kUnits, kTiles> sums;
  float values[kTiles * 2 * kUnits * 4];
};

// Adds a slice that is complete to the total, and begins the next.
template <int kUnits, int kTiles>
__device__ void AddSlice(Sums<kUnits, kTiles>& sums, Total<kUnits, kTiles>& total) {
#pragma unroll
  for (int i = 0; i < kTiles * 2 * kUnits; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& sum = sums.c[i / (2 * kUnits)][i % (2 * kUnits)][j];
      total.values[4 * i + j] += sum;
      sum = 0;
    }
  }
}

// Steps [begin, end) through a ring of kStages stages in shared memory: load(step, stage) starts
// the copies of a step, in order, multiply(step, stage) reads them.
template <int kStages, int kStageBytes, typename Load, typename Multiply>
__device__ void Walk(int begin, int end, uint32_t ring, Load&& load, Multiply&& multiply) {
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (begin + i < end) load(begin + i, ring + i * kStageBytes);
    ptx::CommitCopies();
  }
  uint32_t at = ring;
  uint32_t before = ring + (kStages - 1) * kStageBytes;
  for (int step = begin; step < end; ++step) {
    ptx::WaitCopies<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before it is free
    if (step + kStages - 1 < end) load(step + kStages - 1, before);
    ptx::CommitCopies();
    multiply(step, at);
    before = at;
    at += kStageBytes;
    if (at == ring + kStages * kStageBytes) at = ring;
  }
}

// Sums over the inner feature are formed per slice and the slices folded in ascending order from
// zero, whoever forms them: one team all, or one team each; a team is kThreads threads of the
// block, of at most two. In the second case every thread leaves its sums of slice `slice` of the
// team's item (of at most slices_max) in scratch memory ([items][slices_max][values / 4][threads]
// float4) and the team that comes last adds them up. True in the threads of a team that holds the
// total. By all threads of the block, with as many slices; item -1: a team without work; `holds`:
// the thread's sums are of use, in every slice alike.
template <int kThreads, int kUnits, int kTiles>
__device__ bool FoldSlices(Total<kUnits, kTiles>& total, const LoraScratch& scratch, int item,
                           int slice, int slices, int slices_max, bool holds = true) {
  constexpr int kVectors = kTiles * 2 * kUnits;
  const int team = static_cast<int>(threadIdx.x) / kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  float4* partial = scratch.partial + int64_t{item} * slices_max * kVectors * kThreads + thread;
  if (item >= 0 && holds) {
    float4* mine = partial + int64_t{slice} * kVectors * kThreads;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* v = total.values + 4 * i;
      __stcg(mine + i * kThreads, make_float4(v[0], v[1], v[2], v[3]));
    }
  }
  __threadfence();
  __shared__ bool last[2];
  __syncthreads();
  if (thread == 0) {
    int32_t* counter = scratch.counters + item;
    last[team] = item >= 0 && atomicAdd(counter, 1) == slices - 1;
    if (last[team]) *counter = 0;  // for the next launch
  }
  __syncthreads();
  if (!last[team] || !holds) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < 4 * kVectors; ++i) total.values[i] = 0;
  for (int s = 0; s < slices; ++s) {
    const float4* theirs = partial + int64_t{s} * kVectors * kThreads;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 v = __ldcg(theirs + i * kThreads);
      total.values[4 * i] += v.x;
      total.values[4 * i + 1] += v.y;
      total.values[4 * i + 2] += v.z;
      total.values[4 * i + 3] += v.w;
    }
  }
  return true;
}

// Whether that many items of that many rows and slices can be formed by a team a slice.
template <int kUnits>
bool HaveRoomForSlices(const LoraScratch& scratch, int items, int rows, int slices) {
  const int64_t bytes =
      int64_t{items} * slices * rows * kUnits * kUnitRanks * int64_t{sizeof(float)};
  return items <= kLoraCounters && bytes <= scratch.partial_bytes;
}

// Zeros in the item's rows [begin, end) of S or dS [T, columns] outside its party's columns, if
// they are its to write and there is such a tensor. By `threads` threads, of which this is
// `thread`.
template <typename Item>
__device__ void WriteZeros(const Item& item, int begin, int end, int thread, int threads,
                           bool exists, __nv_bfloat16* to, int64_t stride, int columns) {
  if (item.zeros == 0 || !exists) return;
  constexpr int kPieceColumns = 8;
  const int pieces = columns / kPieceColumns;
  for (int i = thread; i < (end - begin) * pieces; i += threads) {
    const int column = i % pieces * kPieceColumns;
    if (column >= item.party_begin && column < item.party_end) continue;
    const int64_t row = item.rows.first_row + begin + i / pieces;
    *reinterpret_cast<uint4*>(to + row * stride + column) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace lorad::kernels::cuda
