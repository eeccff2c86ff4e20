// Launch functions of slots and the optimizer (backend.h has the equations). All tensors of a call
// are one launch: blocks of 4096 elements, each of one tensor, found by a table.
#ifndef LORAD_KERNELS_CUDA_OPTIMIZER_H_
#define LORAD_KERNELS_CUDA_OPTIMIZER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

// Elements of one thread block; the leaves of the tree of a sum of squares.
inline constexpr int64_t kOptimizerBlock = 4096;

constexpr int64_t OptimizerBlocks(int64_t elements) {
  return (elements + kOptimizerBlock - 1) / kOptimizerBlock;
}

// OptimizerTensor as a kernel reads it, with what one step makes of its options.
struct OptimizerEntry {
  float* parameter = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  int64_t* gradient = nullptr;
  void* copy = nullptr;  // or null
  int64_t elements = 0;
  int64_t first_block = 0;  // of all tensors' blocks
  int32_t columns = 0;
  int32_t copy_stride = 0;
  int32_t copy_is_bfloat16 = 0;
  float decay = 1;      // 1 - learning_rate * weight_decay
  float step_size = 0;  // learning_rate / (1 - beta1^step)
};

// All tensors of one call; entries [count] in device memory, first blocks ascending.
struct OptimizerTable {
  const OptimizerEntry* entries = nullptr;
  int32_t count = 0;
  int64_t blocks = 0;
};

struct AdamWStep {
  float clip_factor = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float sqrt_bias2 = 0;  // sqrt(1 - beta2^step)
  float eps = 0;
};

void AdamW(cudaStream_t stream, const OptimizerTable& table, const AdamWStep& step);
void DropGradients(cudaStream_t stream, const OptimizerTable& table);
// *total = the sum over all tensors. A block: each thread its 16 elements in order, then a tree
// over the threads; a tensor: each of 256 threads its blocks in order, then a tree; all tensors
// likewise. partials [blocks], sums [count], total: fp64, device.
void SumOfSquares(cudaStream_t stream, const OptimizerTable& table, double* partials, double* sums,
                  double* total);

// a [R, K] dense; the same values as the CPU's, bit for bit.
void InitializeA(cudaStream_t stream, uint64_t seed, int32_t layer, int32_t target,
                 const TensorView& a);

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_OPTIMIZER_H_
