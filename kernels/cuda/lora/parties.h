// The parties of one microbatch in one linear group (tables.h says what a party is), the columns of
// S and dS that each takes, and the terms that each tile of rows sees. Pure host code: no CUDA, any
// thread. Pointers into device memory are passed on, never followed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "sizes/cuda_products.h"

namespace lorad::kernels::cuda {

using sizes::kTermTileRows;

// A slot's adapter in the group.
struct LoraSlot {
  std::span<const LoraTarget> targets;  // empty: the slot has no adapter in the group
  int32_t* overflow = nullptr;          // the slot's mark, in device memory
};

struct LoraParty {
  int32_t slot = -1;
  bool drops = false;               // it trains, and some target of it has dropout
  std::vector<int64_t> tiles = {};  // of kTermTileRows rows, where it has rows; ascending
  int32_t first_pair = 0;           // its pairs, one a target of its slot, in their order
  int32_t pairs = 0;
  int32_t first_unit = 0;  // its units, in the order of its pairs and of their ranks
  int32_t units = 0;
  int32_t column = 0;  // its shared columns: [column, column + width)
  int32_t width = 0;
};

struct LoraParties {
  std::vector<LoraParty> all;       // in the order of their first rows
  std::vector<int32_t> of_segment;  // [B]: an index into `all`; -1: rows without an adapter
  int32_t columns = 0;              // shared columns of all of them
  bool train = false;               // some segment of a party trains
};

// Parties that have rows in the same tile get disjoint shared columns, others may get the same. The
// end of a party's columns is at most the sum of the widths of all.
// REQUIRES: a slot in use is below slots.size(); its targets have da and db where a segment trains.
LoraParties FindParties(std::span<const Segment> segments, std::span<const LoraSlot> slots);

// The pairs of the parties with rows in each tile: tile i sees list[first[i]], ...,
// list[first[i + 1] - 1], in ascending order, so that a party's own pairs always stand alike
// (LowRankTable of gemm.h).
struct LoraTermLists {
  std::vector<int32_t> first;  // [tiles + 1]
  std::vector<int32_t> list;
};
// For the tiles of `tokens` rows.
LoraTermLists TermLists(std::span<const LoraParty> parties, int64_t tokens);

}  // namespace lorad::kernels::cuda
