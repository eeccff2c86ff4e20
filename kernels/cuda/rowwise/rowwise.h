// Launch functions of the operations that work row by row (backend.h has their equations, shapes
// and aliasing). Activations are float32 or bfloat16 as the views say, arithmetic is float32. Sums
// over a row: each thread adds its units of 8 columns in ascending order, then a tree over the
// threads of the row's block; both are fixed by the row's width. No kernel reads more than one row
// for one row of its output.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/handles/tables.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

void Zero(cudaStream_t stream, const TensorView& x);
// from: float32 or bfloat16; to: float32 or bfloat16, at least as large, zero beyond `from`.
void Cast(cudaStream_t stream, const TensorView& from, const TensorView& to);
// weight [V, H] of x's type; x [T, H].
void Embed(cudaStream_t stream, const BatchTables& batch, const TensorView& weight, float factor,
           const TensorView& x);

void RmsNorm(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
             const TensorView& y);
void RmsNormBackward(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                     const TensorView& dy, const TensorView& dx);

// The same, dx written; it may be dy or x.
void RmsNormGradient(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                     const TensorView& dy, const TensorView& dx);

// y = residual + RmsNorm(x), rounded once.
void RmsNormAdd(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                const TensorView& residual, const TensorView& y);
// y += x.
void Add(cudaStream_t stream, const TensorView& x, const TensorView& y);

// One pass over memory where the weights are of heads of one size, up to 512 elements.
void QkNormRope(cudaStream_t stream, const BatchTables& batch, const TensorView& x,
                const QkNorm& norm, const HeadAngles& angles, const TensorView& y);
void QkNormBackward(cudaStream_t stream, const TensorView& x, const QkNorm& norm,
                    const TensorView& d);

// inverse_frequencies: D/2, device. table [P, D].
void FillRope(cudaStream_t stream, const float* inverse_frequencies, float factor,
              const TensorView& table);
// sign 1: forward; -1: backward.
void Rope(cudaStream_t stream, const BatchTables& batch, const HeadAngles& angles, float sign,
          const TensorView& x);

void SwiGlu(cudaStream_t stream, const TensorView& gate_up, const TensorView& y,
            Gate gate = Gate::kSilu);
void SwiGluBackward(cudaStream_t stream, const TensorView& gate_up, const TensorView& dy,
                    const TensorView& dgate_up, Gate gate = Gate::kSilu);

// weights: n, device. dx[t] = weights[i] * unit[i] where row t is the trained loss row i, else 0.
void LossBackward(cudaStream_t stream, const BatchTables& batch, const float* weights,
                  const TensorView& unit, const TensorView& dx);

}  // namespace lorad::kernels::cuda
