// The kernels of head and loss around its two products (linear_loss.h).
//
// `order` maps a place in the order of processing to its loss row; null: they are the same.
#ifndef LORAD_KERNELS_CUDA_LINEAR_LOSS_KERNELS_H_
#define LORAD_KERNELS_CUDA_LINEAR_LOSS_KERNELS_H_

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
};

// to[j] = x[r_i], i the j-th of the range.  x [T, H], to [count, H] out.
void LaunchGatherRows(const LossRange& range, const TensorView& x, const TensorView& to,
                      cudaStream_t stream);

// to[i] = from[j], i the j-th of the range.  from [count, H], to [n, H] out (rows of the range).
void LaunchScatterRows(const LossRange& range, const TensorView& from, const TensorView& to,
                       cudaStream_t stream);

// For the j-th of the range, i, with z = logits[j]:
//   log_p[i] = z[t_i] - log sum exp(z);  gradient[j] = onehot(t_i) - softmax(z).
// logits [count, V]; log_p [1, n]; gradient [count, V] out, or empty. gradient may alias logits.
// Sums: each thread adds vectors of 8 words, ascending, a block's width apart; then a fixed tree
// over threads, and over the blocks of a row where there are several. V decides, nothing else.
struct SoftmaxOptions {
  // Exponentials to float32's last digits; otherwise the device's fast ones (2 ulp near 0, what
  // bf16 logits or gradients hide anyway).
  bool accurate = true;
  // float32 logits: a cluster of blocks keeps a row in shared memory and reads it once. Needs
  // compute capability 9.0. Changes bits.
  bool cluster = false;
  // Otherwise: rows in work at the same time. Their logits are read twice, so they should fit the
  // L2 cache. Changes no bits.
  int64_t rows_at_once = 256;
};
void LaunchSoftmaxGradient(const LossRange& range, const TensorView& logits,
                           const TensorView& log_p, const TensorView& gradient,
                           const SoftmaxOptions& options, cudaStream_t stream);

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LINEAR_LOSS_KERNELS_H_
