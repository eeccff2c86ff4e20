#include "kernels/cuda/lora/layout.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "kernels/cuda/lora/items.h"
#include "kernels/cuda/lora/tile_groups.h"
#include "kernels/philox.h"
#include "sizes/cuda_products.h"

namespace lorad::kernels::cuda {
namespace {

// All but where its columns and its mask lie, and the slot's mark.
LoraPair PairOf(const LoraTarget& target, bool drops) {
  const bool copies = !target.a_copy.empty();
  const int32_t padded = static_cast<int32_t>(PaddedRank(target.rank));
  return {.a = copies ? target.a_copy.data : target.a,
          .b = copies ? target.b_copy.data : target.b,
          .da = target.da,
          .db = target.db,
          .b_stride = copies ? padded : target.rank,
          .scale = target.scale,
          .keep_scale = drops ? 1.0f / (1.0f - target.dropout) : 1.0f,
          .threshold = drops ? DropoutThreshold(target.dropout) : 0,
          .word0 = DropoutWord(static_cast<uint32_t>(target.layer),
                               static_cast<uint32_t>(target.target), 0),
          .rank = static_cast<int32_t>(target.rank),
          .padded = padded,
          .first_output = static_cast<int32_t>(target.first_output),
          .outputs = static_cast<int32_t>(target.outputs)};
}

void AddPairs(const LoraLayoutInput& input, const LoraParty& party, LoraLayout& layout) {
  const LoraSlot& slot = input.slots[static_cast<size_t>(party.slot)];
  int32_t own = 0;
  int64_t index = 0;
  for (const LoraTarget& target : slot.targets) {
    assert((input.dtype != DType::kFloat32) != target.a_copy.empty() && index < input.masks);
    const bool drops = party.drops && DropoutThreshold(target.dropout) > 0;
    LoraPair pair = PairOf(target, drops);
    pair.overflow = slot.overflow;
    if (drops) pair.mask = input.mask + index * input.mask_bytes;
    pair.own_column = own;
    pair.column = party.column + own;
    for (int32_t rank = 0; rank < pair.padded; rank += kUnitRanks) {
      layout.units.push_back({static_cast<int32_t>(layout.pairs.size()), rank});
    }
    layout.pairs.push_back(pair);
    own += pair.padded;
    ++index;
  }
  assert(own <= input.own_columns);
}

// What the kernels are told of all pairs.
void CountPairs(LoraLayout& layout) {
  LoraTables& tables = layout.tables;
  for (const LoraPair& pair : layout.pairs) {
    const int32_t slice = OutputSliceFeatures(pair.outputs);
    tables.output_slices = std::max(tables.output_slices, (pair.outputs + slice - 1) / slice);
    tables.outputs_max = std::max(tables.outputs_max, pair.outputs);
    if (pair.mask == nullptr) continue;
    tables.any_dropout = 1;
    layout.masked_rank_max = std::max(layout.masked_rank_max, pair.padded);
  }
}

// Whether the kernels for bf16 can do it: they move 16 bytes at a time.
bool IsFast(const LoraLayoutInput& input, std::span<const LoraPair> pairs) {
  const auto aligned = [](const int64_t* sums) {
    return reinterpret_cast<uintptr_t>(sums) % 16 == 0;
  };
  return input.fast_kernels && input.dtype != DType::kFloat32 && input.inputs % 8 == 0 &&
         std::all_of(pairs.begin(), pairs.end(), [&](const LoraPair& pair) {
           return pair.first_output % 8 == 0 && pair.outputs % 8 == 0 && aligned(pair.da) &&
                  aligned(pair.db);
         });
}

std::vector<PartyChunk> PartyChunks(const LoraLayoutInput& input, const LoraParties& parties) {
  std::vector<PartyChunk> chunks;
  for (const Chunk& chunk : input.chunks) {
    const Segment& segment = input.segments[static_cast<size_t>(chunk.segment)];
    const int32_t party = parties.of_segment[static_cast<size_t>(chunk.segment)];
    chunks.push_back({.rows = {.first_row = chunk.first_row,
                               .rows = chunk.rows,
                               .first_position = chunk.first_position,
                               .train = segment.mode == Mode::kTrain ? 1 : 0,
                               .step = segment.dropout.step,
                               .sequence = segment.dropout.sequence,
                               .seed = segment.dropout.seed},
                      .party = party < 0 ? nullptr : &parties.all[static_cast<size_t>(party)]});
  }
  return chunks;
}

void AddItems(const LoraLayoutInput& input, const LoraParties& parties, LoraLayout& layout) {
  const std::vector<PartyChunk> chunks = PartyChunks(input, parties);
  layout.input_items = InputItems(chunks);
  layout.output_items = OutputItems(chunks, layout.pairs);
  LoraTables& tables = layout.tables;
  tables.input_count = static_cast<int32_t>(layout.input_items.size());
  for (const auto& item : layout.input_items) {
    tables.input_units = std::max(tables.input_units, item.units);
  }
  for (const auto& item : layout.output_items) {
    tables.output_units = std::max(tables.output_units, item.units);
  }
}

// Hopper's kernels take all of dy, and of x what has no masks.
void TakeTileGroups(const LoraLayoutInput& input, LoraLayout& layout) {
  LoraTileGroups outputs = OutputTileGroups(layout.output_items, layout.pairs,
                                            input.chunks_together, input.multiprocessors);
  LoraTileGroups inputs = InputTileGroups(layout.input_items);
  layout.output_items.clear();
  // dA needs all of them. Of chunks that end with their sequence the short ones last: their blocks
  // are short, and fill what the others leave.
  std::stable_sort(layout.input_items.begin(), layout.input_items.end(),
                   [](const LoraInputItem& x, const LoraInputItem& y) {
                     return std::tie(x.drops, x.units, x.rows.rows) >
                            std::tie(y.drops, y.units, y.rows.rows);
                   });
  LoraTables& tables = layout.tables;
  tables.input_count = static_cast<int32_t>(
      std::count_if(layout.input_items.begin(), layout.input_items.end(),
                    [](const LoraInputItem& item) { return item.drops != 0; }));
  layout.output_groups = std::move(outputs.groups);
  tables.output_group_units = outputs.units;
  tables.output_group_chunks = outputs.chunks;
  layout.input_groups = std::move(inputs.groups);
  tables.input_group_units = inputs.units;
  tables.multiprocessors = input.multiprocessors;
}

void AddGroupsOfItems(int32_t chunks_together, LoraLayout& layout) {
  layout.gradient_items = GradientItems(layout.input_items, chunks_together);
  layout.output_pairs = OutputPairs(layout.output_items, layout.pairs, chunks_together);
  for (const LoraGradientItem& group : layout.gradient_items) {
    layout.tables.gradient_chunks = std::max(layout.tables.gradient_chunks, group.chunks);
  }
}

void CountArrays(LoraLayout& layout) {
  LoraTables& tables = layout.tables;
  tables.output_count = static_cast<int32_t>(layout.output_items.size());
  tables.gradient_count = static_cast<int32_t>(layout.gradient_items.size());
  tables.output_pair_count = static_cast<int32_t>(layout.output_pairs.size());
  tables.input_group_count = static_cast<int32_t>(layout.input_groups.size());
  tables.output_group_count = static_cast<int32_t>(layout.output_groups.size());
}

}  // namespace

LoraLayout LayOutLora(const LoraLayoutInput& input) {
  LoraLayout layout;
  layout.tables.inputs = static_cast<int32_t>(input.inputs);
  LoraParties parties = FindParties(input.segments, input.slots);
  if (parties.all.empty()) return layout;
  assert(parties.columns <= input.columns);
  assert(input.tokens * sizes::MaskRowBytes(input.inputs) <= input.mask_bytes);
  layout.tables.columns = parties.columns;
  layout.tables.any_train = parties.train ? 1 : 0;
  for (const LoraParty& party : parties.all) AddPairs(input, party, layout);
  CountPairs(layout);
  layout.fast = IsFast(input, layout.pairs);
  AddItems(input, parties, layout);
  if (input.hopper && layout.fast) TakeTileGroups(input, layout);
  AddGroupsOfItems(input.chunks_together, layout);
  CountArrays(layout);
  layout.terms = TermLists(parties.all, input.tokens);
  layout.parties = std::move(parties.all);
  return layout;
}

}  // namespace lorad::kernels::cuda
