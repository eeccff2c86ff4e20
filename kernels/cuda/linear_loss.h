// Head and loss of the CUDA backend (kernels/backend.h, LinearLoss): with the loss rows x_i =
// x[r_i] gathered,
//   z = x W^T,   log_p = z[t] - log sum exp(z),   G = onehot(t) - softmax(z),   unit = G W,
// in chunks of rows, so that neither logits nor G of a whole microbatch exist. Rows whose segment
// trains come first, the rest go through the first half alone.
//
// A chunk is as many rows as fill the device in the second product (whose inner dimension is the
// vocabulary and whose output is narrow). That changes no bits: products give equal bits for equal
// rows (gemm.h). G takes the place of the logits where both have the same type.
//
// bf16: logits in float32 and G in bf16, so that log_p is right to 1e-5 and unit to 2e-3. Logits
// in bf16, as transformers rounds them, are off by up to 1/16 where they are 16, and so is log_p;
// unit is then right to 8e-3. They are an option: faster, in half the memory.
// x, W [V, H], unit: activation type; log_p float32.
#ifndef LORAD_KERNELS_CUDA_LINEAR_LOSS_H_
#define LORAD_KERNELS_CUDA_LINEAR_LOSS_H_

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/linear_loss_kernels.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

struct LinearLossOptions {
  DType logits = DType::kFloat32;  // kBfloat16: where activations are. Changes bits.
  bool cluster = true;             // SoftmaxOptions; where the device can. Changes bits.
  // 0: chosen by the shape (multiples of 128). Change speed and memory alone.
  int64_t gradient_rows = 0;
  int64_t logit_rows = 0;    // where G does not take the logits' place
  int64_t rows_at_once = 0;  // SoftmaxOptions
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
           const TensorView& log_p, const TensorView& unit);

 private:
  // Where everything lies in the workspace, for chunks of a shape.
  struct Plan {
    int64_t gradient_rows = 0;
    int64_t logit_rows = 0;
    bool in_place = false;  // G takes the place of the logits
    int64_t columns = 0;    // of a row of logits or G: V rounded up to 64
    int64_t gathered_at = 0;
    int64_t logits_at = 0;
    int64_t gradient_at = 0;
    int64_t unit_at = 0;
    int64_t gemm_at = 0;
    int64_t bytes = 0;
  };
  DType LogitsType() const;
  Plan PlanOf(int64_t rows, int64_t vocabulary, int64_t hidden) const;
  TensorView Scratch(int64_t at, int64_t rows, int64_t columns, int64_t row_stride,
                     DType dtype) const;
  // Gathered rows, logits, log_p of the range and, unless `gradient` is empty, G.
  void RunForward(const Plan& plan, const LossRange& range, const TensorView& x,
                  const TensorView& weight, const TensorView& log_p, const TensorView& gradient);
  void RunBackward(const Plan& plan, const LossRange& range, const TensorView& gradient,
                   const TensorView& weight, const TensorView& unit);

  Context& context_;
  Gemm& gemm_;
  const LinearLossOptions options_;
  char* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LINEAR_LOSS_H_
