#include "kernels/cuda/lora/tile_groups.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lorad::kernels::cuda {
namespace {

// Chunks that may share a group: of one party and the same ranks, in the order of their rows.
struct Alike {
  std::vector<LoraTileGroup> chunks;  // one each
  int32_t columns = 0;
};
// By pair and first rank.
using AllAlike = std::map<std::pair<int32_t, int32_t>, Alike>;

template <typename Item>
LoraTileGroup ChunkOf(const Item& item) {
  return {.units = item.units,
          .zeros = item.zeros,
          .party_begin = item.party_begin,
          .party_end = item.party_end,
          .chunks = 1,
          .chunk = {{item.rows.first_row, item.rows.rows, item.rows.train}}};
}

// Of a block's slice, in tiles of 64 columns of a chunk.
double TilesOf(int32_t columns) {
  const int32_t slices = TileSlices(columns);
  return 2.0 * ((TilePieces(columns) + slices - 1) / slices);
}

// When the last block ends, in the time in which a multiprocessor gets a tile from memory while all
// of them read. Measured on an H100.
double EndOf(const std::vector<const Alike*>& all, int32_t together, int32_t multiprocessors) {
  constexpr double kBlock = 4;   // a block's beginning and end
  constexpr double kTile = 0.5;  // a tile, while few multiprocessors read
  constexpr double kAdd = 0.6;   // 64 columns of 16 ranks, added to memory
  double bytes = 0, work = 0, longest = 0, additions = 0;
  for (const Alike* alike : all) {
    const double chunks = static_cast<double>(alike->chunks.size());
    const double groups = static_cast<double>((alike->chunks.size() + together - 1) / together);
    const double slices = TileSlices(alike->columns);
    const double tiles = TilesOf(alike->columns);
    bytes += chunks * slices * tiles;
    work += slices * (groups * kBlock + chunks * tiles * kTile);
    longest = std::max(longest, kBlock + kTile * tiles * std::min<double>(together, chunks));
    additions += groups * slices * tiles * kAdd * alike->chunks.front().units;
  }
  return std::max({bytes / multiprocessors, work / multiprocessors, longest}) +
         additions / multiprocessors;
}

// Of chunks [first, first + count).
LoraTileGroup Together(const Alike& alike, size_t first, size_t count) {
  LoraTileGroup group = alike.chunks[first];
  group.chunks = static_cast<int32_t>(count);
  for (size_t i = 0; i < count; ++i) group.chunk[i] = alike.chunks[first + i].chunk[0];
  return group;
}

LoraTileGroups GroupsOf(const AllAlike& by_ranks, const std::vector<LoraTileGroup>& empty,
                        int32_t chunks_most, int32_t multiprocessors) {
  LoraTileGroups result;
  std::vector<const Alike*> all;
  for (const auto& [ranks, alike] : by_ranks) {
    all.push_back(&alike);
    result.units = std::max(result.units, alike.chunks.front().units);
  }
  std::stable_sort(all.begin(), all.end(), [](const Alike* x, const Alike* y) {
    return TilesOf(x->columns) > TilesOf(y->columns);
  });
  int32_t together = 1;
  double end = EndOf(all, 1, multiprocessors);
  for (int32_t more = 2; more <= std::min(chunks_most, TileChunks(result.units)); more *= 2) {
    const double later = EndOf(all, more, multiprocessors);
    if (later > end) continue;
    together = more;
    end = later;
  }
  const size_t most = static_cast<size_t>(together);
  for (const Alike* alike : all) {
    for (size_t i = 0; i < alike->chunks.size(); i += most) {
      result.groups.push_back(Together(*alike, i, std::min(most, alike->chunks.size() - i)));
    }
  }
  result.groups.insert(result.groups.end(), empty.begin(), empty.end());
  for (const LoraTileGroup& group : result.groups) {
    result.chunks = std::max(result.chunks, group.chunks);
  }
  return result;
}

}  // namespace

LoraTileGroups InputTileGroups(std::span<const LoraInputItem> items) {
  LoraTileGroups result;
  for (const LoraInputItem& item : items) {
    if (item.drops != 0) continue;
    LoraTileGroup& chunk = result.groups.emplace_back(ChunkOf(item));
    chunk.first_unit = item.first_unit;
    chunk.own_column = item.own_column;
    chunk.column = item.column;
    result.units = std::max(result.units, item.units);
  }
  return result;
}

LoraTileGroups OutputTileGroups(std::span<const LoraOutputItem> items,
                                std::span<const LoraPair> pairs, int32_t chunks_most,
                                int32_t multiprocessors) {
  AllAlike by_ranks;
  std::vector<LoraTileGroup> empty;
  for (const LoraOutputItem& item : items) {
    LoraTileGroup chunk = ChunkOf(item);
    if (item.units == 0) {
      empty.push_back(chunk);
      continue;
    }
    const LoraPair& pair = pairs[static_cast<size_t>(item.pair)];
    chunk.pair = item.pair;
    chunk.first_rank = item.first_rank;
    chunk.column = pair.column + item.first_rank;
    Alike& alike = by_ranks[{item.pair, item.first_rank}];
    alike.chunks.push_back(chunk);
    alike.columns = pair.outputs;
  }
  return GroupsOf(by_ranks, empty, chunks_most, multiprocessors);
}

}  // namespace lorad::kernels::cuda
