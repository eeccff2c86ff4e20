// The LoRA linear of one microbatch and one linear group as its kernels see it: plain arrays in
// device memory, laid out by layout.h and uploaded by plan.h. Also for .cu files.
//
// A party is (slot, with dropout or not) with rows in the microbatch and targets in the group. Its
// pairs, one a target, have consecutive ranges of columns, each padded to kRankAlignment, in two
// buffers: its own columns (from 0: S as it is kept for the backward, whose other columns of a row
// are not read), and shared columns (S and dS as the product reads them: parties with rows in the
// same tile of rows have columns of their own, and a row's other columns are exact zeros).
#pragma once

#include <cstdint>

namespace lorad::kernels::cuda {

// One target of one party.
struct LoraPair {
  const void* a = nullptr;      // [padded, K]; float32: [R, K]
  const void* b = nullptr;      // [O, padded]; float32: [O, R]
  int64_t* da = nullptr;        // [R, K]; null where nothing trains
  int64_t* db = nullptr;        // [O, R]
  int32_t* overflow = nullptr;  // of the slot
  uint8_t* mask = nullptr;      // [T, mask_row_bytes], drawn in the backward; null: no dropout
  int64_t b_stride = 0;         // elements
  float scale = 0;              // s
  float keep_scale = 1;         // 1 / (1 - p)
  uint32_t threshold = 0;       // of a feature's 16 bits; 0: no dropout
  uint32_t word0 = 0;           // of the dropout counter, block 0
  int32_t rank = 0;             // R
  int32_t padded = 0;
  int32_t first_output = 0;
  int32_t outputs = 0;     // O
  int32_t own_column = 0;  // in S as kept
  int32_t column = 0;      // in S and dS as the product reads them
};

// 16 ranks of a pair.
struct LoraUnit {
  int32_t pair = 0;
  int32_t first_rank = 0;
};

// A chunk's rows: what sums over tokens are formed of, and what a mask depends on.
struct LoraRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;
  int32_t train = 0;
  uint32_t step = 0;
  uint32_t sequence = 0;
  uint64_t seed = 0;
};

// The most units that one block computes at a time.
inline constexpr int kBlockUnits = 4;
inline constexpr int kUnitRanks = 16;

// Work over x: a chunk and up to kBlockUnits consecutive units of its party.
struct LoraInputItem {
  LoraRows rows;
  int32_t first_unit = 0;
  int32_t units = 0;       // 0: no adapter, zeros are written
  int32_t own_column = 0;  // of the first unit
  int32_t column = 0;
  // The first item of a chunk writes zeros in all columns of its rows but the party's.
  int32_t zeros = 0;
  int32_t party_begin = 0;  // columns of the party
  int32_t party_end = 0;
  int32_t drops = 0;  // 1: some pair of the party has a mask
};

// Work over dy: a chunk, a pair, and up to kBlockUnits * 16 of its ranks.
struct LoraOutputItem {
  LoraRows rows;
  int32_t pair = 0;
  int32_t first_rank = 0;
  int32_t units = 0;
  int32_t zeros = 0;
  int32_t party_begin = 0;
  int32_t party_end = 0;
};

// Chunks of one party whose dA a block forms side by side and adds up before it goes to memory:
// input items that train, of the same units.
inline constexpr int kGroupChunks = 4;
struct LoraGradientItem {
  int32_t items[kGroupChunks] = {};
  int32_t chunks = 0;  // 1, 2 or 4
};

// Output items of as many outputs that a block works on side by side; items[1] may be -1.
struct LoraOutputPair {
  int32_t items[2] = {-1, -1};
  int32_t together =
      0;  // 1: both train, of the same ranks of a pair, so their dB is added up first
};

// How kernels form sums over features, of x or of a pair's part of dy: in slices of so many.
constexpr int InputSliceFeatures(int inputs) { return inputs <= 2048 ? 512 : 1024; }
constexpr int OutputSliceFeatures(int outputs) { return outputs <= 8192 ? 512 : 1024; }

// How the kernels for Hopper form sums over columns, of x or of a pair's part of dy: slice i has
// pieces i, i + slices, i + 2 slices... of 128 columns, so that those at work at one time
// read neighbours.
inline constexpr int kSlicePieceColumns = 128;
constexpr int TilePieces(int columns) {
  return (columns + kSlicePieceColumns - 1) / kSlicePieceColumns;
}
constexpr int TileSlices(int columns) {
  const int most = columns <= 8192 ? 8 : 16;
  return TilePieces(columns) < most ? TilePieces(columns) : most;
}

// What blocks of the kernels for Hopper work on, with up to kBlockUnits units. Over x: a chunk,
// with consecutive units of its party; over dy: chunks of one party in turns, with units of one
// pair.
inline constexpr int kTileChunks = 4;
constexpr int TileChunks(int units) { return units <= 2 ? kTileChunks : 2; }
struct LoraTileGroup {
  int32_t units = 0;       // 0: no adapter, zeros are written
  int32_t first_unit = 0;  // over x
  int32_t pair = 0;        // over dy
  int32_t first_rank = 0;  // over dy, of the pair
  int32_t own_column = 0;  // of the first unit
  int32_t column = 0;
  int32_t zeros = 0;  // of these three see LoraInputItem
  int32_t party_begin = 0;
  int32_t party_end = 0;
  int32_t chunks = 0;
  struct Chunk {
    int32_t first_row = 0;
    int32_t rows = 0;
    int32_t train = 0;
  };
  Chunk chunk[kTileChunks] = {};
};

struct LoraTables {
  const LoraPair* pairs = nullptr;
  const LoraUnit* units = nullptr;
  const LoraInputItem* input_items = nullptr;
  const LoraOutputItem* output_items = nullptr;
  const LoraGradientItem* gradient_items = nullptr;
  const LoraOutputPair* output_pairs = nullptr;
  const LoraTileGroup* input_groups = nullptr;
  const LoraTileGroup* output_groups = nullptr;
  int32_t input_count = 0;  // that S is made of by items: the first ones
  int32_t output_count = 0;
  int32_t gradient_count = 0;
  int32_t output_pair_count = 0;
  int32_t input_group_count = 0;  // the others
  int32_t output_group_count = 0;
  int32_t columns = 0;      // of S and dS as the product reads them
  int32_t input_units = 0;  // the most of an item
  int32_t output_units = 0;
  int32_t input_group_units = 0;
  int32_t output_group_units = 0;
  int32_t output_group_chunks = 0;
  int32_t gradient_chunks = 0;  // likewise
  int32_t any_dropout = 0;      // 1: some training pair has dropout
  int32_t any_train = 0;
  int32_t multiprocessors = 0;  // that launches should fill
  int32_t inputs = 0;           // K
  int32_t outputs_max = 0;      // of a pair
  int32_t output_slices = 0;    // likewise
};

}  // namespace lorad::kernels::cuda
