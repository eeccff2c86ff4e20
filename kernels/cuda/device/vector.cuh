// Units of 8 consecutive elements: the grain of the row-wise kernels. A unit is moved as 16-byte
// words where the rows allow it and element by element where not; values and the order of sums are
// the same either way.
#pragma once

#include <cuda_bf16.h>

#include <cassert>
#include <cstdint>

#include "kernels/cuda/device/element.cuh"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

inline constexpr int kUnit = 8;

// A matrix as a kernel sees it.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;  // elements
  bool aligned;    // every row starts at a multiple of 16 bytes, and columns are a multiple of 8

  __device__ T* row(int64_t index) const { return data + index * stride; }
};

template <typename T>
Rows<T> RowsOf(const TensorView& view) {
  assert(BytesOf(view.dtype) == sizeof(T));
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
                       view.row_stride * sizeof(T) % 16 == 0 && view.columns % kUnit == 0;
  return {static_cast<T*>(view.data), view.row_stride, aligned};
}

struct Unit {
  float value[kUnit];
};

// A unit as it lies in memory: half the registers of a Unit where T is bfloat16.
template <typename T>
struct alignas(16) Packed {
  T value[kUnit];
};

__device__ inline Unit Unpack(const Packed<float>& packed) {
  Unit unit;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) unit.value[i] = packed.value[i];
  return unit;
}

__device__ inline Unit Unpack(const Packed<__nv_bfloat16>& packed) {
  const uint4 words = *reinterpret_cast<const uint4*>(packed.value);
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  Unit unit;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unit.value[2 * i] = __uint_as_float(word[i] << 16);
    unit.value[2 * i + 1] = __uint_as_float(word[i] & 0xFFFF0000u);
  }
  return unit;
}

__device__ inline void StoreWords(const Unit& from, float* to) {
  reinterpret_cast<float4*>(to)[0] =
      make_float4(from.value[0], from.value[1], from.value[2], from.value[3]);
  reinterpret_cast<float4*>(to)[1] =
      make_float4(from.value[4], from.value[5], from.value[6], from.value[7]);
}

__device__ inline void StoreWords(const Unit& from, __nv_bfloat16* to) {
  __nv_bfloat162 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = __floats2bfloat162_rn(from.value[2 * i], from.value[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(pairs);
}

// Elements [first, first + 8) of a row of `columns`; zero beyond its end.
template <typename T>
__device__ Packed<T> LoadPacked(const T* row, int64_t first, int64_t columns, bool aligned) {
  Packed<T> packed;
  if (aligned) {
    constexpr int kWords = sizeof(packed) / sizeof(uint4);
    uint4* words = reinterpret_cast<uint4*>(packed.value);
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4*>(row + first)[i];
    return packed;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    packed.value[i] = first + i < columns ? row[first + i] : FromFloat<T>(0.0f);
  }
  return packed;
}

template <typename T>
__device__ Unit LoadUnit(const T* row, int64_t first, int64_t columns, bool aligned) {
  return Unpack(LoadPacked(row, first, columns, aligned));
}

template <typename T>
__device__ void StoreUnit(const Unit& unit, T* row, int64_t first, int64_t columns, bool aligned) {
  if (aligned) {
    StoreWords(unit, row + first);
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    if (first + i < columns) row[first + i] = FromFloat<T>(unit.value[i]);
  }
}

}  // namespace lorad::kernels::cuda
