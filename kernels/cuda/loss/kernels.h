// The kernels of head and loss around its two products (linear_loss.h), where those are the
// library's; sums.h has the rest.
//
// `order` maps a place in the order of processing to its loss row; null: they are the same.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

// The loss rows [first, first + count) in the order of processing.
struct LossRange {
  const int32_t* order = nullptr;    // [n] or null, device
  const int32_t* rows = nullptr;     // [n]: r_i, device
  const int32_t* targets = nullptr;  // [n]: t_i, device
  int64_t first = 0;
  int64_t count = 0;

  // The loss row at a place of the range.
  __host__ __device__ int64_t RowAt(int64_t place) const {
    return order == nullptr ? first + place : order[first + place];
  }
};

// to[j] = x[r_i], i the j-th of the range.  x [T, H], to [count, H] out.
void LaunchGatherRows(const LossRange& range, const TensorView& x, const TensorView& to,
                      cudaStream_t stream);

// to[i] = from[j], i the j-th of the range.  from [count, H], to [n, H] out (rows of the range).
void LaunchScatterRows(const LossRange& range, const TensorView& from, const TensorView& to,
                       cudaStream_t stream);

// For the j-th of the range, i, with z = logits[j], or cap tanh(logits[j] / cap) where cap is not
// 0, and c = 1 - (z / cap)^2, or 1:
//   log_p[i] = z[t_i] - log sum exp(z);  gradient[j] = (onehot(t_i) - softmax(z)) * c.
// logits [count, V] float32, used up; log_p [1, n]; gradient [count, V] out, or empty; may alias
// logits where it is float32. Exponentials are then those of float32's last digits, otherwise the
// device's fast ones (2 ulp near 0, what a bf16 gradient hides anyway). Sums: each thread adds
// vectors of 8 words, ascending, a block's width apart; then a fixed tree over threads. V decides,
// nothing else.
void LaunchSoftmaxGradient(const LossRange& range, const TensorView& logits, float cap,
                           const TensorView& log_p, const TensorView& gradient, bool accurate,
                           cudaStream_t stream);

// z = cap tanh(z / cap).  z [n, V] float32, in and out.
void LaunchCap(const TensorView& z, float cap, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
