// The kernels of head and loss around its two products, where our own kernel makes those (gemm.h:
// ExponentialTables, TargetTables). With z a row of logits, t its target and r a reference near
// z[t], the first product leaves e[j] = exp(z[j] - r), sums of them and z[t]; then
//   S = sum of e[j] over j != t,  T = exp(z[t] - r),
//   log_p = (z[t] - r) - log(S + T),  d log_p / dx = (S W[t] - sum of e[j] W[j]) / (S + T).
// Nothing is subtracted that nearly cancels: confident rows are exact too. r = x . W[t] serves
// while no word is above it by more than kExcessMax; rows that have such a word, whose exponentials
// could overflow, are done again with the largest logit as the reference.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/loss/kernels.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

// e^64 = 6e27: sums over 10^6 words and their products with weights stay within float32.
inline constexpr float kExcessMax = 64;

// What is known of a chunk's rows, by their place in it; in device memory.
struct LossChunk {
  int32_t* targets = nullptr;      // [count]
  float* references = nullptr;     // [count]
  float* target_logits = nullptr;  // [count]
  LossFactors* factors = nullptr;  // [count]
  LossPart* parts = nullptr;       // [ceil(V / kPartColumns), count]
  int32_t* again = nullptr;        // 1: some rows are done again, with new references
};

// For the j-th of the range, i: to[j] = x[r_i], targets[j] = t_i, references[j] = x[r_i] . W[t_i];
// and *again = 0. x [T, H], weight [V, H], to [count, H]: bf16.
// Sums: each thread units of 8 columns, ascending; a tree of a warp, the warps in order. H decides.
void LaunchGatherTargets(const LossRange& range, const TensorView& x, const TensorView& weight,
                         const TensorView& to, const LossChunk& chunk, cudaStream_t stream);

// From the parts of `vocabulary` words: log_p [1, n] and the factors of the gradient. Rows that are
// to be done again get a new reference instead. again: after the second time; nothing is done if
// there was none. Sums in float64: every 32nd part, ascending, then a tree. V decides.
void LaunchFoldParts(const LossRange& range, int64_t vocabulary, const LossChunk& chunk, bool again,
                     const TensorView& log_p, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
