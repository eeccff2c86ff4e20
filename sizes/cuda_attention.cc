#include "sizes/cuda_attention.h"

#include <algorithm>
#include <cassert>

namespace lorad::sizes {
namespace {

// Of a call's forward.
constexpr int64_t kForwardBytes = int64_t{1} << 20;

// Bytes of probabilities of one key-value head's query heads.
int64_t ScoreBytes(int64_t batch, int64_t rows, int64_t sharing) {
  return 2 * batch * sharing * rows * RoundUp(rows, 128);
}

// Of cuDNN's backward.
int64_t CudnnBackwardBytes(const Limits& limits, int64_t score_bytes_max) {
  const int64_t sharing = limits.heads / limits.kv_heads;
  int64_t most = 0;
  const int64_t longest = LengthBucket(std::max<int64_t>(limits.longest_segment, 1));
  for (int64_t rows = kLengthBucketMin; rows <= longest; rows = LengthBucket(rows + 1)) {
    const int64_t batch = CallSequences(rows, std::max<int64_t>(limits.tokens, 1));
    const int64_t heads =
        sharing * KvHeadsAtOnce(score_bytes_max, batch, rows, limits.heads, limits.kv_heads);
    // dk and dv of every query head before they are summed, and a float a query and head.
    const int64_t head_gradients = 2 * 2 * batch * rows * heads * limits.head_size;
    most = std::max(most, heads / sharing * ScoreBytes(batch, rows, sharing) + head_gradients +
                              4 * batch * rows * limits.heads);
  }
  return most;
}

}  // namespace

int64_t LengthBucket(int64_t rows) {
  assert(rows >= 1);
  int64_t bucket = kLengthBucketMin;
  while (bucket < rows) bucket *= 2;
  const int64_t between = bucket / 4 * 3;
  return rows <= between && between > kLengthBucketMin ? between : bucket;
}

int64_t CallSequences(int64_t length_bucket, int64_t tokens_max) {
  const int64_t rows = std::min(kCallRows, LengthBucket(tokens_max));
  const int64_t squared = length_bucket * length_bucket;
  return std::max<int64_t>(std::min(rows / length_bucket, kCallScores / squared), 1);
}

int64_t DivisorAtMost(int64_t kv_heads, int64_t most) {
  int64_t divisor = std::clamp(most, int64_t{1}, kv_heads);
  while (kv_heads % divisor != 0) --divisor;
  return divisor;
}

int64_t KvHeadsAtOnce(int64_t score_bytes_max, int64_t batch, int64_t rows, int64_t heads,
                      int64_t kv_heads) {
  return DivisorAtMost(kv_heads, score_bytes_max / ScoreBytes(batch, rows, heads / kv_heads));
}

int64_t CudaAttentionBytes(const Limits& limits, int64_t value_bytes,
                           const AttentionChoice& choice) {
  if (limits.heads == 0) return 0;  // a stage of MLPs alone
  if (value_bytes == 4) return 0;
  if (!choice.own_backward || !OwnBackwardTakes(limits.head_size)) {
    return kForwardBytes + CudnnBackwardBytes(limits, choice.score_bytes_max);
  }
  const int64_t tokens = std::max<int64_t>(limits.tokens, 1);
  return kForwardBytes +
         4 * BackwardScratchFloats(limits.heads, ScratchStride(ScratchRowsMax(tokens)));
}

}  // namespace lorad::sizes
