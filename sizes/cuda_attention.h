// Attention of kernels/cuda: how sequences fill a call of cuDNN, and what both its backward and our
// own take as scratch. Also for .cu files.
#pragma once

#include <cstdint>

#include "sizes/batch.h"

namespace lorad::sizes {

// Limits of one call of cuDNN, where a single sequence does not exceed them by itself.
inline constexpr int64_t kCallRows = 8192;                // B * S
inline constexpr int64_t kCallScores = int64_t{8} << 20;  // B * S * S of one head
inline constexpr int64_t kLengthBucketMin = 128;
// What the probabilities of one call's backward may take, unless a single key-value head's take
// more.
inline constexpr int64_t kScoreBytesMax = int64_t{512} << 20;

// S for a longest sequence of `rows`: the smallest of 128, 192, 256, 384, 512, 768, ... that holds
// it. REQUIRES: rows >= 1.
int64_t LengthBucket(int64_t rows);
// B of a call of S rows, where no microbatch has more than `tokens_max` rows.
int64_t CallSequences(int64_t length_bucket, int64_t tokens_max);
// The largest divisor of `kv_heads` that is at most `most`, at least 1.
int64_t DivisorAtMost(int64_t kv_heads, int64_t most);
// Key-value heads whose backward runs at once, of B sequences of `rows` rows: a divisor of
// `kv_heads`, within `score_bytes_max` if it can be.
int64_t KvHeadsAtOnce(int64_t score_bytes_max, int64_t batch, int64_t rows, int64_t heads,
                      int64_t kv_heads);

// Our own backward: rows and columns of what the copy engine brings, and what its scratch begins
// with: items taken by its two kernels, so many that vectors behind are aligned to 16 bytes.
inline constexpr int kBackwardBox = 64;
inline constexpr int64_t kBackwardTakenFloats = 4;
constexpr bool OwnBackwardTakes(int64_t head_size) { return head_size == 64 || head_size == 128; }

// In vectors over tokens a sequence's first row lies at a multiple of this.
inline constexpr int64_t kScratchRows = 4;
// No microbatch of so many rows has more AttentionUnits::scratch_rows.
constexpr int64_t ScratchRowsMax(int64_t tokens) { return kScratchRows * tokens; }
// Of vectors over so many scratch rows: a tile's queries are read as a whole, and as 16 bytes.
constexpr int64_t ScratchStride(int64_t rows) { return RoundUp(rows + kBackwardBox, 4); }
// Two floats a query and head.
constexpr int64_t BackwardScratchFloats(int64_t heads, int64_t scratch_stride) {
  return kBackwardTakenFloats + 2 * heads * scratch_stride;
}

struct AttentionChoice {
  int64_t score_bytes_max = kScoreBytesMax;
  bool own_backward = true;  // where the head size allows it
};
// Scratch that any batch within `limits` needs; `value_bytes` of an activation (4: kernels that
// need none). The same on every device, so that a plan need not know which.
int64_t CudaAttentionBytes(const Limits& limits, int64_t value_bytes,
                           const AttentionChoice& choice = {});

}  // namespace lorad::sizes
