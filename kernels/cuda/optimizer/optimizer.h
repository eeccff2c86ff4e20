// Launch functions of slots and the optimizer (backend.h has the equations). All matrices of all
// jobs of a call are one launch: blocks of 4096 elements, each of one matrix of one job. What a job
// has of its own comes with the launch, what a matrix has lies in a table in device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "kernels/batch.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

// Elements of one thread block; the leaves of the tree of a sum of squares.
inline constexpr int64_t kOptimizerBlock = 4096;

constexpr int64_t OptimizerBlocks(int64_t elements) {
  return (elements + kOptimizerBlock - 1) / kOptimizerBlock;
}

// OptimizerTensor as a kernel reads it.
struct alignas(16) OptimizerEntry {
  float* parameter = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  int64_t* gradient = nullptr;
  void* copy = nullptr;  // or null
  double learning_rate_factor = 1;
  double weight_decay = 0;
  int32_t elements = 0;
  int32_t first_block = 0;  // of the job's
  int32_t columns = 0;
  int32_t copy_stride = 0;
  int32_t copy_is_bfloat16 = 0;
  int32_t copy_in_words = 0;  // four elements, from a multiple of four on, are a word of 8 bytes
};

// All matrices of one job, in device memory.
struct OptimizerTable {
  const OptimizerEntry* entries = nullptr;  // [count]
  const int32_t* entry_of_block = nullptr;  // [blocks]
  double* partials = nullptr;               // [blocks], scratch of sums
  int32_t count = 0;
  int32_t blocks = 0;
};

struct SquaresJob {
  OptimizerTable table;
  double* sums = nullptr;  // [count], in memory that device and host share
};

struct AdamWJob {
  OptimizerTable table;
  double learning_rate = 0;
  double bias1 = 1;  // 1 - beta1^step
  float clip_factor = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float sqrt_bias2 = 0;  // sqrt(1 - beta2^step)
  float eps = 0;
};

// A job at most once in a call.
void AdamW(cudaStream_t stream, std::span<const AdamWJob> jobs);
void DropGradients(cudaStream_t stream, const OptimizerTable& table);
// sums[i] = the sum over matrix i of the job. A block: each thread its 16 elements in order, then a
// tree over the threads; a matrix: each of 256 threads its blocks in order, then a tree.
void SumsOfSquares(cudaStream_t stream, std::span<const SquaresJob> jobs);
// The sum over all matrices, on the host, in the order of a matrix' blocks: lane l of 256 adds
// matrices l, l + 256, ..., then the lanes are added by halves.
double FoldSums(std::span<const double> sums);

// *to = *mark, and the mark is cleared; to: as SquaresJob's sums.
void TakeMark(cudaStream_t stream, int32_t* mark, int32_t* to);

// a [R, K] dense; the same values as the CPU's, bit for bit.
void InitializeA(cudaStream_t stream, uint64_t seed, int32_t layer, int32_t target,
                 const TensorView& a);

}  // namespace lorad::kernels::cuda
