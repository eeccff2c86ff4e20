// The chunks of a microbatch: whatever is summed over tokens is summed within them, so that a sum
// depends on its own sequence alone (docs/determinism.md). Pure host code: no CUDA, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"

namespace lorad::kernels::cuda {

// At most kChunkTokens rows of one segment, counted from its sequence's first token.
struct Chunk {
  int32_t segment = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;

  bool operator==(const Chunk&) const = default;
};

// The chunks of all segments, in row order; every row is in one. REQUIRES: segments as in
// BatchDescription, each with at least one row.
std::vector<Chunk> ChunksOf(std::span<const Segment> segments);

}  // namespace lorad::kernels::cuda
