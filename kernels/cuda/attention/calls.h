// How the sequences of a microbatch are shared out to attention calls. A call has room for B
// sequences of at most S rows. S comes from a short list and decides B, so that plans are few and
// can be kept (a plan takes cuDNN 50 to 400 ms); entries without a sequence cost little but room.
// cuDNN's deterministic backward keeps the probabilities of the whole [B, heads, S, S] box, so
// sequences of like length share a call.
//
// Which call a sequence is in, and where, never changes its bits: every row is a function of its
// own sequence alone (tests/kernels/cuda/attention_test.cc).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "sizes/cuda_attention.h"

namespace lorad::kernels::cuda {

using sizes::CallSequences;
using sizes::kCallRows;
using sizes::kCallScores;
using sizes::kLengthBucketMin;
using sizes::LengthBucket;
using sizes::ScratchRowsMax;

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

}  // namespace lorad::kernels::cuda
