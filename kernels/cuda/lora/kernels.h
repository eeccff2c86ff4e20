// The skinny products of the multi-adapter LoRA linear (equations: backend.h, LoraLinear), for all
// adapters, all targets of a linear group and all sequences of a microbatch in one launch each:
//
//   forward    ProjectInput      S = s (D o x) A^T                              reads x once
//   backward   ProjectOutput     dS = s dy B  and  dB += dy^T S                 reads dy once
//              GradientA         dA += dS^T (D o x), D left as bits             reads x once
//
// S and dS go into the frozen products as low-rank terms (gemm.h): y = x W^T + S B^T,
// dx = dy W + D o (dS A). S may be kept from forward (2 R bytes a token and target beside the 2 K
// bytes of x), else the backward runs ProjectInput again. D is drawn once a direction, in
// registers, on the way of x to the matrix units; GradientA leaves it as bits, an eighth of a byte
// a feature, for dx. Masks are selects: 0 where dropped, whatever x is.
//
// Roofline. All three move bytes: 4 R operations (ProjectOutput: 8 R) for the 2 bytes of an
// element, R = 16: 32 to 64 a byte, where the matrix units want 250. So the floor is T K 2 bytes
// over the memory's rate. At 3.0 TB/s and T = 8,192, microseconds (measured on an H100):
//   feature count         4,096        14,336     operator (forward + backward)   frozen   + floor
//   ProjectInput          22.4 (30)    78 (88)    4096 -> 4096                     710    67  1.09
//   ProjectOutput         22.4 (39)    78 (107)   4096 -> 14336                   2490   123  1.05
//   GradientA             22.4 (32)    78 (96)    14336 -> 4096                   2490   179  1.07
// What is above the floor: about 6 us to start and end a launch (hidden in part, below), for dS 3
// to add up slices; dA and dB, added as 8-byte integers in the L2 cache, which takes 170 to 340 a
// nanosecond (measured, docs/kernels.md): R K and R O of them for up to four chunks of 256 tokens;
// Philox, about 55 instructions a 16 bytes of x and target (dropout.h).
//
// Launches overlap: a product starts on multiprocessors that the last blocks of ProjectInput or
// GradientA have left, and awaits them before it first reads S, dS or masks.
//
// What decides the order of sums: a sum over features is formed in slices (tables.h, which has
// others for Hopper), a slice in ascending steps of 16 features in a permutation fixed by the
// kernel, and slices are added in ascending order; which kernel it is depends on the device, and on
// Hopper for S on whether the row's adapter drops; a sum over the tokens of a chunk runs in
// ascending steps of 16, then fixed point. So a row's bits depend on K (dS: O) alone, a gradient's
// on its sequence alone (the isolation rules of docs/determinism.md).
//
// For bf16, K, O and the targets' ranges multiples of 8, rows of 16-byte multiples. For everything
// else and float32: plain kernels (plain.cu), right and not fast.
// Hu et al. 2021 (arXiv 2106.09685), section 4.1.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/lora/tables.h"
#include "kernels/tensor.h"
#include "sizes/cuda_products.h"

namespace lorad::kernels::cuda {

// Of one launch after the other. Counters are zero between launches.
struct LoraScratch {
  float4* partial = nullptr;  // sums of slices
  int64_t partial_bytes = 0;
  int32_t* counters = nullptr;  // [kLoraCounters]
};
using sizes::kLoraCounters;
using sizes::kLoraPartialBytes;

// S of every row: own (kept) and shared (for the product; zeros outside the row's party).
// x [T, K]; own [T, C]; shared [T, tables.columns]. Either may be empty.
void ProjectInput(const LoraTables& tables, const TensorView& x, const TensorView& own,
                  const TensorView& shared, const LoraScratch& scratch, cudaStream_t stream);

// dS of every row, and dB of training rows.  dy [T, O]; own [T, C]: S as kept; ds [T,
// tables.columns] out, zeros outside the row's party.
void ProjectOutput(const LoraTables& tables, const TensorView& dy, const TensorView& own,
                   const TensorView& ds, const LoraScratch& scratch, cudaStream_t stream);

// dA of training rows and the bits of their masks, mask_row_bytes a row of a pair's mask. `early`:
// starts while the last blocks of ProjectOutput, just before it in the stream, still run, and
// awaits their end before it reads dS (compute capability 9.0).
void GradientA(const LoraTables& tables, const TensorView& x, const TensorView& ds,
               int64_t mask_row_bytes, bool early, cudaStream_t stream);

// What of the first two is in the tables' groups, on devices of compute capability 9.0: all of dy,
// and of x what has no masks. The two above call them.
void ProjectInputHopper(const LoraTables& tables, const TensorView& x, const TensorView& own,
                        const TensorView& shared, cudaStream_t stream);
void ProjectOutputHopper(const LoraTables& tables, const TensorView& dy, const TensorView& own,
                         const TensorView& ds, const LoraScratch& scratch, cudaStream_t stream);

// The same three by plain kernels, float32 or bf16, any shape.
void PlainProjectInput(const LoraTables& tables, const TensorView& x, const TensorView& own,
                       const TensorView& shared, cudaStream_t stream);
void PlainProjectOutput(const LoraTables& tables, const TensorView& dy, const TensorView& own,
                        const TensorView& ds, cudaStream_t stream);
void PlainGradientA(const LoraTables& tables, const TensorView& x, const TensorView& ds,
                    int64_t mask_row_bytes, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
