// Matrix products of a warpgroup (wgmma): C [64, N] += A [64, 16] B [16, N], bf16 in shared memory
// (A also in registers), sums in fp32 registers.
//
// Operands lie in shared memory as the bulk tensor copy leaves boxes 64 elements (128 bytes) wide
// with its 128-byte swizzle, and are named by descriptors. Thread t of the warpgroup holds of C,
// for j < N / 8, i < 2 and c < 2, element (16 (t / 32) + (t % 32) / 4 + 8 i, 8 j + 2 (t % 4) + c)
// in d[4 j + 2 i + c]. So columns 16 s to 16 s + 15 of C, rounded and packed in pairs, d[8 s]
// first, are the four registers of an A [64, 16]. Source: the PTX instruction set's manual,
// "Asynchronous warpgroup level matrix instructions".
#pragma once

#include <cstdint>

namespace lorad::kernels::cuda::wgmma {

// How B [16, N] lies in shared memory: kInner as rows of N with the inner index contiguous (from a
// row-major [N, inner]), kOuter as rows of the inner index with N contiguous (row-major [inner,
// N]).
enum class Contiguous : int { kInner = 0, kOuter = 1 };

// Bytes of a box 64 elements wide and 64 rows tall.
inline constexpr uint32_t kBoxBytes = 8192;

// Descriptor of an operand at `address`. Eight rows of 128 bytes are 1024 apart; chunks of 64
// columns of a kOuter operand are kChunkBytes apart.
template <Contiguous kContiguous, uint32_t kChunkBytes = kBoxBytes>
__device__ inline uint64_t Descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kChunk = uint64_t{kContiguous == Contiguous::kOuter ? kChunkBytes >> 4 : 1}
                              << 16;
  return kSwizzle128 | kEightRows | kChunk | ((address & 0x3ffff) >> 4);
}

// What the next 16 inner elements add to a descriptor.
__host__ __device__ constexpr uint64_t Step(Contiguous contiguous) {
  return (contiguous == Contiguous::kInner ? 16 * 2 : 16 * 128) >> 4;
}

// Before the first product that reads registers written by other instructions.
__device__ inline void Fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void Commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the last `kGroups` committed groups are done.
template <int kGroups>
__device__ inline void WaitGroups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// What reads or writes these registers stays on its side of this.
template <int kCount>
__device__ inline void Pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ inline void Pin(uint32_t (&packed)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(packed[i])::"memory");
}
template <int kSteps>
__device__ inline void Pin(uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// clang-format off
#define LORAD_WGMMA_REGISTERS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LORAD_WGMMA_REGISTERS_32 \
  LORAD_WGMMA_REGISTERS_16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LORAD_WGMMA_REGISTERS_64 \
  LORAD_WGMMA_REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LORAD_WGMMA_REGISTERS_96 \
  LORAD_WGMMA_REGISTERS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LORAD_WGMMA_REGISTERS_128 \
  LORAD_WGMMA_REGISTERS_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LORAD_WGMMA_SUMS_8(f, i) \
  f(d[i]), f(d[i + 1]), f(d[i + 2]), f(d[i + 3]), \
  f(d[i + 4]), f(d[i + 5]), f(d[i + 6]), f(d[i + 7])
#define LORAD_WGMMA_SUMS_16(f, i) LORAD_WGMMA_SUMS_8(f, i), LORAD_WGMMA_SUMS_8(f, i + 8)
#define LORAD_WGMMA_SUMS_32(f, i) LORAD_WGMMA_SUMS_16(f, i), LORAD_WGMMA_SUMS_16(f, i + 16)
#define LORAD_WGMMA_SUMS_64(f, i) LORAD_WGMMA_SUMS_32(f, i), LORAD_WGMMA_SUMS_32(f, i + 32)
#define LORAD_WGMMA_SUMS_96(f, i) LORAD_WGMMA_SUMS_64(f, i), LORAD_WGMMA_SUMS_32(f, i + 64)
#define LORAD_WGMMA_SUMS_128(f, i) LORAD_WGMMA_SUMS_64(f, i), LORAD_WGMMA_SUMS_64(f, i + 64)
// clang-format on

// Start: C = A B.  Add: C += A B.  d: the 64 x N sums of the warpgroup.
template <Contiguous kB>
__device__ inline void Start(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_32
               "}, %32, %33, 0, 1, 1, 0, %34;"
               : LORAD_WGMMA_SUMS_32("=f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Add(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_32
               "}, %32, %33, 1, 1, 1, 0, %34;"
               : LORAD_WGMMA_SUMS_32("+f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Start(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_64
               "}, %64, %65, 0, 1, 1, 0, %66;"
               : LORAD_WGMMA_SUMS_64("=f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Add(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_64
               "}, %64, %65, 1, 1, 1, 0, %66;"
               : LORAD_WGMMA_SUMS_64("+f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Start(float (&d)[96], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_96
               "}, %96, %97, 0, 1, 1, 0, %98;"
               : LORAD_WGMMA_SUMS_96("=f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Add(float (&d)[96], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_96
               "}, %96, %97, 1, 1, 1, 0, %98;"
               : LORAD_WGMMA_SUMS_96("+f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Start(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_128
               "}, %128, %129, 0, 1, 1, 0, %130;"
               : LORAD_WGMMA_SUMS_128("=f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Add(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_128
               "}, %128, %129, 1, 1, 1, 0, %130;"
               : LORAD_WGMMA_SUMS_128("+f", 0)
               : "l"(a), "l"(b), "n"(static_cast<int>(kB)));
}

// A in registers, which must stay as they are until the product is done.
template <Contiguous kB>
__device__ inline void Start(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_32
               "}, {%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
               : LORAD_WGMMA_SUMS_32("=f", 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Add(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
               : LORAD_WGMMA_SUMS_32("+f", 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kB)));
}
template <Contiguous kB>
__device__ inline void Add(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LORAD_WGMMA_REGISTERS_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
               : LORAD_WGMMA_SUMS_64("+f", 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kB)));
}

}  // namespace lorad::kernels::cuda::wgmma
