// Device code that the kernels of the LoRA linear share: asynchronous copies, matrix fragments,
// dropout selects, fixed-point sums, the fold of partial sums.
//
// Fragments are those of mma.sync.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"): with
// g = lane / 4 and q = lane % 4, A holds rows g and g + 8 at inner indices 2q, 2q+1, 2q+8, 2q+9; B
// column g at the same inner indices; C rows g, g + 8 at columns 2q, 2q + 1.
//
// Tiles lie in shared memory in rows of 16-byte pieces, piece p of row r in the place p ^ f(r)
// (f below), so that the 8 rows of an 8 x 8 matrix touch all 32 banks.
#ifndef LORAD_KERNELS_CUDA_LORA_DEVICE_CUH_
#define LORAD_KERNELS_CUDA_LORA_DEVICE_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/lora_tables.h"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {

inline constexpr int kWarpLanes = 32;

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, or zeros where !valid (the source is not read then).
__device__ inline void CopyAsync(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void LoadMatrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline void LoadMatricesTransposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline void LoadMatricesTransposed(uint32_t address, uint32_t (&r)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

__device__ inline uint4 LoadShared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// c += A B, bf16 operands, fp32 sums.
__device__ inline void Multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Byte offset of piece `piece` of row `row` in a tile of kPieces (2, 4 or 8) pieces a row.
template <int kPieces>
__device__ inline uint32_t TileOffset(int row, int piece) {
  const int shift = row * kPieces / 8;
  return static_cast<uint32_t>(row * kPieces + (piece ^ (shift & (kPieces - 1)))) * 16;
}

// Philox of 8 consecutive features of one row: kept where the 16-bit lane is at least the
// threshold.
__device__ inline PhiloxCounter DropoutLanes(const LoraRows& rows, uint32_t word0, int row,
                                             int feature) {
  return Philox(rows.seed,
                {{word0 + static_cast<uint32_t>(feature / kDropoutLanes),
                  static_cast<uint32_t>(rows.first_position + row), rows.sequence, rows.step}});
}

// 8 features as they are where kept, zero elsewhere.
__device__ inline uint4 Select(uint4 v, const PhiloxCounter& lanes, uint32_t threshold_twice) {
  v.x &= __vcmpgeu2(lanes.word[0], threshold_twice);
  v.y &= __vcmpgeu2(lanes.word[1], threshold_twice);
  v.z &= __vcmpgeu2(lanes.word[2], threshold_twice);
  v.w &= __vcmpgeu2(lanes.word[3], threshold_twice);
  return v;
}

// Bit f: feature f of the 8 is kept.
__device__ inline uint32_t MaskByte(const PhiloxCounter& lanes, uint32_t threshold) {
  uint32_t byte = 0;
  for (int w = 0; w < 4; ++w) {
    byte |= static_cast<uint32_t>((lanes.word[w] & 0xFFFF) >= threshold) << (2 * w);
    byte |= static_cast<uint32_t>((lanes.word[w] >> 16) >= threshold) << (2 * w + 1);
  }
  return byte;
}

// *sum += value in fixed point (kGradientQuantum); false, and nothing added, where it is not finite
// or too large.
__device__ inline bool AddFixed(int64_t* sum, float value) {
  constexpr float kScale = static_cast<float>(1.0 / kGradientQuantum);
  if (!(fabsf(value) < static_cast<float>(kGradientLimit))) return false;
  const long long quanta = __float2ll_rn(value * kScale);  // the product is exact
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(quanta));
  return true;
}

// Lets the next kernel of the stream start, if it was launched early, as soon as all blocks of this
// one have said so or ended, and multiprocessors become free.
__device__ inline void AllowNextLaunch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel before this one has ended, if this one was launched early.
__device__ inline void AwaitPreviousKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Sums over the inner feature are formed per slice and the slices folded in ascending order from
// zero, whoever forms them: one block all, or one block each. In the second case every thread
// leaves its kValues sums of slice `slice` in `partial` ([slices][kValues / 4][threads] float4) and
// the block that comes last adds them up. True in the thread's block if it holds the total.
template <int kThreads, int kValues>
__device__ bool FoldSlices(float (&total)[kValues], float4* partial, int32_t* counter, int slice,
                           int slices) {
  static_assert(kValues % 4 == 0);
  constexpr int kVectors = kValues / 4;
  float4* mine = partial + int64_t{slice} * kVectors * kThreads + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    __stcg(mine + i * kThreads,
           make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]));
  }
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == slices - 1;
    if (last) *counter = 0;  // for the next launch
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < kValues; ++i) total[i] = 0;
  for (int s = 0; s < slices; ++s) {
    const float4* theirs = partial + int64_t{s} * kVectors * kThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 v = __ldcg(theirs + i * kThreads);
      total[4 * i] += v.x;
      total[4 * i + 1] += v.y;
      total[4 * i + 2] += v.z;
      total[4 * i + 3] += v.w;
    }
  }
  return true;
}

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LORA_DEVICE_CUH_
