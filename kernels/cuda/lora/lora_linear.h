// The multi-adapter LoRA linear on a GPU, both directions (equations: backend.h): skinny products
// (kernels.h) around the frozen ones (gemm.h). Everything but a first use of a group in a
// microbatch (LoraPlan) may be captured into a CUDA graph.
#pragma once

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/handles/handles.h"
#include "kernels/cuda/lora/plan.h"

namespace lorad::kernels::cuda {

struct LoraContext {
  Context& context;
  Gemm& gemm;
  void* gemm_workspace;  // Gemm::WorkspaceBytes()
  const LoraMemory& memory;
};

// `saved` [T, C], C at least the padded ranks of any slot's targets in the group, or empty: S,
// written for the backward. `gated` [T, O / 2], where FusesSwiGlu: y is gate beside up, and
// SwiGlu(y) is written as well. `rope`, where FusesRope: y is turned.
void LoraLinear(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                const CudaAdapterTable& table, int32_t group, const TensorView& x,
                const TensorView& residual, const TensorView& y, const TensorView& saved = {},
                const TensorView& gated = {}, const GemmRope& rope = {}, Gate gate = Gate::kSilu);

// `saved`: as the forward left it; empty: S is computed again, one more pass over x. `gate_up`,
// where FusesSwiGluBackward: x was SwiGlu(gate_up), and dx [T, 2K] is the gradient of gate_up,
// which it may alias.
void LoraLinearBackward(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                        CudaAdapterTable& table, int32_t group, const TensorView& x,
                        const TensorView& dy, const TensorView& dx, const TensorView& saved = {},
                        const TensorView& gate_up = {}, Gate gate = Gate::kSilu);

// Rope of the first `rotated` columns of a linear's output, as its product takes it. angles: the
// table of Rope (backend.h).
GemmRope RopeOf(const CudaBatch& batch, const TensorView& angles, int64_t rotated);
// Whether it can be the last step of the product: by our own kernel, where all outputs are heads
// of 64, 128, ... elements.
bool FusesRope(const LoraContext& lora, const CudaLinear& linear, const GemmRope& rope);

// Whether SwiGLU can be the last step of the linear's product: of its output, by our own kernel,
// without a bias; its backward of the input's gradient, where no target of more than 16 ranks
// drops.
bool FusesSwiGlu(const LoraContext& lora, const CudaLinear& linear);
bool FusesSwiGluBackward(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                         const CudaAdapterTable& table, int32_t group);

}  // namespace lorad::kernels::cuda
