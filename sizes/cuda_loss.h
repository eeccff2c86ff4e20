// Head and loss of kernels/cuda: rows of a chunk, and where its scratch memory lies. Also for .cu
// files.
#pragma once

#include <cstdint>

#include "sizes/layout.h"

namespace lorad::sizes {

// Columns of the vocabulary whose sums and maxima are one part.
inline constexpr int64_t kPartColumns = 192;
// Of LossPart and LossFactors (kernels/cuda/gemm/gemm.h).
inline constexpr int64_t kLossPartBytes = 8;
inline constexpr int64_t kLossFactorsBytes = 8;

// Where everything lies, for chunks of a shape: in bytes from the first one, which is aligned to
// 256.
struct CudaLossLayout {
  int64_t rows = 0;
  int64_t columns = 0;  // of a row as wide as the vocabulary: V rounded up to 64
  int64_t gathered_at = 0;
  int64_t words_at = 0;  // exponentials; or logits and what softmax makes of them
  int64_t unit_at = 0;
  int64_t targets_at = 0;  // LossChunk
  int64_t references_at = 0;
  int64_t target_logits_at = 0;
  int64_t factors_at = 0;
  int64_t parts_at = 0;
  int64_t again_at = 0;
  int64_t gemm_at = 0;
  int64_t bytes = 0;
};

// For `rows` loss rows in activations of `value_bytes`. chunk_rows: rows of a chunk, a multiple of
// 256; 0: chosen by the shape, and fewer rows never need more.
CudaLossLayout LayCudaLoss(int64_t rows, int64_t vocabulary, int64_t hidden, int64_t value_bytes,
                           int64_t multiprocessors, int64_t chunk_rows = 0);

}  // namespace lorad::sizes
