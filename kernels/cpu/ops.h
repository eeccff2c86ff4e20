// The operations of backend.h as functions, one file each; their contracts stand there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cpu/handles.h"
#include "kernels/cpu/workspace.h"

namespace lorad::kernels::cpu {

// Calls run(row) for rows 0..rows-1, in blocks shared out among the threads. For loops without sums
// over rows.
template <typename Function>
void ForRows(const Context& context, int64_t rows, Function&& run) {
  constexpr int64_t kBlock = 32;
  context.pool.Run((rows + kBlock - 1) / kBlock, [&](int64_t item, int) {
    const int64_t end = std::min(rows, (item + 1) * kBlock);
    for (int64_t row = item * kBlock; row < end; ++row) run(row);
  });
}

inline bool HasShape(const TensorView& view, int64_t rows, int64_t columns) {
  return !view.empty() && view.rows == rows && view.columns == columns &&
         view.row_stride >= columns && view.dtype == DType::kFloat32;
}

// embed.cc
void Embed(const Context& context, const CpuBatch& batch, const CpuLinear& table, float factor,
           const TensorView& x);

// rms_norm.cc
void RmsNorm(const Context& context, const CpuBatch& batch, const TensorView& x,
             const TensorView& weight, float eps, const TensorView& y);
void RmsNormBackward(const Context& context, const CpuBatch& batch, const TensorView& x,
                     const TensorView& weight, float eps, const TensorView& dy,
                     const TensorView& dx);
void RmsNormGradient(const Context& context, const CpuBatch& batch, const TensorView& x,
                     const TensorView& weight, float eps, const TensorView& dy,
                     const TensorView& dx);
void RmsNormAdd(const Context& context, const CpuBatch& batch, const TensorView& x,
                const TensorView& weight, float eps, const TensorView& residual,
                const TensorView& y);

// qk_norm.cc
void QkNormRope(const Context& context, const CpuBatch& batch, const TensorView& x,
                const QkNorm& norm, const HeadAngles& angles, const TensorView& y);
void QkNormBackward(const Context& context, const CpuBatch& batch, const TensorView& x,
                    const QkNorm& norm, const TensorView& d);

// rope.cc
void FillRope(const Context& context, std::span<const float> inverse_frequencies, float factor,
              const TensorView& table);
// sign 1 rotates, -1 turns back.
void Rope(const Context& context, const CpuBatch& batch, const HeadAngles& angles, float sign,
          const TensorView& x);

// attention.cc
void Attention(const Context& context, const CpuBatch& batch, const AttentionShape& shape,
               const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
               const TensorView& lse);
void AttentionBackward(const Context& context, const CpuBatch& batch, const AttentionShape& shape,
                       const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const TensorView& lse, const TensorView& dout,
                       const TensorView& dq, const TensorView& dk, const TensorView& dv);

// swiglu.cc
void SwiGlu(const Context& context, const CpuBatch& batch, Gate gate, const TensorView& gate_up,
            const TensorView& y);
void SwiGluBackward(const Context& context, const CpuBatch& batch, Gate gate,
                    const TensorView& gate_up, const TensorView& dy, const TensorView& dgate_up);

// lora_linear.cc
void LoraLinear(const Context& context, const CpuBatch& batch, const CpuLinear& linear,
                const CpuAdapterTable& table, int32_t group, const TensorView& x,
                const TensorView& residual, const TensorView& y);
void LoraLinearBackward(const Context& context, const CpuBatch& batch, const CpuLinear& linear,
                        CpuAdapterTable& table, int32_t group, const TensorView& x,
                        const TensorView& dy, const TensorView& dx);

// linear_loss.cc
void LinearLoss(const Context& context, const CpuBatch& batch, const TensorView& x,
                const CpuLinear& head, float cap, const TensorView& log_p, const TensorView& unit);
void LossBackward(const Context& context, const CpuBatch& batch, std::span<const float> weights,
                  const TensorView& unit, const TensorView& dx);

// logits.cc
void Logits(const Context& context, const CpuBatch& batch, const TensorView& x,
            std::span<const int32_t> rows, const CpuLinear& head, float cap, const TensorView& z);

// optimizer.cc
void InitializeA(const Context& context, uint64_t seed, int32_t layer, int32_t target,
                 const TensorView& a);
void SumsOfSquares(const Context& context, std::span<const OptimizerTensor> tensors, double* sums);
double FoldSums(std::span<const double> sums);
void AdamW(const Context& context, const AdamWOptions& options,
           std::span<const OptimizerTensor> tensors);
void DropGradients(const Context& context, std::span<const OptimizerTensor> tensors);

}  // namespace lorad::kernels::cpu
