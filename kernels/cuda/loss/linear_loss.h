// Head and loss of the CUDA backend (kernels/backend.h, LinearLoss): with the loss rows x_i =
// x[r_i] gathered,
//   z = x W^T,   log_p = z[t] - log sum exp(z),   unit = W[t] - softmax(z) W,
// in chunks of rows, so that nothing as wide as the vocabulary exists for a whole microbatch. Rows
// whose segment trains come first, the rest go through the first half alone.
//
// bf16 where Gemm::own(): logits are never in memory. The first product leaves exp(z - r) in bf16,
// r about z[t], with sums of them before rounding, and the second one's results are scaled and
// added to W[t] as they leave (sums.h): 2 bytes a logit, and no pass over them.
// Elsewhere: float32 logits, a softmax that leaves onehot(t) - softmax(z) in the activation type,
// and its product with W.
// Either way unit is right to 2e-3 (bf16: p rounded, unit too), and log_p to 1e-5 at H = 256, where
// logits are 16; at 4,096 to 1e-4, for matrix units truncate. Logits in bf16, as transformers
// rounds them, would be off by up to 1/16, and so would log_p.
//
// A chunk is as many rows as fill the device in the second product (whose inner dimension is the
// vocabulary and whose output is narrow) and fit in memory. That changes no bits: products give
// equal bits for equal rows (gemm.h).
// x, W [V, H], unit: activation type; log_p float32.
#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/handles/handles.h"
#include "kernels/cuda/loss/kernels.h"
#include "kernels/cuda/loss/sums.h"
#include "kernels/tensor.h"
#include "sizes/cuda_loss.h"

namespace lorad::kernels::cuda {

struct LinearLossOptions {
  // Rows of a chunk, a multiple of 256; 0: chosen by the shape. Changes speed and memory alone.
  int64_t rows = 0;
};

class LinearLossOperation {
 public:
  // Both outlive this.
  LinearLossOperation(Context& context, Gemm& gemm, const LinearLossOptions& options = {});

  // Scratch that any batch within `limits` needs, Gemm::WorkspaceBytes included.
  int64_t WorkspaceBytes(const Limits& limits) const;
  // Device memory, aligned to 256, shared with other operations of the stream. Replaces the last.
  void SetWorkspace(void* data, int64_t bytes);

  // Makes the batch's tables, so that the operation uploads nothing. Done by it otherwise.
  void Prepare(const CudaBatch& batch);
  // unit [n, H] may be empty; its rows that do not train are left as they were.
  void Run(const CudaBatch& batch, const TensorView& x, const CudaLinear& head,
           const TensorView& log_p, const TensorView& unit, float cap = 0);
  // Backend::Logits of the rows [n] in device memory. The products are cuBLASLt's, whose algorithm
  // is one for all n, into float32; z: its memory and its rows aligned to 16 bytes.
  void Logits(const TensorView& x, const int32_t* rows, const CudaLinear& head, float cap,
              const TensorView& z);

 private:
  using Plan = sizes::CudaLossLayout;
  bool Fused() const;
  Plan PlanOf(int64_t rows, int64_t vocabulary, int64_t hidden) const;
  // The same room shared out without the fused products: rows of what softmax makes of logits (from
  // words_at on), and rows of float32 logits at a time (from logits_at on, bytes).
  struct PlainPlan {
    int64_t rows = 0;
    int64_t logit_rows = 0;
    int64_t logits_at = 0;
  };
  PlainPlan PlainPlanOf(const Plan& plan) const;
  TensorView Scratch(int64_t at, int64_t rows, int64_t columns, int64_t row_stride,
                     DType dtype) const;
  LossChunk ChunkOf(const Plan& plan) const;
  // log_p of the range and, unless `unit` is empty, its rows of that.
  void RunFused(const Plan& plan, const LossRange& range, const TensorView& x,
                const TensorView& weight, const TensorView& log_p, const TensorView& unit);
  void RunPlain(const Plan& plan, const LossRange& range, const TensorView& x,
                const TensorView& weight, float cap, const TensorView& log_p,
                const TensorView& unit);
  // unit = words W, or what `targets` make of it.
  void RunGradient(const Plan& plan, const LossRange& range, const TensorView& words,
                   const TensorView& weight, const TargetTables& targets, const TensorView& unit);

  Context& context_;
  Gemm& gemm_;
  const LinearLossOptions options_;
  char* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace lorad::kernels::cuda
