// The LoRA linear of one microbatch and one linear group, laid out in host memory: all that its
// kernels read (tables.h) but the products' terms, which plan.h adds before it uploads both. A pure
// function of plain values: no CUDA, any thread. Pointers into device memory are passed on, never
// followed. A breach of what is required fails an assertion; there are no other errors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/handles/chunks.h"
#include "kernels/cuda/lora/parties.h"
#include "kernels/cuda/lora/tables.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

struct LoraLayoutInput {
  // The microbatch.
  int64_t tokens = 0;                 // T
  std::span<const Segment> segments;  // [B]
  std::span<const Chunk> chunks;      // ChunksOf(segments)

  // The group. Targets have copies where activations are not float32.
  std::span<const LoraSlot> slots;  // by slot
  int64_t inputs = 0;               // K
  DType dtype = DType::kBfloat16;

  // Scratch memory: what a layout may take of it.
  int64_t columns = 0;      // shared ones
  int64_t own_columns = 0;  // of a party
  int64_t masks = 0;        // of a party
  uint8_t* mask = nullptr;  // device, the first one
  int64_t mask_bytes = 0;   // of one

  // The device.
  bool fast_kernels = true;  // it has the shared memory that the kernels for bf16 want
  bool hopper = true;        // compute capability 9.0
  // Speed alone: multiprocessors that launches should fill; so many chunks' dA and dB are added up
  // at most before they go to memory (1, 2 or kGroupChunks).
  int32_t multiprocessors = 0;
  int32_t chunks_together = kGroupChunks;
};

struct LoraLayout {
  LoraTables tables;  // counts; the arrays, below, are null
  std::vector<LoraParty> parties;
  std::vector<LoraPair> pairs;
  std::vector<LoraUnit> units;
  std::vector<LoraInputItem> input_items;
  std::vector<LoraOutputItem> output_items;
  std::vector<LoraGradientItem> gradient_items;  // of input_items
  std::vector<LoraOutputPair> output_pairs;      // of output_items
  std::vector<LoraTileGroup> input_groups;       // for Hopper
  std::vector<LoraTileGroup> output_groups;      // likewise
  LoraTermLists terms;
  bool fast = true;             // the kernels for bf16 can do it
  int32_t masked_rank_max = 0;  // of the pairs with dropout, padded; 0: none

  // No row has an adapter: the plain product.
  bool empty() const { return pairs.empty(); }
};

// On Hopper, where the result is `fast`, all work over dy is in output_groups, and output_items is
// empty; work over x without masks is in input_groups, and the first tables.input_count items of
// input_items are the rest of it (dA needs all of them). Elsewhere there are no groups.
// REQUIRES: the scratch memory is enough.
LoraLayout LayOutLora(const LoraLayoutInput& input);

}  // namespace lorad::kernels::cuda
