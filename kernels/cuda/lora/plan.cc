#include "kernels/cuda/lora/plan.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/lora/kernels.h"
#include "kernels/cuda/lora/tile_groups.h"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {
namespace {

// Shared memory of a block that the fast kernels are made for: Hopper's. Devices with less take the
// plain ones.
constexpr int kFastSharedBytes = 227 * 1024;

LoraRows RowsOf(const Chunk& chunk, const Segment& segment) {
  return {.first_row = chunk.first_row,
          .rows = chunk.rows,
          .first_position = chunk.first_position,
          .train = segment.mode == Mode::kTrain ? 1 : 0,
          .step = segment.dropout.step,
          .sequence = segment.dropout.sequence,
          .seed = segment.dropout.seed};
}

struct LoraPlans final : Extension {
  std::map<std::pair<const CudaAdapterTable*, int32_t>, std::unique_ptr<LoraPlan>> of;
};

bool Drops(const std::vector<ResidentTarget>& targets) {
  return std::any_of(targets.begin(), targets.end(), [](const ResidentTarget& resident) {
    return DropoutThreshold(resident.target.dropout) > 0;
  });
}

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

}  // namespace

LoraMemory LoraMemoryAt(void* base, const sizes::CudaLoraLayout& layout, const Limits& limits,
                        DType dtype) {
  char* const bytes = static_cast<char*>(base);
  LoraMemory memory;
  memory.tokens = limits.tokens;
  memory.columns = layout.columns;
  memory.own_columns = layout.own_columns;
  memory.masks = layout.masks;
  memory.mask_row_bytes = layout.mask_row_bytes;
  memory.dtype = dtype;
  memory.shared = bytes + layout.shared_at;
  memory.own = bytes + layout.own_at;
  memory.mask = reinterpret_cast<uint8_t*>(bytes + layout.mask_at);
  memory.partial = reinterpret_cast<float4*>(bytes + layout.partial_at);
  memory.partial_bytes = kLoraPartialBytes;
  memory.counters = reinterpret_cast<int32_t*>(bytes + layout.counters_at);
  return memory;
}

void ClearLoraMemory(const LoraMemory& memory, cudaStream_t stream) {
  const auto clear = [stream](void* data, int64_t bytes) {
    LORAD_CUDA_CHECK(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream));
  };
  clear(memory.mask, memory.masks * memory.tokens * memory.mask_row_bytes);
  clear(memory.counters, kLoraCounters * int64_t{sizeof(int32_t)});
}

LoraPlan::LoraPlan(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                   const CudaAdapterTable& table, int32_t group, int64_t inputs)
    : version_(table.version()) {
  assert(batch.tokens() <= memory.tokens);
  const int64_t tiles = (batch.tokens() + kTermTileRows - 1) / kTermTileRows;
  tables_.inputs = static_cast<int32_t>(inputs);
  FindParties(batch, table, group);
  if (parties_.empty()) return;
  PlaceParties(tiles, memory.columns);
  AddPairs(memory, table, group, inputs);
  fast_ = fast_ && context.shared_bytes >= kFastSharedBytes;
  AddItems(batch);
  tables_.input_count = static_cast<int32_t>(input_items_.size());
  if (context.capability == 90 && fast_) TakeTileGroups(context, memory);
  AddGradientItems(memory.chunks_together);
  AddOutputPairs(memory.chunks_together);
  AddLists(tiles);
  Upload(context);
}

void LoraPlan::FindParties(const CudaBatch& batch, const CudaAdapterTable& table, int32_t group) {
  std::map<std::pair<int32_t, bool>, int32_t> index_of;
  for (const Segment& segment : batch.segments) {
    const bool on = segment.slot >= 0 && segment.mode != Mode::kReference;
    if (!on || table.Of(segment.slot, group).empty()) {
      party_of_segment_.push_back(-1);
      continue;
    }
    const bool drops = segment.mode == Mode::kTrain && Drops(table.Of(segment.slot, group));
    const auto [found, inserted] =
        index_of.try_emplace({segment.slot, drops}, static_cast<int32_t>(parties_.size()));
    if (inserted) parties_.emplace_back();
    Party& party = parties_[static_cast<size_t>(found->second)];
    party.slot = segment.slot;
    party.drops = drops;
    if (segment.mode == Mode::kTrain) {
      tables_.any_train = 1;
      for (const ResidentTarget& resident : table.Of(segment.slot, group)) {
        assert(resident.target.da != nullptr && resident.target.db != nullptr);
      }
    }
    const int64_t last = (segment.first_row + segment.rows - 1) / kTermTileRows;
    for (int64_t tile = segment.first_row / kTermTileRows; tile <= last; ++tile) {
      if (party.tiles.empty() || party.tiles.back() < tile) party.tiles.push_back(tile);
    }
    party_of_segment_.push_back(found->second);
  }
  for (Party& party : parties_) {
    for (const ResidentTarget& resident : table.Of(party.slot, group)) {
      party.width += static_cast<int32_t>(PaddedRank(resident.target.rank));
    }
  }
}

// Each takes the first columns that are free in all of its tiles.
void LoraPlan::PlaceParties(int64_t tiles, int64_t columns_max) {
  struct Range {
    int32_t begin;
    int32_t end;
  };
  std::vector<std::vector<Range>> taken(static_cast<size_t>(tiles));
  int32_t columns = 0;
  for (Party& party : parties_) {
    std::vector<Range> others;
    for (const int64_t tile : party.tiles) {
      const auto& in_tile = taken[static_cast<size_t>(tile)];
      others.insert(others.end(), in_tile.begin(), in_tile.end());
    }
    std::sort(others.begin(), others.end(),
              [](const Range& x, const Range& y) { return x.begin < y.begin; });
    for (const Range& other : others) {
      if (other.begin >= party.column + party.width) break;
      party.column = std::max(party.column, other.end);
    }
    const Range mine = {party.column, party.column + party.width};
    for (const int64_t tile : party.tiles) taken[static_cast<size_t>(tile)].push_back(mine);
    columns = std::max(columns, mine.end);
  }
  assert(columns <= columns_max);
  tables_.columns = columns;
}

void LoraPlan::AddPairs(const LoraMemory& memory, const CudaAdapterTable& table, int32_t group,
                        int64_t inputs) {
  const bool copies = memory.dtype != DType::kFloat32;
  assert(MaskRowBytes(inputs) <= memory.mask_row_bytes);
  fast_ = copies && inputs % 8 == 0;
  for (Party& party : parties_) {
    party.first_pair = static_cast<int32_t>(pairs_.size());
    party.first_unit = static_cast<int32_t>(units_.size());
    int32_t own = 0;
    for (const ResidentTarget& resident : table.Of(party.slot, group)) {
      const LoraTarget& target = resident.target;
      const int64_t index = static_cast<int64_t>(pairs_.size()) - party.first_pair;
      assert(copies != target.a_copy.empty() && index < memory.masks);
      const bool drops = party.drops && DropoutThreshold(target.dropout) > 0;
      LoraPair pair = PairOf(target, drops);
      pair.overflow = table.overflow(party.slot);
      if (drops) pair.mask = memory.mask + index * memory.tokens * memory.mask_row_bytes;
      pair.own_column = own;
      pair.column = party.column + own;
      own += pair.padded;
      AddPair(pair);
      AddTerms(table.gemm(), resident, pair, inputs);
    }
    party.pairs = static_cast<int32_t>(pairs_.size()) - party.first_pair;
    party.units = static_cast<int32_t>(units_.size()) - party.first_unit;
    assert(own <= memory.own_columns);
  }
}

void LoraPlan::AddPair(const LoraPair& pair) {
  for (int32_t rank = 0; rank < pair.padded; rank += kUnitRanks) {
    units_.push_back({static_cast<int32_t>(pairs_.size()), rank});
  }
  pairs_.push_back(pair);
  fast_ = fast_ && pair.first_output % 8 == 0 && pair.outputs % 8 == 0 &&
          reinterpret_cast<uintptr_t>(pair.da) % 16 == 0 &&
          reinterpret_cast<uintptr_t>(pair.db) % 16 == 0;
  const int32_t slice = OutputSliceFeatures(pair.outputs);
  tables_.output_slices = std::max(tables_.output_slices, (pair.outputs + slice - 1) / slice);
  tables_.outputs_max = std::max(tables_.outputs_max, pair.outputs);
  if (pair.mask == nullptr) return;
  tables_.any_dropout = 1;
  masked_rank_max_ = std::max(masked_rank_max_, pair.padded);
}

void LoraPlan::AddTerms(const Gemm& gemm, const ResidentTarget& resident, const LoraPair& pair,
                        int64_t inputs) {
  const LoraTarget& target = resident.target;
  LowRankTerm forward = resident.forward;
  LowRankTerm backward = resident.backward;
  if (target.a_copy.empty()) {
    const TensorView a = {target.a, target.rank, inputs, inputs, DType::kFloat32, Device::kCuda};
    const TensorView b = {target.b,    target.outputs,  target.rank,
                          target.rank, DType::kFloat32, Device::kCuda};
    forward = gemm.MakeTerm(Product::kForward, b, 0, target.first_output, {});
    backward = gemm.MakeTerm(Product::kInputGradient, a, 0, 0, {});
  }
  forward.first_column = pair.column;
  backward.first_column = pair.column;
  if (pair.mask != nullptr) {
    backward.mask_words = reinterpret_cast<const uint32_t*>(pair.mask);
    backward.mask_row_words = MaskRowBytes(inputs) / 4;
    backward.mask_scale = pair.keep_scale;
  }
  forward_terms_.push_back(forward);
  backward_terms_.push_back(backward);
}

void LoraPlan::AddItems(const CudaBatch& batch) {
  for (const Chunk& chunk : batch.chunks) {
    const size_t segment = static_cast<size_t>(chunk.segment);
    const LoraRows rows = RowsOf(chunk, batch.segments[segment]);
    if (party_of_segment_[segment] < 0) {
      input_items_.push_back({.rows = rows, .zeros = 1});
      output_items_.push_back({.rows = rows, .zeros = 1});
      continue;
    }
    const Party& party = parties_[static_cast<size_t>(party_of_segment_[segment])];
    const int32_t party_end = party.column + party.width;
    for (int32_t unit = 0; unit < party.units; unit += kBlockUnits) {
      const int32_t units = std::min(kBlockUnits, party.units - unit);
      tables_.input_units = std::max(tables_.input_units, units);
      input_items_.push_back({.rows = rows,
                              .first_unit = party.first_unit + unit,
                              .units = units,
                              .own_column = unit * kUnitRanks,
                              .column = party.column + unit * kUnitRanks,
                              .zeros = unit == 0 ? 1 : 0,
                              .party_begin = party.column,
                              .party_end = party_end,
                              .drops = party.drops ? 1 : 0});
    }
    for (int32_t index = 0; index < party.pairs; ++index) {
      const int32_t padded = pairs_[static_cast<size_t>(party.first_pair + index)].padded;
      for (int32_t rank = 0; rank < padded; rank += kBlockUnits * kUnitRanks) {
        const int32_t units = std::min(kBlockUnits, (padded - rank) / kUnitRanks);
        tables_.output_units = std::max(tables_.output_units, units);
        output_items_.push_back({.rows = rows,
                                 .pair = party.first_pair + index,
                                 .first_rank = rank,
                                 .units = units,
                                 .zeros = index == 0 && rank == 0 ? 1 : 0,
                                 .party_begin = party.column,
                                 .party_end = party_end});
      }
    }
  }
  // What takes long first: blocks start in this order, and the last ones should be short. Else by
  // rows, so that blocks at work at one time read neighbours.
  const auto longer = [](const auto& x, const auto& y) { return x.units > y.units; };
  std::stable_sort(input_items_.begin(), input_items_.end(), longer);
  std::stable_sort(output_items_.begin(), output_items_.end(), longer);
}

// Hopper's kernels take all of dy, and of x what has no masks.
void LoraPlan::TakeTileGroups(const Context& context, const LoraMemory& memory) {
  const int32_t multiprocessors =
      memory.multiprocessors > 0 ? memory.multiprocessors : context.multiprocessors;
  const int32_t together = memory.chunks_together;
  LoraTileGroups outputs = OutputTileGroups(output_items_, pairs_, together, multiprocessors);
  LoraTileGroups inputs = InputTileGroups(input_items_);
  output_items_.clear();
  // dA needs all of them. Of chunks that end with their sequence the short ones last: their blocks
  // are short, and fill what the others leave.
  std::stable_sort(
      input_items_.begin(), input_items_.end(), [](const LoraInputItem& x, const LoraInputItem& y) {
        return std::tie(x.drops, x.units, x.rows.rows) > std::tie(y.drops, y.units, y.rows.rows);
      });
  tables_.input_count = static_cast<int32_t>(
      std::count_if(input_items_.begin(), input_items_.end(),
                    [](const LoraInputItem& item) { return item.drops != 0; }));
  output_groups_ = std::move(outputs.groups);
  tables_.output_group_units = outputs.units;
  tables_.output_group_chunks = outputs.chunks;
  input_groups_ = std::move(inputs.groups);
  tables_.input_group_units = inputs.units;
  tables_.multiprocessors = multiprocessors;
}

void LoraPlan::AddGradientItems(int32_t chunks_together) {
  std::map<int32_t, std::vector<int32_t>> alike;  // by first unit
  for (size_t i = 0; i < input_items_.size(); ++i) {
    const LoraInputItem& item = input_items_[i];
    if (item.units > 0 && item.rows.train != 0) {
      alike[item.first_unit].push_back(static_cast<int32_t>(i));
    }
  }
  const auto rows = [this](int32_t item) {
    return input_items_[static_cast<size_t>(item)].rows.rows;
  };
  for (auto& [unit, items] : alike) {
    // Warps of one block wait for each other at the end: chunks of about as many rows.
    std::stable_sort(items.begin(), items.end(),
                     [&](int32_t x, int32_t y) { return rows(x) > rows(y); });
    for (size_t first = 0; first < items.size();) {
      LoraGradientItem& group = gradient_items_.emplace_back();
      group.chunks = chunks_together;
      while (first + static_cast<size_t>(group.chunks) > items.size()) group.chunks /= 2;
      for (int32_t& item : std::span(group.items).first(static_cast<size_t>(group.chunks))) {
        item = items[first++];
      }
      tables_.gradient_chunks = std::max(tables_.gradient_chunks, group.chunks);
    }
  }
  // Likewise; a group's first chunk has the most rows.
  const auto length = [this](const LoraGradientItem& group) {
    const LoraInputItem& item = input_items_[static_cast<size_t>(group.items[0])];
    return std::pair(item.units, item.rows.rows);
  };
  std::stable_sort(
      gradient_items_.begin(), gradient_items_.end(),
      [&](const LoraGradientItem& x, const LoraGradientItem& y) { return length(x) > length(y); });
}

void LoraPlan::AddOutputPairs(int32_t chunks_together) {
  // By pair and first rank those that train, then what is left by number of outputs; -1: items
  // without an adapter.
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> alike;
  std::map<int32_t, std::vector<int32_t>> left;
  const auto pair_up = [this](const std::vector<int32_t>& items, int32_t together) {
    size_t i = 0;
    for (; i + 2 <= items.size(); i += 2) {
      output_pairs_.push_back({.items = {items[i], items[i + 1]}, .together = together});
    }
    return std::span(items).subspan(i);
  };
  const auto outputs = [this](const LoraOutputItem& item) {
    return item.units == 0 ? -1 : pairs_[static_cast<size_t>(item.pair)].outputs;
  };
  for (size_t i = 0; i < output_items_.size(); ++i) {
    const LoraOutputItem& item = output_items_[i];
    const bool sums = item.units > 0 && item.rows.train != 0 && chunks_together > 1;
    auto& items = sums ? alike[{item.pair, item.first_rank}] : left[outputs(item)];
    items.push_back(static_cast<int32_t>(i));
  }
  for (const auto& [key, items] : alike) {
    for (const int32_t item : pair_up(items, 1)) {
      left[outputs(output_items_[static_cast<size_t>(item)])].push_back(item);
    }
  }
  for (const auto& [key, items] : left) {
    for (const int32_t item : pair_up(items, 0)) output_pairs_.push_back({.items = {item, -1}});
  }
  // In the order of their rows: blocks at work at one time read neighbours.
  std::sort(
      output_pairs_.begin(), output_pairs_.end(),
      [](const LoraOutputPair& x, const LoraOutputPair& y) { return x.items[0] < y.items[0]; });
}

void LoraPlan::AddLists(int64_t tiles) {
  std::vector<std::vector<int32_t>> of_tile(static_cast<size_t>(tiles));
  for (const Party& party : parties_) {
    for (const int64_t tile : party.tiles) {
      for (int32_t pair = 0; pair < party.pairs; ++pair) {
        of_tile[static_cast<size_t>(tile)].push_back(party.first_pair + pair);
      }
    }
  }
  for (const auto& pairs : of_tile) {
    first_.push_back(static_cast<int32_t>(list_.size()));
    list_.insert(list_.end(), pairs.begin(), pairs.end());
  }
  first_.push_back(static_cast<int32_t>(list_.size()));
}

void LoraPlan::Upload(Context& context) {
  TableLayout layout;
  const auto add = [&layout]<typename T>(const std::vector<T>& values) {
    return layout.Add<T>(static_cast<int64_t>(values.size()));
  };
  const int64_t forward = add(forward_terms_);  // first: aligned to their 128 bytes
  const int64_t backward = add(backward_terms_);
  const int64_t pairs = add(pairs_);
  const int64_t units = add(units_);
  const int64_t input_items = add(input_items_);
  const int64_t output_items = add(output_items_);
  const int64_t gradient_items = add(gradient_items_);
  const int64_t output_pairs = add(output_pairs_);
  const int64_t input_groups = add(input_groups_);
  const int64_t output_groups = add(output_groups_);
  const int64_t first = add(first_);
  const int64_t list = add(list_);
  memory_ = context.tables.Take(layout.bytes());
  const auto fill = [this]<typename T>(const std::vector<T>& values, int64_t offset) {
    std::copy(values.begin(), values.end(), memory_.Host<T>(offset));
    return static_cast<const T*>(memory_.Device<T>(offset));
  };
  tables_.pairs = fill(pairs_, pairs);
  tables_.units = fill(units_, units);
  tables_.input_items = fill(input_items_, input_items);
  tables_.output_items = fill(output_items_, output_items);
  tables_.gradient_items = fill(gradient_items_, gradient_items);
  tables_.output_pairs = fill(output_pairs_, output_pairs);
  tables_.input_groups = fill(input_groups_, input_groups);
  tables_.output_groups = fill(output_groups_, output_groups);
  tables_.output_count = static_cast<int32_t>(output_items_.size());
  tables_.gradient_count = static_cast<int32_t>(gradient_items_.size());
  tables_.output_pair_count = static_cast<int32_t>(output_pairs_.size());
  tables_.input_group_count = static_cast<int32_t>(input_groups_.size());
  tables_.output_group_count = static_cast<int32_t>(output_groups_.size());
  forward_ = {.terms = fill(forward_terms_, forward),
              .first = fill(first_, first),
              .list = fill(list_, list),
              .count = static_cast<int32_t>(forward_terms_.size())};
  backward_ = forward_;
  backward_.terms = fill(backward_terms_, backward);
  memory_.StartUpload(layout.bytes());
}

void LoraPlan::AwaitUpload() {
  if (!uploaded_ && !empty()) memory_.AwaitUpload();
  uploaded_ = true;
}

namespace {

LoraPlan& MadePlan(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                   const CudaAdapterTable& table, int32_t group, int64_t inputs) {
  if (batch.lora == nullptr) batch.lora = std::make_unique<LoraPlans>();
  std::unique_ptr<LoraPlan>& plan = static_cast<LoraPlans&>(*batch.lora).of[{&table, group}];
  if (plan == nullptr || plan->version() != table.version()) {
    plan = std::make_unique<LoraPlan>(context, memory, batch, table, group, inputs);
  }
  return *plan;
}

// Inputs of a group as its adapters' copies tell them; 0: none does.
int64_t InputsOf(const CudaBatch& batch, const CudaAdapterTable& table, int32_t group) {
  for (const Segment& segment : batch.segments) {
    if (segment.slot < 0) continue;
    for (const ResidentTarget& resident : table.Of(segment.slot, group)) {
      if (!resident.target.a_copy.empty()) return resident.target.a_copy.columns;
    }
  }
  return 0;
}

}  // namespace

const LoraPlan& PlanOf(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                       const CudaAdapterTable& table, int32_t group, int64_t inputs) {
  LoraPlan& plan = MadePlan(context, memory, batch, table, group, inputs);
  assert(plan.empty() || plan.tables().inputs == inputs);
  plan.AwaitUpload();
  return plan;
}

void PlanAhead(Context& context, const LoraMemory& memory, const CudaBatch& batch,
               const CudaAdapterTable& table, int32_t group) {
  if (group >= table.groups()) return;
  const int64_t inputs = InputsOf(batch, table, group);
  if (inputs > 0) MadePlan(context, memory, batch, table, group, inputs);
}

}  // namespace lorad::kernels::cuda
