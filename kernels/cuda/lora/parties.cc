#include "kernels/cuda/lora/parties.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "kernels/cuda/lora/tables.h"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {
namespace {

bool Drops(std::span<const LoraTarget> targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [](const LoraTarget& target) { return DropoutThreshold(target.dropout) > 0; });
}

bool HasGradients(std::span<const LoraTarget> targets) {
  return std::all_of(targets.begin(), targets.end(), [](const LoraTarget& target) {
    return target.da != nullptr && target.db != nullptr;
  });
}

void AddTiles(LoraParty& party, const Segment& segment) {
  const int64_t last = (segment.first_row + segment.rows - 1) / kTermTileRows;
  for (int64_t tile = segment.first_row / kTermTileRows; tile <= last; ++tile) {
    if (party.tiles.empty() || party.tiles.back() < tile) party.tiles.push_back(tile);
  }
}

// Their pairs and units, one party's after the other's.
void CountParties(std::vector<LoraParty>& parties, std::span<const LoraSlot> slots) {
  int32_t pair = 0;
  int32_t unit = 0;
  for (LoraParty& party : parties) {
    const auto& targets = slots[static_cast<size_t>(party.slot)].targets;
    for (const LoraTarget& target : targets) {
      party.width += static_cast<int32_t>(PaddedRank(target.rank));
    }
    party.first_pair = pair;
    party.pairs = static_cast<int32_t>(targets.size());
    party.first_unit = unit;
    party.units = party.width / kUnitRanks;
    pair += party.pairs;
    unit += party.units;
  }
}

// Each takes the first columns that are free in all of its tiles. Returns how many all take.
int32_t PlaceParties(std::vector<LoraParty>& parties) {
  struct Range {
    int32_t begin;
    int32_t end;
  };
  std::map<int64_t, std::vector<Range>> taken;  // by tile
  int32_t columns = 0;
  for (LoraParty& party : parties) {
    std::vector<Range> others;
    for (const int64_t tile : party.tiles) {
      const auto& in_tile = taken[tile];
      others.insert(others.end(), in_tile.begin(), in_tile.end());
    }
    std::sort(others.begin(), others.end(),
              [](const Range& x, const Range& y) { return x.begin < y.begin; });
    for (const Range& other : others) {
      if (other.begin >= party.column + party.width) break;
      party.column = std::max(party.column, other.end);
    }
    const Range mine = {party.column, party.column + party.width};
    for (const int64_t tile : party.tiles) taken[tile].push_back(mine);
    columns = std::max(columns, mine.end);
  }
  return columns;
}

}  // namespace

LoraParties FindParties(std::span<const Segment> segments, std::span<const LoraSlot> slots) {
  LoraParties parties;
  std::map<std::pair<int32_t, bool>, int32_t> index_of;  // by slot, and whether it drops
  for (const Segment& segment : segments) {
    const bool on = segment.slot >= 0 && segment.mode != Mode::kReference;
    assert(!on || static_cast<size_t>(segment.slot) < slots.size());
    if (!on || slots[static_cast<size_t>(segment.slot)].targets.empty()) {
      parties.of_segment.push_back(-1);
      continue;
    }
    const auto& targets = slots[static_cast<size_t>(segment.slot)].targets;
    const bool trains = segment.mode == Mode::kTrain;
    assert(!trains || HasGradients(targets));
    const bool drops = trains && Drops(targets);
    const auto [found, inserted] =
        index_of.try_emplace({segment.slot, drops}, static_cast<int32_t>(parties.all.size()));
    if (inserted) parties.all.push_back({.slot = segment.slot, .drops = drops});
    AddTiles(parties.all[static_cast<size_t>(found->second)], segment);
    parties.of_segment.push_back(found->second);
    parties.train = parties.train || trains;
  }
  CountParties(parties.all, slots);
  parties.columns = PlaceParties(parties.all);
  return parties;
}

LoraTermLists TermLists(std::span<const LoraParty> parties, int64_t tokens) {
  const int64_t tiles = (tokens + kTermTileRows - 1) / kTermTileRows;
  std::vector<std::vector<int32_t>> of_tile(static_cast<size_t>(tiles));
  for (const LoraParty& party : parties) {
    for (const int64_t tile : party.tiles) {
      for (int32_t pair = 0; pair < party.pairs; ++pair) {
        of_tile[static_cast<size_t>(tile)].push_back(party.first_pair + pair);
      }
    }
  }
  LoraTermLists lists;
  for (const auto& pairs : of_tile) {
    lists.first.push_back(static_cast<int32_t>(lists.list.size()));
    lists.list.insert(lists.list.end(), pairs.begin(), pairs.end());
  }
  lists.first.push_back(static_cast<int32_t>(lists.list.size()));
  return lists;
}

}  // namespace lorad::kernels::cuda
