// Products of kernels/cuda and their adapters' part: tiles, and where the scratch memory of the
// LoRA linear lies. Also for .cu files.
#pragma once

#include <cstdint>

#include "sizes/batch.h"

namespace lorad::sizes {

// Rows of a tile that share one list of terms.
inline constexpr int64_t kTermTileRows = 256;
// Columns of a mask row come in multiples of this (so that its words can be read 16 bytes at once).
inline constexpr int64_t kMaskColumns = 256;
// Bytes of a row of a mask over `features`, as the product wants them.
constexpr int64_t MaskRowBytes(int64_t features) { return RoundUp(features, kMaskColumns) / 8; }

// Scratch of one product.
inline constexpr int64_t kProductBytes = int64_t{32} << 20;

// Sums of slices: enough for 32 chunks, 64 rank columns and 16,384 features to be formed slice by
// slice in parallel; more is formed in sequence or by several launches, with the same bits.
inline constexpr int64_t kLoraPartialBytes = int64_t{32} << 20;
inline constexpr int kLoraCounters = 2048;

// In bytes from its first one; LoraMemory (kernels/cuda/lora/plan.h) says what each is.
struct CudaLoraLayout {
  int64_t own_columns = 0;
  int64_t columns = 0;
  int64_t masks = 0;
  int64_t mask_row_bytes = 0;
  int64_t shared_at = 0;
  int64_t own_at = 0;
  int64_t mask_at = 0;
  int64_t partial_at = 0;
  int64_t counters_at = 0;
  int64_t bytes = 0;
};

CudaLoraLayout LayCudaLora(const Limits& limits, int64_t value_bytes);

}  // namespace lorad::sizes
