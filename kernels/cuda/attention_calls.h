// How the sequences of a microbatch are shared out to attention calls. A call has a shape of its
// own, B sequences of at most S rows (both from a short list of bucket sizes, so that plans are few
// and can be kept), and costs what its longest sequence says: cuDNN's deterministic backward keeps
// the probabilities of the whole [B, heads, S, S] box. So sequences of like length share a call.
//
// Which call a sequence is in, and where, never changes its bits: every row is a function of its
// own sequence alone (tests/kernels/cuda/attention_isolation).
#ifndef LORAD_KERNELS_CUDA_ATTENTION_CALLS_H_
#define LORAD_KERNELS_CUDA_ATTENTION_CALLS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"

namespace lorad::kernels::cuda {

// Limits of one call, where a single sequence does not exceed them by itself.
inline constexpr int64_t kCallRows = 8192;                // B * S; no more than the microbatch has
inline constexpr int64_t kCallScores = int64_t{8} << 20;  // B * S * S of one head
inline constexpr int64_t kLengthBucketMin = 128;

// The smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least `count`. REQUIRES: count >= 1.
int64_t BatchBucket(int64_t count);
// The same for rows: 128, 192, 256, 384, 512, 768, ...
int64_t LengthBucket(int64_t rows);
// The largest batch bucket of a call of sequences of `length_bucket` rows in a microbatch of
// `tokens` rows.
int64_t BatchBucketMax(int64_t length_bucket, int64_t tokens);

struct AttentionCall {
  int64_t first = 0;      // its entries in the table: [first, first + batch)
  int64_t sequences = 0;  // entries in use, the rest are empty sequences
  int64_t batch = 0;      // B
  int64_t rows = 0;       // S

  bool operator==(const AttentionCall&) const = default;
};

struct AttentionCalls {
  std::vector<AttentionCall> calls;  // longest sequences first
  std::vector<int32_t> first_rows;   // of every entry; of empty ones 0
  std::vector<int32_t> rows;         // of every entry; of empty ones 0
};

AttentionCalls PlanAttention(std::span<const Segment> segments);

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_ATTENTION_CALLS_H_
