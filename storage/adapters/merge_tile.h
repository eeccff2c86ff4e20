#pragma once

#include <cstdint>

#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// Columns of a matrix that are merged side by side: their sums stay in registers, and so many of A
// in the first cache while the rows pass.
inline constexpr int64_t kTileColumns = 64;

// A part of a matrix that lies in memory as in its file, and what goes into it.
struct MergeTile {
  char* values;  // of the first row; rows lie `in_features` values apart
  int64_t rows;
  int64_t columns;  // at most kTileColumns
  int64_t in_features;
  const float* b;  // {rows, rank}
  const float* a;  // {rank, columns}, rows `in_features` apart
  int64_t rank;
  float scale;
};

// values[i, c] = round(values[i, c] + scale * sum over k of b[i, k] * a[k, c]). The sum goes by
// fused products in the order of k: as torch makes it on CPUs, so that a merge by PEFT has the same
// bits.
// REQUIRES: `type` is F32, BF16 or F16.
void Merge(TensorType type, const MergeTile& tile);

}  // namespace lorad::storage
