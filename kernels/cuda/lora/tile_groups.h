// Which chunks a block of the LoRA linear's kernels for Hopper works on (tables.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/lora/tables.h"

namespace lorad::kernels::cuda {

struct LoraTileGroups {
  std::vector<LoraTileGroup> groups;
  int32_t units = 0;   // of a group at most
  int32_t chunks = 0;  // likewise, of outputs: a group of inputs has one
};

// A group each of those items that have no masks, in their order.
LoraTileGroups InputTileGroups(std::span<const LoraInputItem> items);
// Every item is in one group; those that take long come first, those without an adapter last. More
// chunks a group are fewer additions to memory and fewer blocks: as many, and chunks_most at most,
// as let so many multiprocessors end soonest. Speed alone.
LoraTileGroups OutputTileGroups(std::span<const LoraOutputItem> items,
                                std::span<const LoraPair> pairs, int32_t chunks_most,
                                int32_t multiprocessors);

}  // namespace lorad::kernels::cuda
