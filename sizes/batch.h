// What of a microbatch decides sizes: chunks of tokens, ranks as they are padded, and the limits
// under which a workspace is planned. Also for .cu files.
#pragma once

#include <cstdint>

#include "sizes/layout.h"

namespace lorad::sizes {

// The largest rank that any adapter may bring, and the most adapters of any group.
inline constexpr int32_t kRankMax = 512;
inline constexpr int32_t kSlotsMax = 256;

// Sums over tokens are formed per chunk: at most this many tokens, counted from their sequence's
// own first token.
inline constexpr int64_t kChunkTokens = 256;

// Ranks in copies are padded with zeros to a multiple of this, so that a slot's place among others
// cannot change how products are summed.
inline constexpr int64_t kRankAlignment = 16;
constexpr int64_t PaddedRank(int64_t rank) { return RoundUp(rank, kRankAlignment); }

// Columns of what a linear group's forward leaves for its backward, at most.
constexpr int64_t LoraSavedColumns(int64_t targets, int64_t rank_max) {
  return targets * PaddedRank(rank_max);
}

// The largest that will be asked of a backend between two ReserveWorkspace calls.
struct Limits {
  int64_t tokens = 0;            // T
  int64_t longest_segment = 0;   // rows
  int64_t features = 0;          // K or O of any linear group but the head
  int64_t hidden = 0;            // H
  int64_t vocabulary = 0;        // V
  int64_t rank = 0;              // R of any target
  int64_t slots = 0;             // parties: a slot that trains and is evaluated counts as two
  int64_t targets_in_group = 0;  // LoRA targets of one linear group, 3 for q,k,v
  int64_t heads = 0;             // N
  int64_t kv_heads = 0;          // G
  int64_t head_size = 0;         // D
};

}  // namespace lorad::sizes
