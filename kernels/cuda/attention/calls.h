// How the sequences of a microbatch are shared out to attention calls. A call has room for B
// sequences of at most S rows. S comes from a short list and decides B, so that plans are few and
// can be kept (a plan takes cuDNN 50 to 400 ms); entries without a sequence cost little but room.
// cuDNN's deterministic backward keeps the probabilities of the whole [B, heads, S, S] box, so
// sequences of like length share a call.
//
// Which call a sequence is in, and where, never changes its bits: every row is a function of its
// own sequence alone (tests/kernels/cuda/attention_test.cc).
#ifndef LORAD_KERNELS_CUDA_ATTENTION_CALLS_H_
#define LORAD_KERNELS_CUDA_ATTENTION_CALLS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"

namespace lorad::kernels::cuda {

// Limits of one call, where a single sequence does not exceed them by itself.
inline constexpr int64_t kCallRows = 8192;                // B * S
inline constexpr int64_t kCallScores = int64_t{8} << 20;  // B * S * S of one head
inline constexpr int64_t kLengthBucketMin = 128;

// S for a longest sequence of `rows`: the smallest of 128, 192, 256, 384, 512, 768, ... that holds
// it. REQUIRES: rows >= 1.
int64_t LengthBucket(int64_t rows);
// B of a call of S rows, where no microbatch has more than `tokens_max` rows.
int64_t CallSequences(int64_t length_bucket, int64_t tokens_max);

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

AttentionCalls PlanAttention(std::span<const Segment> segments, int64_t tokens_max);

// Our own kernels take a microbatch in one call, in units of some rows of a sequence, counted from
// its own first one.
struct AttentionUnit {
  int32_t first_row = 0;    // of the sequence, in the microbatch
  int32_t rows = 0;         // of the sequence
  int32_t start = 0;        // of the unit, in the sequence
  int32_t scratch_row = 0;  // of the sequence's first row in vectors over tokens: a multiple of 4

  bool operator==(const AttentionUnit&) const = default;
};

struct AttentionUnits {
  // The same units in two orders, the heaviest first. A key is seen by the queries after it,
  std::vector<AttentionUnit> as_keys;
  // a query sees the keys before it.
  std::vector<AttentionUnit> as_queries;
  int64_t scratch_rows = 0;  // of all sequences
};

AttentionUnits PlanUnits(std::span<const Segment> segments, int64_t unit_rows);
// No microbatch of so many rows has more scratch_rows.
int64_t ScratchRowsMax(int64_t tokens);

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_ATTENTION_CALLS_H_
