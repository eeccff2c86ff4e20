#include "kernels/cpu/handles.h"

#include <algorithm>

namespace lorad::kernels::cpu {

CpuBatch::CpuBatch(const BatchDescription& description)
    : ids(description.ids.begin(), description.ids.end()),
      segments(description.segments.begin(), description.segments.end()),
      loss_rows(description.loss_rows.begin(), description.loss_rows.end()) {
  positions.reserve(ids.size());
  size_t loss = 0;
  for (size_t index = 0; index < segments.size(); ++index) {
    const Segment& segment = segments[index];
    assert(segment.first_row == static_cast<int64_t>(positions.size()) && segment.rows > 0);
    assert(segment.first_position >= 0 && segment.first_position % kChunkTokens == 0);
    for (int64_t row = 0; row < segment.rows; ++row) {
      positions.push_back(static_cast<int32_t>(segment.first_position + row));
      angle_rows.push_back(static_cast<int32_t>(segment.first_angle) + positions.back());
    }
    for (int64_t begin = 0; begin < segment.rows; begin += kChunkTokens) {
      const Chunk chunk = {.segment = static_cast<int64_t>(index),
                           .first_row = segment.first_row + begin,
                           .rows = std::min(kChunkTokens, segment.rows - begin)};
      chunks.push_back(chunk);
      const size_t first = loss;
      while (loss < loss_rows.size() && loss_rows[loss].row < chunk.first_row + chunk.rows) {
        assert(loss_rows[loss].row >= chunk.first_row);
        assert(loss == 0 || loss_rows[loss].row > loss_rows[loss - 1].row);
        ++loss;
      }
      if (loss > first) {
        loss_chunks.push_back({.first = static_cast<int64_t>(first),
                               .count = static_cast<int64_t>(loss - first),
                               .train = segment.mode == Mode::kTrain});
      }
    }
  }
  assert(positions.size() == ids.size() && loss == loss_rows.size());
}

}  // namespace lorad::kernels::cpu
