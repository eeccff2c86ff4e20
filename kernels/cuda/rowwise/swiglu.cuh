// SwiGLU and GeGLU of one element (equations: backend.h), for whichever kernel has it at hand: the
// same bits.
#pragma once

#include "kernels/batch.h"
#include "kernels/cuda/device/ptx.cuh"

namespace lorad::kernels::cuda {

// Without a branch, so that a thread has several under way.
__device__ inline float Sigmoid(float g) {
  constexpr float kLog2E = 1.44269504f;
  return ptx::Reciprocal(1.0f + ptx::Exp2(-kLog2E * g));
}

// What the gate's sigmoid is taken of, and its slope.
template <Gate kGate>
struct GateArgument {
  static __device__ float Of(float gate) { return gate; }
  static __device__ float Slope(float) { return 1.0f; }
};
template <>
struct GateArgument<Gate::kGeluTanh> {
  static constexpr float kScale = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  static __device__ float Of(float gate) {
    return kScale * gate * __fmaf_rn(kCubic, gate * gate, 1.0f);
  }
  static __device__ float Slope(float gate) {
    return kScale * __fmaf_rn(3.0f * kCubic, gate * gate, 1.0f);
  }
};

template <Gate kGate>
__device__ inline float SwiGluOf(float gate, float up) {
  return gate * Sigmoid(GateArgument<kGate>::Of(gate)) * up;
}

struct SwiGluGradients {
  float gate;
  float up;
};

// d: the gradient of gate(g) * up.
template <Gate kGate>
__device__ inline SwiGluGradients SwiGluGradientsOf(float gate, float up, float d) {
  const float sigmoid = Sigmoid(GateArgument<kGate>::Of(gate));
  const float d_sigmoid = d * sigmoid;
  const float d_gate = gate * d_sigmoid;
  float steep = d_gate;
  if constexpr (kGate != Gate::kSilu) steep *= GateArgument<kGate>::Slope(gate);
  return {up * __fmaf_rn(steep, 1.0f - sigmoid, d_sigmoid), d_gate};
}

}  // namespace lorad::kernels::cuda
