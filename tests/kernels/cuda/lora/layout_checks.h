// The invariants of the LoRA linear's layout, stated without its code, as assertions of Catch2.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/lora/layout.h"
#include "tests/kernels/cuda/lora/microbatch.h"

namespace lorad::kernels::cuda::testing {

// How often something is done, by chunk (its first row) and unit.
using Work = std::map<std::pair<int32_t, int32_t>, int>;

// A microbatch and its layout.
struct Laid {
  const LoraMicrobatch& batch;
  const LoraLayout layout = batch.LayOut();
  const std::vector<Chunk> chunks = ChunksOf(batch.segments);

  // Whether the kernels for Hopper take it.
  bool hopper() const { return batch.device.hopper && layout.fast; }
  const LoraPair& PairOf(int32_t unit) const {
    return layout.pairs[static_cast<size_t>(layout.units[static_cast<size_t>(unit)].pair)];
  }
  // Null where the segment has no adapter.
  const LoraParty* PartyOf(const Segment& segment) const;
  const Segment& SegmentAt(int64_t row) const;
  // REQUIRES: a chunk begins with the row.
  const Chunk& ChunkAt(int64_t row) const;
  // Every chunk of a party with each of the party's units, once.
  Work WantedWork(bool training_alone) const;
};

// Whether the segment has rows in the tile.
bool InTile(const Segment& segment, int64_t tile);

// Checks that every chunk of a party is worked on once with each of the party's units, in columns
// that no other party of its tiles has; that all other columns of a row are zeroed once; that sums
// which are added up together are of one party and the same ranks; that lists name the pairs with
// rows in each tile; and that the kernels are told the right counts.
void CheckLayout(const LoraMicrobatch& batch);

}  // namespace lorad::kernels::cuda::testing
