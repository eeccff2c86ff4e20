// Elements of either activation type in kernels that work in float32, and sums of a warp.
#pragma once

#include <cuda_bf16.h>

#include <cassert>
#include <cstdint>

#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Two bf16 in a word, the first in its lower half.
__device__ inline uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float2 Unpack(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

// The sum over the warp's lanes, in all of them.
__device__ inline float WarpSum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, step);
  return value;
}

// Calls launch(T{}) with the C++ type of `dtype`.
template <typename Launch>
void ForType(DType dtype, Launch&& launch) {
  if (dtype == DType::kFloat32) return launch(float{});
  assert(dtype == DType::kBfloat16);
  launch(__nv_bfloat16{});
}

}  // namespace lorad::kernels::cuda
