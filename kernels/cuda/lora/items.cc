#include "kernels/cuda/lora/items.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lorad::kernels::cuda {
namespace {

// What takes long first: blocks start in this order, and the last ones should be short. Else by
// rows, so that blocks at work at one time read neighbours.
template <typename Item>
void LongestFirst(std::vector<Item>& items) {
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& x, const Item& y) { return x.units > y.units; });
}

}  // namespace

std::vector<LoraInputItem> InputItems(std::span<const PartyChunk> chunks) {
  std::vector<LoraInputItem> items;
  for (const auto& [rows, party] : chunks) {
    if (party == nullptr) {
      items.push_back({.rows = rows, .zeros = 1});
      continue;
    }
    for (int32_t unit = 0; unit < party->units; unit += kBlockUnits) {
      items.push_back({.rows = rows,
                       .first_unit = party->first_unit + unit,
                       .units = std::min(kBlockUnits, party->units - unit),
                       .own_column = unit * kUnitRanks,
                       .column = party->column + unit * kUnitRanks,
                       .zeros = unit == 0 ? 1 : 0,
                       .party_begin = party->column,
                       .party_end = party->column + party->width,
                       .drops = party->drops ? 1 : 0});
    }
  }
  LongestFirst(items);
  return items;
}

std::vector<LoraOutputItem> OutputItems(std::span<const PartyChunk> chunks,
                                        std::span<const LoraPair> pairs) {
  std::vector<LoraOutputItem> items;
  for (const auto& [rows, party] : chunks) {
    if (party == nullptr) {
      items.push_back({.rows = rows, .zeros = 1});
      continue;
    }
    for (int32_t index = 0; index < party->pairs; ++index) {
      const int32_t padded = pairs[static_cast<size_t>(party->first_pair + index)].padded;
      for (int32_t rank = 0; rank < padded; rank += kBlockUnits * kUnitRanks) {
        items.push_back({.rows = rows,
                         .pair = party->first_pair + index,
                         .first_rank = rank,
                         .units = std::min(kBlockUnits, (padded - rank) / kUnitRanks),
                         .zeros = index == 0 && rank == 0 ? 1 : 0,
                         .party_begin = party->column,
                         .party_end = party->column + party->width});
      }
    }
  }
  LongestFirst(items);
  return items;
}

std::vector<LoraGradientItem> GradientItems(std::span<const LoraInputItem> items,
                                            int32_t chunks_together) {
  std::map<int32_t, std::vector<int32_t>> alike;  // by first unit
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].units > 0 && items[i].rows.train != 0) {
      alike[items[i].first_unit].push_back(static_cast<int32_t>(i));
    }
  }
  const auto rows = [items](int32_t item) { return items[static_cast<size_t>(item)].rows.rows; };
  std::vector<LoraGradientItem> groups;
  for (auto& [unit, left] : alike) {
    // Warps of one block wait for each other at the end: chunks of about as many rows.
    std::stable_sort(left.begin(), left.end(),
                     [&](int32_t x, int32_t y) { return rows(x) > rows(y); });
    for (size_t first = 0; first < left.size();) {
      LoraGradientItem& group = groups.emplace_back();
      group.chunks = chunks_together;
      while (first + static_cast<size_t>(group.chunks) > left.size()) group.chunks /= 2;
      for (int32_t& item : std::span(group.items).first(static_cast<size_t>(group.chunks))) {
        item = left[first++];
      }
    }
  }
  // What takes long first; a group's first chunk has the most rows.
  const auto length = [items](const LoraGradientItem& group) {
    const LoraInputItem& item = items[static_cast<size_t>(group.items[0])];
    return std::pair(item.units, item.rows.rows);
  };
  std::stable_sort(
      groups.begin(), groups.end(),
      [&](const LoraGradientItem& x, const LoraGradientItem& y) { return length(x) > length(y); });
  return groups;
}

std::vector<LoraOutputPair> OutputPairs(std::span<const LoraOutputItem> items,
                                        std::span<const LoraPair> pairs, int32_t chunks_together) {
  // By pair and first rank those that train, then what is left by number of outputs; -1: items
  // without an adapter.
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> alike;
  std::map<int32_t, std::vector<int32_t>> left;
  std::vector<LoraOutputPair> result;
  const auto pair_up = [&result](const std::vector<int32_t>& some, int32_t together) {
    size_t i = 0;
    for (; i + 2 <= some.size(); i += 2) {
      result.push_back({.items = {some[i], some[i + 1]}, .together = together});
    }
    return std::span(some).subspan(i);
  };
  const auto outputs = [pairs](const LoraOutputItem& item) {
    return item.units == 0 ? -1 : pairs[static_cast<size_t>(item.pair)].outputs;
  };
  for (size_t i = 0; i < items.size(); ++i) {
    const LoraOutputItem& item = items[i];
    const bool sums = item.units > 0 && item.rows.train != 0 && chunks_together > 1;
    auto& some = sums ? alike[{item.pair, item.first_rank}] : left[outputs(item)];
    some.push_back(static_cast<int32_t>(i));
  }
  for (const auto& [key, some] : alike) {
    for (const int32_t item : pair_up(some, 1)) {
      left[outputs(items[static_cast<size_t>(item)])].push_back(item);
    }
  }
  for (const auto& [key, some] : left) {
    for (const int32_t item : pair_up(some, 0)) result.push_back({.items = {item, -1}});
  }
  // In the order of their rows: blocks at work at one time read neighbours.
  std::sort(result.begin(), result.end(), [](const LoraOutputPair& x, const LoraOutputPair& y) {
    return x.items[0] < y.items[0];
  });
  return result;
}

}  // namespace lorad::kernels::cuda
