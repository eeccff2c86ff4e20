// The LoRA linear's layout: random microbatches against what must hold of any, sequences in company
// and alone, and a microbatch by hand.
#include "kernels/cuda/lora/layout.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "tests/kernels/cuda/lora/layout_checks.h"

namespace lorad::kernels::cuda::testing {
namespace {

TEST_CASE("Chunks begin with their sequence and hold every row once") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  Generator random(seed);
  for (int i = 0; i < 100; ++i) {
    const LoraMicrobatch batch = RandomMicrobatch(random);
    int64_t row = 0;
    for (const Chunk& chunk : ChunksOf(batch.segments)) {
      const Segment& segment = batch.segments[static_cast<size_t>(chunk.segment)];
      REQUIRE(chunk.first_row == row);
      const int64_t begin = row - segment.first_row;
      CHECK(begin % 256 == 0);
      CHECK(chunk.rows == std::min<int64_t>(256, segment.rows - begin));
      CHECK(chunk.first_position == segment.first_position + begin);
      row += chunk.rows;
    }
    CHECK(row == batch.tokens());
  }
}

TEST_CASE("Random microbatches: every chunk is worked on once, in columns of its own") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  Generator random(seed);
  for (int i = 0; i < 300; ++i) {
    INFO("microbatch " << i);
    CheckLayout(RandomMicrobatch(random));
  }
}

// ---- company ----

// All that decides how the sums of a segment are formed, counted from what is its own: its first
// row, its party's first pair, unit and column.
using Sums = std::vector<std::array<int64_t, 8>>;
Sums SumsOf(const LoraMicrobatch& batch, size_t index) {
  const Laid laid = {batch};
  const LoraLayout& layout = laid.layout;
  const Segment& segment = batch.segments[index];
  const LoraParty& party = *laid.PartyOf(segment);
  const auto mine = [&](int64_t row) {
    return row >= segment.first_row && row < segment.first_row + segment.rows;
  };
  Sums sums = {{layout.fast, party.drops}};
  for (size_t i = 0; i < layout.input_items.size(); ++i) {
    const LoraInputItem& item = layout.input_items[i];
    if (!mine(item.rows.first_row)) continue;
    const bool by_item = i < static_cast<size_t>(layout.tables.input_count);
    sums.push_back({1, item.rows.first_row - segment.first_row, item.rows.rows,
                    item.first_unit - party.first_unit, item.units, item.own_column,
                    item.column - party.column, by_item});
  }
  for (const LoraOutputItem& item : layout.output_items) {
    if (!mine(item.rows.first_row)) continue;
    sums.push_back({2, item.rows.first_row - segment.first_row, item.rows.rows,
                    item.pair - party.first_pair, item.first_rank, item.units});
  }
  for (const LoraTileGroup& group : layout.output_groups) {
    for (const auto& chunk : std::span(group.chunk).first(static_cast<size_t>(group.chunks))) {
      if (!mine(chunk.first_row)) continue;
      sums.push_back({2, chunk.first_row - segment.first_row, chunk.rows,
                      group.pair - party.first_pair, group.first_rank, group.units});
    }
  }
  for (const LoraTileGroup& group : layout.input_groups) {
    if (!mine(group.chunk[0].first_row)) continue;
    sums.push_back({3, group.chunk[0].first_row - segment.first_row, group.chunk[0].rows,
                    group.first_unit - party.first_unit, group.units});
  }
  std::sort(sums.begin(), sums.end());
  // The terms of its first row, in their order.
  const auto tile = static_cast<size_t>(segment.first_row / kTermTileRows);
  for (int32_t i = layout.terms.first[tile]; i < layout.terms.first[tile + 1]; ++i) {
    const int32_t pair = layout.terms.list[static_cast<size_t>(i)] - party.first_pair;
    if (pair >= 0 && pair < party.pairs) sums.push_back({4, pair});
  }
  return sums;
}

TEST_CASE("The sums of a sequence are formed as if it were alone") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  Generator random(seed);
  for (int i = 0; i < 60; ++i) {
    INFO("microbatch " << i);
    const LoraMicrobatch batch = RandomMicrobatch(random);
    for (size_t index = 0; index < batch.segments.size(); ++index) {
      const Segment& segment = batch.segments[index];
      if (!batch.HasAdapter(segment)) continue;
      LoraMicrobatch alone = batch;
      alone.segments = {segment};
      alone.segments[0].first_row = 0;
      for (size_t slot = 0; slot < alone.adapters.size(); ++slot) {
        if (static_cast<int32_t>(slot) != segment.slot) alone.adapters[slot].clear();
      }
      CHECK(SumsOf(batch, index) == SumsOf(alone, 0));
    }
  }
}

// ---- by hand ----

using Rows = std::vector<std::vector<int32_t>>;

Rows InputRows(const LoraLayout& layout) {
  Rows rows;
  for (const LoraInputItem& item : layout.input_items) {
    rows.push_back({item.rows.first_row, item.rows.rows, item.first_unit, item.units,
                    item.own_column, item.column, item.zeros, item.party_begin, item.party_end});
  }
  return rows;
}

// Slot 0 has ranks 8 and 72, 16 + 80 columns; slots 1, with dropout, and 2 have rank 16.
LoraMicrobatch ByHand() {
  constexpr int64_t kInputs = 64;
  const auto target = [](int64_t rank, int64_t first_output, float dropout) {
    return TargetOf(rank, first_output, 64, dropout, kInputs, DType::kBfloat16);
  };
  LoraMicrobatch batch;
  batch.adapters = {
      {target(8, 0, 0), target(72, 64, 0)}, {target(16, 0, 0.5f)}, {target(16, 0, 0)}};
  batch.device.inputs = kInputs;
  batch.device.multiprocessors = 132;
  batch.Append(300, 0, Mode::kTrain);       // 0 to 299: tiles 0 and 1
  batch.Append(100, 1, Mode::kTrain);       // 300 to 399: tile 1
  batch.Append(50, -1, Mode::kTrain);       // 400 to 449
  batch.Append(150, 1, Mode::kEvaluate);    // 450 to 599: tiles 1 and 2
  batch.Append(100, 0, Mode::kReference);   // 600 to 699
  batch.Append(100, 2, Mode::kTrain);       // 700 to 799: tiles 2 and 3
  batch.Append(200, 0, Mode::kTrain, 256);  // 800 to 999: tile 3
  return batch;
}

TEST_CASE("By hand: plain kernels") {
  LoraMicrobatch batch = ByHand();
  batch.device.hopper = false;
  CheckLayout(batch);
  const LoraLayout layout = batch.LayOut();
  // Slot 0, slot 1 with dropout, slot 1 without, slot 2. The last one's columns begin beside slot
  // 0's, which it meets in tile 3, and are those of slot 1's, which it does not meet with dropout.
  Rows parties;
  for (const LoraParty& party : layout.parties) {
    parties.push_back({party.slot, party.drops ? 1 : 0, party.first_pair, party.pairs,
                       party.first_unit, party.units, party.column, party.width});
  }
  CHECK(parties == Rows{{0, 0, 0, 2, 0, 6, 0, 96},
                        {1, 1, 2, 1, 6, 1, 96, 16},
                        {1, 0, 3, 1, 7, 1, 112, 16},
                        {2, 0, 4, 1, 8, 1, 96, 16}});
  CHECK(layout.tables.columns == 128);
  CHECK(layout.terms.first == std::vector<int32_t>{0, 2, 6, 8, 11});
  CHECK(layout.terms.list == std::vector<int32_t>{0, 1, 0, 1, 2, 3, 3, 4, 0, 1, 4});
  // Row, rows, unit, units, own column, column, zeros but in columns.
  CHECK(InputRows(layout) == Rows{{0, 256, 0, 4, 0, 0, 1, 0, 96},
                                  {256, 44, 0, 4, 0, 0, 1, 0, 96},
                                  {800, 200, 0, 4, 0, 0, 1, 0, 96},
                                  {0, 256, 4, 2, 64, 64, 0, 0, 96},
                                  {256, 44, 4, 2, 64, 64, 0, 0, 96},
                                  {800, 200, 4, 2, 64, 64, 0, 0, 96},
                                  {300, 100, 6, 1, 0, 96, 1, 96, 112},
                                  {450, 150, 7, 1, 0, 112, 1, 112, 128},
                                  {700, 100, 8, 1, 0, 96, 1, 96, 112},
                                  {400, 50, 0, 0, 0, 0, 1, 0, 0},
                                  {600, 100, 0, 0, 0, 0, 1, 0, 0}});
  // Three chunks of slot 0: two together, the longest ones, and one.
  Rows gradients;
  for (const LoraGradientItem& group : layout.gradient_items) {
    gradients.push_back({group.chunks, group.items[0], group.items[1]});
  }
  CHECK(gradients == Rows{{2, 0, 2}, {1, 1, 0}, {2, 3, 5}, {1, 4, 0}, {1, 6, 0}, {1, 8, 0}});
}

TEST_CASE("By hand: chunks whose dB is added up together") {
  LoraMicrobatch batch = ByHand();
  batch.device.hopper = false;
  const LoraLayout layout = batch.LayOut();
  // Row, pair, first rank, units.
  Rows items;
  for (const LoraOutputItem& item : layout.output_items) {
    items.push_back({item.rows.first_row, item.pair, item.first_rank, item.units});
  }
  CHECK(items == Rows{{0, 1, 0, 4},
                      {256, 1, 0, 4},
                      {800, 1, 0, 4},
                      {0, 0, 0, 1},
                      {0, 1, 64, 1},
                      {256, 0, 0, 1},
                      {256, 1, 64, 1},
                      {300, 2, 0, 1},
                      {450, 3, 0, 1},
                      {700, 4, 0, 1},
                      {800, 0, 0, 1},
                      {800, 1, 64, 1},
                      {400, 0, 0, 0},
                      {600, 0, 0, 0}});
  // Items 0 and 1, 3 and 5, 4 and 6 are of the same ranks; what is left has as many outputs.
  Rows pairs;
  for (const LoraOutputPair& pair : layout.output_pairs) {
    pairs.push_back({pair.items[0], pair.items[1], pair.together});
  }
  CHECK(pairs ==
        Rows{{0, 1, 1}, {2, 11, 0}, {3, 5, 1}, {4, 6, 1}, {7, 9, 0}, {8, 10, 0}, {12, 13, 0}});
}

TEST_CASE("By hand: on Hopper what has masks is made by items, all else by groups") {
  const LoraMicrobatch batch = ByHand();
  CheckLayout(batch);
  const LoraLayout layout = batch.LayOut();
  CHECK(layout.fast);
  CHECK(layout.tables.input_count == 1);
  // Those with masks first, then many units, then many rows.
  std::vector<int32_t> rows;
  for (const LoraInputItem& item : layout.input_items) rows.push_back(item.rows.first_row);
  CHECK(rows == std::vector<int32_t>{300, 0, 800, 256, 0, 800, 256, 450, 700, 600, 400});
  CHECK(layout.input_groups.size() == 10);
  CHECK(layout.masked_rank_max == 16);
  CHECK(layout.output_items.empty());
}

TEST_CASE("A microbatch without adapters is empty") {
  LoraMicrobatch batch = ByHand();
  CHECK_FALSE(batch.LayOut().empty());
  for (auto& adapter : batch.adapters) adapter.clear();
  CHECK(batch.LayOut().empty());
  batch = ByHand();
  for (Segment& segment : batch.segments) segment.mode = Mode::kReference;
  CHECK(batch.LayOut().empty());
  batch.segments.clear();
  CHECK(batch.LayOut().empty());
}

TEST_CASE("What the kernels for bf16 can do") {
  const auto fast = [](auto&& change) {
    LoraMicrobatch batch = ByHand();
    change(batch);
    return batch.LayOut().fast;
  };
  CHECK(fast([](LoraMicrobatch&) {}));
  CHECK_FALSE(fast([](LoraMicrobatch& b) { b.device.fast_kernels = false; }));
  CHECK_FALSE(fast([](LoraMicrobatch& b) { b.device.inputs = 60; }));
  CHECK_FALSE(fast([](LoraMicrobatch& b) { b.adapters[2][0].outputs = 60; }));
  CHECK_FALSE(fast([](LoraMicrobatch& b) { b.adapters[2][0].first_output = 4; }));
  CHECK_FALSE(fast([](LoraMicrobatch& b) { ++b.adapters[2][0].da; }));
  CHECK_FALSE(fast([](LoraMicrobatch& b) { ++b.adapters[2][0].db; }));
  CHECK_FALSE(fast([](LoraMicrobatch& b) {
    b.device.dtype = DType::kFloat32;
    for (auto& adapter : b.adapters) {
      for (LoraTarget& target : adapter) target.a_copy = target.b_copy = {};
    }
  }));
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing
