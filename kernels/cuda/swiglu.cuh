// SwiGLU of one element (equations: backend.h), for whichever kernel has it at hand: the same bits.
#ifndef LORAD_KERNELS_CUDA_SWIGLU_CUH_
#define LORAD_KERNELS_CUDA_SWIGLU_CUH_

namespace lorad::kernels::cuda {

__device__ inline float Sigmoid(float g) { return 1.0f / (1.0f + expf(-g)); }

__device__ inline float SwiGluOf(float gate, float up) { return gate * Sigmoid(gate) * up; }

struct SwiGluGradients {
  float gate;
  float up;
};

// d: the gradient of silu(gate) * up.
__device__ inline SwiGluGradients SwiGluGradientsOf(float gate, float up, float d) {
  const float sigmoid = Sigmoid(gate);
  const float silu = gate * sigmoid;
  return {d * up * (sigmoid + silu * (1.0f - sigmoid)), d * silu};
}

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_SWIGLU_CUH_
