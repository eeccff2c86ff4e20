// Instructions that several kernels use, one thin function each: matrix fragments and products of a
// warp, asynchronous copies to shared memory, launches that overlap. Compute capability 8.0 and
// newer; what is Hopper's alone is in ptx_hopper.cuh.
// Source: the PTX instruction set's manual, sections "ldmatrix", "mma", "cp.async", "red",
// "griddepcontrol".
//
// Fragments are those of mma.sync.m16n8k16 (there: "Matrix fragments for mma.m16n8k16"): with
// g = lane / 4 and q = lane % 4, A holds rows g and g + 8 at inner indices 2q, 2q+1, 2q+8, 2q+9; B
// column g at the same inner indices; C rows g, g + 8 at columns 2q, 2q + 1.
#pragma once

#include <cstdint>

namespace lorad::kernels::cuda::ptx {

// An address inside shared memory, as instructions take it.
__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 2^x to 2 bits of its last place; subnormal results are 0.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to 1 bit of its last place; subnormal results are 0.
__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint4 LoadShared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ inline void StoreShared(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// A barrier among `threads` threads of the block, whole warps; id 0 is __syncthreads.
__device__ inline void SyncThreads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same for an id that is known now: a kernel reserves barriers up to the largest, not all.
template <int kId>
__device__ inline void SyncThreads(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "r"(threads) : "memory");
}

// ---- asynchronous copies ----

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

// Of what a kernel that may still run at this one's start wrote, once it is awaited: never read
// sooner, nor out of the cache for what does not change.
__device__ inline uint32_t LoadGlobal(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}

// *to += value, at once, if wanted; `to` is in global memory.
__device__ inline void AddGlobal(int64_t* to, int64_t value, bool wanted = true) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %2, 0;\n"
      "@wanted red.global.add.u64 [%0], %1;\n"
      "}" ::"l"(__cvta_generic_to_global(to)),
      "l"(value), "r"(wanted ? 1 : 0)
      : "memory");
}

// ---- matrices of 8x8 bf16 from shared memory; lane l names row l % 8 of matrix l / 8 ----

__device__ inline void LoadMatrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Each 8x8 matrix transposed.
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

// C [16, 8] += A [16, 16] B [16, 8], bf16 operands, fp32 sums.
__device__ inline void Multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// a: as LoadMatrices gives the 8x8 parts of A in the order (upper, left), (lower, left), (upper,
// right), (lower, right); b: as LoadMatricesTransposed gives the upper and the lower part of B.
__device__ inline void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Multiply(c, a[0], a[1], a[2], a[3], b0, b1);
}

// ---- kernels one after the other; nothing before compute capability 9.0 ----

// Lets the next kernel of the stream start, if it was launched early, as soon as all blocks of this
// one have said so or ended, and multiprocessors become free.
__device__ inline void AllowNextLaunch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel before this one in the stream has ended, and what it wrote can be read,
// if this one was launched early.
__device__ inline void AwaitPreviousKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// First of all in a kernel that is launched early and reads what the one before it wrote.
__device__ inline void TakeTurn() {
  AwaitPreviousKernel();
  AllowNextLaunch();
}

}  // namespace lorad::kernels::cuda::ptx
