#include "sizes/cuda_loss.h"

#include <algorithm>

#include "sizes/cuda_products.h"

namespace lorad::sizes {
namespace {

constexpr int64_t kAlignment = 256;
// What a chunk's exponentials may take.
constexpr int64_t kWordBytesMax = int64_t{704} << 20;
// The product's tile, for counting how many fill the device, where two blocks share one.
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileWidth = 256;

// Rows of tiles in a chunk: the most that the device makes in a turn of all its multiprocessors;
// the larger of equals.
int64_t RowTiles(int64_t wanted, int64_t row_bytes, int64_t column_tiles, int64_t multiprocessors) {
  const int64_t at_once = std::max<int64_t>(multiprocessors / 2, 1);
  const int64_t affordable =
      std::clamp(kWordBytesMax / (row_bytes * kTileRows), int64_t{1}, wanted);
  const auto turns = [&](int64_t tiles) { return CeilDivide(tiles * column_tiles, at_once); };
  int64_t best = 1;
  for (int64_t tiles = 2; tiles <= affordable; ++tiles) {
    if (tiles * turns(best) >= best * turns(tiles)) best = tiles;
  }
  return best;
}

}  // namespace

CudaLossLayout LayCudaLoss(int64_t rows, int64_t vocabulary, int64_t hidden, int64_t value_bytes,
                           int64_t multiprocessors, int64_t chunk_rows) {
  CudaLossLayout to;
  to.columns = RoundUp(vocabulary, 64);
  to.rows = std::min(RoundUp(rows, kTileRows), chunk_rows);
  if (chunk_rows == 0) {
    to.rows = kTileRows * RowTiles(CeilDivide(rows, kTileRows), to.columns * value_bytes,
                                   CeilDivide(hidden, kTileWidth), multiprocessors);
  }
  Layout layout(kAlignment);
  const auto take_rows = [&](int64_t row_bytes) { return layout.Take(to.rows * row_bytes); };
  to.gathered_at = take_rows(RoundUp(hidden, 64) * value_bytes);
  to.words_at = take_rows(to.columns * value_bytes);
  to.unit_at = take_rows(RoundUp(hidden, 64) * value_bytes);
  to.targets_at = take_rows(sizeof(int32_t));
  to.references_at = take_rows(sizeof(float));
  to.target_logits_at = take_rows(sizeof(float));
  to.factors_at = take_rows(kLossFactorsBytes);
  to.parts_at = take_rows(CeilDivide(vocabulary, kPartColumns) * kLossPartBytes);
  to.again_at = layout.Take(sizeof(int32_t));
  to.gemm_at = layout.Take(kProductBytes);
  to.bytes = layout.bytes();
  return to;
}

}  // namespace lorad::sizes
