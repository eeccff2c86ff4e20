// The pieces of work that blocks of the LoRA linear's kernels take (tables.h). Their order, and
// which of them share a block, change speed alone: a sum over tokens is formed within a chunk, and
// chunks are added up in fixed point. Pure host code: no CUDA, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/lora/parties.h"
#include "kernels/cuda/lora/tables.h"

namespace lorad::kernels::cuda {

// A chunk and the party that it belongs to.
struct PartyChunk {
  LoraRows rows;
  const LoraParty* party = nullptr;  // null: rows without an adapter
};

// Every unit of a chunk's party is in one item of that chunk, up to kBlockUnits consecutive ones in
// an item; a chunk without an adapter is one item without units. Items of many units come first,
// items of as many in the order of their chunks.
std::vector<LoraInputItem> InputItems(std::span<const PartyChunk> chunks);

// Likewise, but all units of an item are of one pair. `pairs` has all parties' pairs.
std::vector<LoraOutputItem> OutputItems(std::span<const PartyChunk> chunks,
                                        std::span<const LoraPair> pairs);

// Every item that trains is in one group, beside items of the same units: chunks_together (1, 2 or
// kGroupChunks) of them, and fewer where no more are left. Groups that take long come first.
std::vector<LoraGradientItem> GradientItems(std::span<const LoraInputItem> items,
                                            int32_t chunks_together);

// Every item is in one pair of items. Two that train and have the same ranks are together, where
// chunks_together is more than 1. Each item that is left is beside one of as many outputs, or alone
// where there is none.
std::vector<LoraOutputPair> OutputPairs(std::span<const LoraOutputItem> items,
                                        std::span<const LoraPair> pairs, int32_t chunks_together);

}  // namespace lorad::kernels::cuda
