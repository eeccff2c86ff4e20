// Attention kernels of our own: for float32 activations, and for head sizes and devices on which
// cuDNN's do not pass the tests of isolation. Plain tiles of 32 queries by 32 keys in shared
// memory, products in fp32 on the ordinary units: right, and in fixed order, before fast.
//
// With q, k, v, out [T, heads * D] (head h at columns h * D), key-value head h / (N / G), the rows
// of sequence i at first_rows[i] + 0 .. rows[i] - 1:
//   out = softmax(s, keys that the query sees) v,  lse = log sum exp of s,  s = scale q k^T, capped
// (backend.h, Attention).
// Sums run over the keys (dk, dv: over the heads of the key-value head, inside one over the
// queries) in ascending tiles of 32, inside a tile in ascending order; the softmax keeps a running
// maximum. Nothing but a sequence's own rows enters.
// Dao 2023 (arXiv 2307.08691), sections 3.1 and 2.3.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

inline constexpr int64_t kOwnHeadSizeMax = 256;

// Elements between rows of each tensor.
struct AttentionStrides {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;
  int64_t out = 0;
  int64_t lse = 0;
  int64_t dout = 0;
  int64_t dq = 0;
  int64_t dk = 0;
  int64_t dv = 0;

  bool operator==(const AttentionStrides&) const = default;
};
inline constexpr int kAttentionTensors = 9;

struct AttentionArguments {
  // Sequences of this call.
  const int32_t* first_rows = nullptr;  // [batch], device
  const int32_t* rows = nullptr;        // [batch], device
  int64_t batch = 0;
  int64_t longest = 0;  // no sequence has more rows
  // AttentionShape.
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_size = 0;  // even, at most kOwnHeadSizeMax
  float scale = 0;
  int32_t window = 0;  // 0: none
  float cap = 0;       // 0: none; plain kernels alone
  AttentionStrides strides;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;         // forward: written
  float* lse = nullptr;        // forward: written
  const void* dout = nullptr;  // backward
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};

// True if every row of bf16 begins at a multiple of 16 bytes; tensors that are not given do.
bool RowsAreAligned(const AttentionArguments& arguments);

void LaunchAttention(const AttentionArguments& arguments, DType dtype, cudaStream_t stream);
void LaunchAttentionBackward(const AttentionArguments& arguments, DType dtype, cudaStream_t stream);

// tables[t * (batch + 1) + i] = first_rows[i] * strides[t] for i < batch, then the end of the last
// sequence: the ragged offsets that cuDNN reads, in elements, in the order of AttentionStrides.
void LaunchRaggedOffsets(const int32_t* first_rows, const int32_t* rows, int64_t batch,
                         const AttentionStrides& strides, int32_t* tables, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
