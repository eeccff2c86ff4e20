// How chunks are shared out to blocks of the LoRA linear's kernels for Hopper.
#include "kernels/cuda/lora/tile_groups.h"

#include <catch2/catch.hpp>
#include <set>
#include <utility>

namespace lorad::kernels::cuda {
namespace {

constexpr int32_t kMultiprocessors = 132;

struct Batch {
  std::vector<LoraPair> pairs;
  std::vector<LoraOutputItem> outputs;
  std::vector<LoraInputItem> inputs;
};

// `chunks` chunks of 256 rows, an equal part of them each adapter's, with targets of so many
// outputs and 16 ranks.
Batch BatchOf(int32_t chunks, int32_t adapters, const std::vector<int32_t>& outputs) {
  Batch batch;
  const auto targets = static_cast<int32_t>(outputs.size());
  for (int32_t i = 0; i < adapters * targets; ++i) {
    batch.pairs.push_back({.rank = 16, .outputs = outputs[static_cast<size_t>(i % targets)]});
  }
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t adapter = chunk * adapters / chunks;
    const LoraRows rows = {.first_row = 256 * chunk, .rows = 256, .train = 1};
    batch.inputs.push_back(
        {.rows = rows, .first_unit = adapter * targets, .units = targets, .zeros = 1});
    for (int32_t i = 0; i < targets; ++i) {
      batch.outputs.push_back(
          {.rows = rows, .pair = adapter * targets + i, .units = 1, .zeros = i == 0 ? 1 : 0});
    }
  }
  return batch;
}

TEST_CASE("Slices of columns") {
  struct Case {
    int columns, pieces, slices;
  };
  for (const Case& c : std::vector<Case>{{8, 1, 1},
                                         {128, 1, 1},
                                         {136, 2, 2},
                                         {1024, 8, 8},
                                         {4096, 32, 8},
                                         {8192, 64, 8},
                                         {8200, 65, 16},
                                         {14336, 112, 16}}) {
    INFO(c.columns);
    CHECK(TilePieces(c.columns) == c.pieces);
    CHECK(TileSlices(c.columns) == c.slices);
  }
}

TEST_CASE("Chunks a group: few additions, but enough blocks") {
  struct Case {
    const char* name;
    int32_t chunks, adapters;
    std::vector<int32_t> outputs;
    int32_t most, together;
  };
  for (const Case& c : std::vector<Case>{{"a few blocks", 4, 1, {4096}, 4, 1},
                                         {"o of Llama-3.1-8B", 16, 4, {4096}, 4, 1},
                                         {"q,k,v of it", 16, 4, {4096, 1024, 1024}, 4, 2},
                                         {"gate,up of it", 16, 4, {14336, 14336}, 4, 4},
                                         {"o of TinyLlama", 32, 8, {2048}, 4, 2},
                                         {"gate,up of it", 32, 8, {5632, 5632}, 4, 4},
                                         {"no more than wanted", 32, 8, {5632, 5632}, 2, 2},
                                         {"no more than a sequence has", 32, 32, {11008}, 4, 1}}) {
    INFO(c.name);
    const Batch batch = BatchOf(c.chunks, c.adapters, c.outputs);
    CHECK(OutputTileGroups(batch.outputs, batch.pairs, c.most, kMultiprocessors).chunks ==
          c.together);
  }
}

TEST_CASE("Every chunk is in one group of its own adapter; what takes long comes first") {
  for (const int32_t chunks : {1, 3, 7, 32}) {
    const Batch batch = BatchOf(chunks, chunks < 3 ? 1 : 3, {256, 4096});
    for (const int32_t multiprocessors : {1, kMultiprocessors}) {
      std::set<std::pair<int32_t, int32_t>> seen;  // pair, row
      int32_t before = 1 << 30;
      for (const LoraTileGroup& group :
           OutputTileGroups(batch.outputs, batch.pairs, 4, multiprocessors).groups) {
        const int32_t outputs = batch.pairs[static_cast<size_t>(group.pair)].outputs;
        CHECK(outputs <= before);
        before = outputs;
        REQUIRE((group.chunks >= 1 && group.chunks <= TileChunks(group.units)));
        for (int32_t i = 0; i < group.chunks; ++i) {
          CHECK(seen.insert({group.pair, group.chunk[i].first_row}).second);
        }
      }
      CHECK(seen.size() == batch.outputs.size());
      for (const auto& item : batch.outputs) {
        CHECK(seen.contains({item.pair, item.rows.first_row}));
      }
    }
  }
}

TEST_CASE("Over x: a chunk each, what has masks is left out") {
  Batch batch = BatchOf(6, 2, {64, 64});
  batch.inputs[0].drops = 1;
  batch.inputs[2].units = 0;
  const LoraTileGroups groups = InputTileGroups(batch.inputs);
  CHECK(groups.units == 2);
  REQUIRE(groups.groups.size() == 5);
  for (int32_t i = 0; i < 5; ++i) {
    const LoraTileGroup& group = groups.groups[static_cast<size_t>(i)];
    CHECK(group.chunks == 1);
    CHECK(group.chunk[0].first_row == 256 * (i + 1));
    CHECK(group.units == (i == 1 ? 0 : 2));
  }
  CHECK(InputTileGroups({}).groups.empty());
}

}  // namespace
}  // namespace lorad::kernels::cuda
