// The multi-adapter LoRA linear on a GPU, both directions (equations: backend.h): skinny products
// (lora_kernels.h) around the frozen ones (gemm.h). Everything but a first use of a group in a
// microbatch (LoraPlan) may be captured into a CUDA graph.
#ifndef LORAD_KERNELS_CUDA_LORA_LINEAR_H_
#define LORAD_KERNELS_CUDA_LORA_LINEAR_H_

#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/lora_plan.h"

namespace lorad::kernels::cuda {

struct LoraContext {
  Context& context;
  Gemm& gemm;
  void* gemm_workspace;  // Gemm::WorkspaceBytes()
  const LoraMemory& memory;
};

// `saved` [T, C], C at least the padded ranks of any slot's targets in the group, or empty: S,
// written for the backward.
void LoraLinear(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                const CudaAdapterTable& table, int32_t group, const TensorView& x,
                const TensorView& residual, const TensorView& y, const TensorView& saved = {});

// `saved`: as the forward left it; empty: S is computed again, one more pass over x.
void LoraLinearBackward(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                        CudaAdapterTable& table, int32_t group, const TensorView& x,
                        const TensorView& dy, const TensorView& dx, const TensorView& saved = {});

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LORA_LINEAR_H_
