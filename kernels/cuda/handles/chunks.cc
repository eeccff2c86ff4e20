#include "kernels/cuda/handles/chunks.h"

#include <algorithm>

namespace lorad::kernels::cuda {

std::vector<Chunk> ChunksOf(std::span<const Segment> segments) {
  std::vector<Chunk> chunks;
  for (size_t index = 0; index < segments.size(); ++index) {
    const Segment& segment = segments[index];
    for (int64_t begin = 0; begin < segment.rows; begin += kChunkTokens) {
      chunks.push_back({.segment = static_cast<int32_t>(index),
                        .first_row = static_cast<int32_t>(segment.first_row + begin),
                        .rows = static_cast<int32_t>(std::min(kChunkTokens, segment.rows - begin)),
                        .first_position = static_cast<int32_t>(segment.first_position + begin)});
    }
  }
  return chunks;
}

}  // namespace lorad::kernels::cuda
