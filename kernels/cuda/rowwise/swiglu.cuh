// SwiGLU of one element (equations: backend.h), for whichever kernel has it at hand: the same bits.
#pragma once

#include "kernels/cuda/device/ptx.cuh"

namespace lorad::kernels::cuda {

// Without a branch, so that a thread has several under way.
__device__ inline float Sigmoid(float g) {
  constexpr float kLog2E = 1.44269504f;
  return ptx::Reciprocal(1.0f + ptx::Exp2(-kLog2E * g));
}

__device__ inline float SwiGluOf(float gate, float up) { return gate * Sigmoid(gate) * up; }

struct SwiGluGradients {
  float gate;
  float up;
};

// d: the gradient of silu(gate) * up.
__device__ inline SwiGluGradients SwiGluGradientsOf(float gate, float up, float d) {
  const float sigmoid = Sigmoid(gate);
  const float d_sigmoid = d * sigmoid;
  const float d_silu = gate * d_sigmoid;
  return {up * __fmaf_rn(d_silu, 1.0f - sigmoid, d_sigmoid), d_silu};
}

}  // namespace lorad::kernels::cuda
