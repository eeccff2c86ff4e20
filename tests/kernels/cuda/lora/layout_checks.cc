#include "tests/kernels/cuda/lora/layout_checks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <span>

namespace lorad::kernels::cuda::testing {
namespace {

constexpr int64_t kTileRows = 256;

bool ShareTile(const Segment& x, const Segment& y, int64_t tokens) {
  for (int64_t tile = 0; tile * kTileRows < tokens; ++tile) {
    if (InTile(x, tile) && InTile(y, tile)) return true;
  }
  return false;
}

void CheckParties(const Laid& laid) {
  const auto& segments = laid.batch.segments;
  std::vector<const LoraParty*> used;
  int64_t widths = 0;
  for (const Segment& segment : segments) {
    const LoraParty* party = laid.PartyOf(segment);
    if (party == nullptr) continue;
    if (std::find(used.begin(), used.end(), party) == used.end()) {
      used.push_back(party);
      widths += party->width;
    }
    CHECK(party->width == laid.batch.WidthOf(segment));
    CHECK(party->column >= 0);
    CHECK(party->column % 16 == 0);
    CHECK(party->column + party->width <= laid.layout.tables.columns);
    for (const Segment& other : segments) {
      const LoraParty* with = laid.PartyOf(other);
      if (with == nullptr || with == party) continue;
      if (!ShareTile(segment, other, laid.batch.tokens())) continue;
      CHECK((party->column + party->width <= with->column ||
             with->column + with->width <= party->column));
    }
  }
  CHECK(used.size() == laid.layout.parties.size());
  CHECK(laid.layout.tables.columns <= widths);
}

// A pair's mask begins with a block of its own of the scratch memory.
void CheckMask(const Laid& laid, const LoraPair& pair, int64_t index) {
  const int64_t row_bytes = (laid.batch.device.inputs + 255) / 256 * 32;
  CHECK(pair.mask == MaskMemory() + index * laid.batch.tokens() * row_bytes);
}

void CheckPair(const LoraPair& pair, const LoraTarget& target, bool drops) {
  const bool copies = !target.a_copy.empty();
  const auto padded = static_cast<int32_t>((target.rank + 15) / 16 * 16);
  CHECK(pair.a == (copies ? target.a_copy.data : target.a));
  CHECK(pair.b == (copies ? target.b_copy.data : target.b));
  CHECK((pair.da == target.da && pair.db == target.db));
  CHECK(pair.b_stride == (copies ? padded : target.rank));
  CHECK(pair.scale == target.scale);
  CHECK((pair.rank == target.rank && pair.padded == padded));
  CHECK((pair.first_output == target.first_output && pair.outputs == target.outputs));
  CHECK(pair.word0 ==
        (static_cast<uint32_t>(target.layer) << 22 | static_cast<uint32_t>(target.target) << 16));
  CHECK(pair.threshold == (drops ? std::lround(65536 * target.dropout) : 0));
  CHECK((pair.mask != nullptr) == drops);
  CHECK(pair.keep_scale == (drops ? 1 / (1 - target.dropout) : 1.0f));
}

void CheckPairs(const Laid& laid) {
  int32_t first_pair = 0, first_unit = 0;
  for (const LoraParty& party : laid.layout.parties) {
    const auto& targets = laid.batch.adapters[static_cast<size_t>(party.slot)];
    REQUIRE((party.first_pair == first_pair && party.first_unit == first_unit));
    REQUIRE(party.pairs == static_cast<int32_t>(targets.size()));
    int32_t own = 0;
    for (size_t i = 0; i < targets.size(); ++i, ++first_pair) {
      const LoraPair& pair = laid.layout.pairs[static_cast<size_t>(first_pair)];
      const bool drops = party.drops && targets[i].dropout > 1e-4f;
      CheckPair(pair, targets[i], drops);
      if (drops) CheckMask(laid, pair, static_cast<int64_t>(i));
      CHECK(pair.overflow == OverflowOf(static_cast<size_t>(party.slot)));
      CHECK(pair.own_column == own);
      CHECK(pair.column == party.column + own);
      own += pair.padded;
      for (int32_t rank = 0; rank < pair.padded; rank += 16, ++first_unit) {
        const LoraUnit& unit = laid.layout.units[static_cast<size_t>(first_unit)];
        CHECK((unit.pair == first_pair && unit.first_rank == rank));
      }
    }
    CHECK(party.units * 16 == own);
    CHECK(party.units * 16 == party.width);
  }
  CHECK(laid.layout.pairs.size() == static_cast<size_t>(first_pair));
  CHECK(laid.layout.units.size() == static_cast<size_t>(first_unit));
}

void CheckRows(const Laid& laid, const LoraRows& rows) {
  const Chunk& chunk = laid.ChunkAt(rows.first_row);
  const Segment& segment = laid.batch.segments[static_cast<size_t>(chunk.segment)];
  CHECK(rows.rows == chunk.rows);
  CHECK(rows.first_position == chunk.first_position);
  CHECK((rows.train != 0) == (segment.mode == Mode::kTrain));
  CHECK(rows.seed == segment.dropout.seed);
  CHECK((rows.step == segment.dropout.step && rows.sequence == segment.dropout.sequence));
}

// Counts the rows of work that writes zeros; it does so around the columns [begin, end).
void AddZeros(const Laid& laid, int32_t first_row, int32_t rows, int32_t begin, int32_t end,
              std::vector<int>& zeroed) {
  for (int32_t row = first_row; row < first_row + rows; ++row) ++zeroed[static_cast<size_t>(row)];
  const LoraParty* party = laid.PartyOf(laid.SegmentAt(first_row));
  CHECK(begin == (party == nullptr ? 0 : party->column));
  CHECK(end == (party == nullptr ? 0 : party->column + party->width));
}

// The work over x. Items make S; on Hopper only those with masks do, and groups the rest. All items
// make dA.
void CheckInputWork(const Laid& laid) {
  const LoraLayout& layout = laid.layout;
  const auto check = [&](const auto& item, const LoraParty* party) {
    REQUIRE((party == nullptr) == (item.units == 0));
    if (party == nullptr) return;
    REQUIRE((item.units >= 1 && item.units <= 4));
    const int32_t rank = layout.units[static_cast<size_t>(item.first_unit)].first_rank;
    CHECK(item.own_column == laid.PairOf(item.first_unit).own_column + rank);
    CHECK(item.column == laid.PairOf(item.first_unit).column + rank);
  };
  Work by_items, made;
  std::vector<int> zeroed(static_cast<size_t>(laid.batch.tokens()));
  for (size_t i = 0; i < layout.input_items.size(); ++i) {
    const LoraInputItem& item = layout.input_items[i];
    const LoraParty* party = laid.PartyOf(laid.SegmentAt(item.rows.first_row));
    CheckRows(laid, item.rows);
    check(item, party);
    CHECK((item.drops != 0) == (party != nullptr && party->drops));
    const bool makes = i < static_cast<size_t>(layout.tables.input_count);
    CHECK(makes == (!laid.hopper() || item.drops != 0));
    for (int32_t unit = 0; unit < item.units; ++unit) {
      ++by_items[{item.rows.first_row, item.first_unit + unit}];
      if (makes) ++made[{item.rows.first_row, item.first_unit + unit}];
    }
    if (!makes || item.zeros == 0) continue;
    AddZeros(laid, item.rows.first_row, item.rows.rows, item.party_begin, item.party_end, zeroed);
  }
  for (const LoraTileGroup& group : layout.input_groups) {
    REQUIRE(group.chunks == 1);
    const auto& [first_row, rows, train] = group.chunk[0];
    check(group, laid.PartyOf(laid.SegmentAt(first_row)));
    CHECK(rows == laid.ChunkAt(first_row).rows);
    CHECK((train != 0) == (laid.SegmentAt(first_row).mode == Mode::kTrain));
    for (int32_t i = 0; i < group.units; ++i) ++made[{first_row, group.first_unit + i}];
    if (group.zeros != 0) {
      AddZeros(laid, first_row, rows, group.party_begin, group.party_end, zeroed);
    }
  }
  CHECK(by_items == laid.WantedWork(false));
  CHECK(made == laid.WantedWork(false));
  CHECK(zeroed == std::vector<int>(zeroed.size(), 1));
}

// The work over dy: items, or on Hopper groups.
void CheckOutputWork(const Laid& laid) {
  const LoraLayout& layout = laid.layout;
  Work made;
  std::vector<int> zeroed(static_cast<size_t>(laid.batch.tokens()));
  const auto add = [&](const auto& work, int32_t first_row, int32_t rows) {
    if (work.zeros != 0) {
      AddZeros(laid, first_row, rows, work.party_begin, work.party_end, zeroed);
    }
    const LoraParty* party = laid.PartyOf(laid.SegmentAt(first_row));
    REQUIRE((party == nullptr) == (work.units == 0));
    if (party == nullptr) return;
    REQUIRE((work.units >= 1 && work.units <= 4));
    for (int32_t i = 0; i < work.units; ++i) {
      const auto unit =
          std::find_if(layout.units.begin(), layout.units.end(), [&](const LoraUnit& u) {
            return u.pair == work.pair && u.first_rank == work.first_rank + 16 * i;
          });
      REQUIRE(unit != layout.units.end());
      ++made[{first_row, static_cast<int32_t>(unit - layout.units.begin())}];
    }
  };
  for (const LoraOutputItem& item : layout.output_items) {
    CheckRows(laid, item.rows);
    add(item, item.rows.first_row, item.rows.rows);
  }
  for (const LoraTileGroup& group : layout.output_groups) {
    REQUIRE((group.chunks >= 1 && group.chunks <= TileChunks(group.units)));
    CHECK(group.chunks <= laid.batch.device.chunks_together);
    for (const auto& chunk : std::span(group.chunk).first(static_cast<size_t>(group.chunks))) {
      const Segment& segment = laid.SegmentAt(chunk.first_row);
      CHECK(laid.PartyOf(segment) == laid.PartyOf(laid.SegmentAt(group.chunk[0].first_row)));
      CHECK(chunk.rows == laid.ChunkAt(chunk.first_row).rows);
      CHECK((chunk.train != 0) == (segment.mode == Mode::kTrain));
      add(group, chunk.first_row, chunk.rows);
    }
    if (group.units == 0) continue;
    CHECK(group.column == layout.pairs[static_cast<size_t>(group.pair)].column + group.first_rank);
  }
  CHECK((laid.hopper() ? layout.output_items.empty() : layout.output_groups.empty()));
  CHECK(made == laid.WantedWork(false));
  CHECK(zeroed == std::vector<int>(zeroed.size(), 1));
}

void CheckGradientItems(const Laid& laid) {
  Work added;
  for (const LoraGradientItem& group : laid.layout.gradient_items) {
    REQUIRE((group.chunks == 1 || group.chunks == 2 || group.chunks == 4));
    CHECK(group.chunks <= laid.batch.device.chunks_together);
    const auto& items = laid.layout.input_items;
    const LoraInputItem& first = items[static_cast<size_t>(group.items[0])];
    for (const int32_t index : std::span(group.items).first(static_cast<size_t>(group.chunks))) {
      const LoraInputItem& item = items[static_cast<size_t>(index)];
      CHECK((item.first_unit == first.first_unit && item.units == first.units));
      CHECK(item.rows.rows <= first.rows.rows);
      for (int32_t i = 0; i < item.units; ++i) ++added[{item.rows.first_row, item.first_unit + i}];
    }
  }
  CHECK(added == laid.WantedWork(true));
}

void CheckOutputPairs(const Laid& laid) {
  const auto& items = laid.layout.output_items;
  std::vector<int> seen(items.size());
  std::map<std::pair<int32_t, int32_t>, int> alone;  // that train, by pair and first rank
  for (const LoraOutputPair& both : laid.layout.output_pairs) {
    REQUIRE(both.items[0] >= 0);
    const LoraOutputItem& x = items[static_cast<size_t>(both.items[0])];
    ++seen[static_cast<size_t>(both.items[0])];
    if (both.together == 0 && x.rows.train != 0 && x.units > 0) ++alone[{x.pair, x.first_rank}];
    if (both.items[1] < 0) {
      CHECK(both.together == 0);
      continue;
    }
    const LoraOutputItem& y = items[static_cast<size_t>(both.items[1])];
    ++seen[static_cast<size_t>(both.items[1])];
    if (both.together == 0 && y.rows.train != 0 && y.units > 0) ++alone[{y.pair, y.first_rank}];
    CHECK((x.units == 0) == (y.units == 0));
    CHECK(laid.layout.pairs[static_cast<size_t>(x.pair)].outputs ==
          laid.layout.pairs[static_cast<size_t>(y.pair)].outputs);
    if (both.together == 0) continue;
    CHECK((x.rows.train != 0 && y.rows.train != 0 && x.units > 0));
    CHECK((x.pair == y.pair && x.first_rank == y.first_rank));
  }
  CHECK(seen == std::vector<int>(seen.size(), 1));
  for (const auto& [ranks, count] : alone) {
    CHECK((count == 1 || laid.batch.device.chunks_together == 1));
  }
}

void CheckTerms(const Laid& laid) {
  const auto& [first, list] = laid.layout.terms;
  const int64_t tiles = (laid.batch.tokens() + kTileRows - 1) / kTileRows;
  REQUIRE(first.size() == static_cast<size_t>(tiles + 1));
  CHECK(first.front() == 0);
  CHECK(first.back() == static_cast<int32_t>(list.size()));
  for (int64_t tile = 0; tile < tiles; ++tile) {
    std::vector<int32_t> want;
    for (const LoraParty& party : laid.layout.parties) {
      const auto here = [&](const Segment& segment) {
        return InTile(segment, tile) && laid.PartyOf(segment) == &party;
      };
      const auto& segments = laid.batch.segments;
      if (std::none_of(segments.begin(), segments.end(), here)) continue;
      for (int32_t i = 0; i < party.pairs; ++i) want.push_back(party.first_pair + i);
    }
    const size_t at = static_cast<size_t>(tile);
    CHECK(std::vector<int32_t>(list.begin() + first[at], list.begin() + first[at + 1]) == want);
  }
}

template <typename Item, typename Value>
int32_t Most(const std::vector<Item>& items, Value&& value) {
  int32_t most = 0;
  for (const Item& item : items) most = std::max(most, static_cast<int32_t>(value(item)));
  return most;
}

// The counts that kernels are told.
void CheckCounts(const Laid& laid) {
  const LoraLayout& layout = laid.layout;
  const LoraTables& tables = layout.tables;
  const auto units = [](const auto& work) { return work.units; };
  const auto chunks = [](const auto& work) { return work.chunks; };
  CHECK(tables.output_count == static_cast<int32_t>(layout.output_items.size()));
  CHECK(tables.gradient_count == static_cast<int32_t>(layout.gradient_items.size()));
  CHECK(tables.output_pair_count == static_cast<int32_t>(layout.output_pairs.size()));
  CHECK(tables.input_group_count == static_cast<int32_t>(layout.input_groups.size()));
  CHECK(tables.output_group_count == static_cast<int32_t>(layout.output_groups.size()));
  CHECK(tables.input_units == Most(layout.input_items, units));
  CHECK((laid.hopper() || tables.output_units == Most(layout.output_items, units)));
  CHECK(tables.input_group_units == Most(layout.input_groups, units));
  CHECK(tables.output_group_units == Most(layout.output_groups, units));
  CHECK(tables.output_group_chunks == Most(layout.output_groups, chunks));
  CHECK(tables.gradient_chunks == Most(layout.gradient_items, chunks));
  CHECK(tables.inputs == laid.batch.device.inputs);
  CHECK(tables.outputs_max == Most(layout.pairs, [](const LoraPair& p) { return p.outputs; }));
  CHECK(tables.output_slices == Most(layout.pairs, [](const LoraPair& pair) {
          const int32_t slice = OutputSliceFeatures(pair.outputs);
          return (pair.outputs + slice - 1) / slice;
        }));
  CHECK(layout.masked_rank_max ==
        Most(layout.pairs, [](const LoraPair& p) { return p.threshold > 0 ? p.padded : 0; }));
  CHECK((tables.any_dropout != 0) == (layout.masked_rank_max > 0));
  CHECK((tables.any_train != 0) == !layout.gradient_items.empty());
}

}  // namespace

bool InTile(const Segment& segment, int64_t tile) {
  return segment.first_row < (tile + 1) * kTileRows &&
         segment.first_row + segment.rows > tile * kTileRows;
}

const LoraParty* Laid::PartyOf(const Segment& segment) const {
  if (!batch.HasAdapter(segment)) return nullptr;
  const auto found =
      std::find_if(layout.parties.begin(), layout.parties.end(), [&](const LoraParty& party) {
        return party.slot == segment.slot && party.drops == batch.Drops(segment);
      });
  REQUIRE(found != layout.parties.end());
  return &*found;
}

const Segment& Laid::SegmentAt(int64_t row) const {
  return *std::find_if(batch.segments.begin(), batch.segments.end(), [&](const Segment& segment) {
    return row >= segment.first_row && row < segment.first_row + segment.rows;
  });
}

const Chunk& Laid::ChunkAt(int64_t row) const {
  const auto found = std::find_if(chunks.begin(), chunks.end(),
                                  [&](const Chunk& chunk) { return chunk.first_row == row; });
  REQUIRE(found != chunks.end());
  return *found;
}

Work Laid::WantedWork(bool training_alone) const {
  Work work;
  for (const Chunk& chunk : chunks) {
    const Segment& segment = batch.segments[static_cast<size_t>(chunk.segment)];
    const LoraParty* party = PartyOf(segment);
    if (party == nullptr || (training_alone && segment.mode != Mode::kTrain)) continue;
    for (int32_t i = 0; i < party->units; ++i) work[{chunk.first_row, party->first_unit + i}] = 1;
  }
  return work;
}

void CheckLayout(const LoraMicrobatch& batch) {
  const Laid laid = {batch};
  CheckPairs(laid);
  const auto& segments = batch.segments;
  const bool none = std::none_of(segments.begin(), segments.end(),
                                 [&](const Segment& segment) { return batch.HasAdapter(segment); });
  REQUIRE(laid.layout.empty() == none);
  CheckCounts(laid);
  CHECK(laid.layout.input_items.empty() == none);
  if (none) return;
  CheckParties(laid);
  CheckInputWork(laid);
  CheckOutputWork(laid);
  CheckGradientItems(laid);
  if (!laid.hopper()) CheckOutputPairs(laid);
  CheckTerms(laid);
}

}  // namespace lorad::kernels::cuda::testing
