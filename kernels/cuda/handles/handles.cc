#include "kernels/cuda/handles/handles.h"

#include <algorithm>
#include <cassert>

namespace lorad::kernels::cuda {

CudaBatch::CudaBatch(Context& context, const BatchDescription& description)
    : segments(description.segments.begin(), description.segments.end()),
      loss_rows(description.loss_rows.begin(), description.loss_rows.end()) {
  Describe(description);
  TableLayout layout;
  const int64_t t = tokens();
  const int64_t n = static_cast<int64_t>(loss_rows.size());
  const int64_t ids = layout.Add<int32_t>(t);
  const int64_t row_positions = layout.Add<int32_t>(t);
  const int64_t loss_of_row = layout.Add<int32_t>(t);
  const int64_t rows = layout.Add<int32_t>(n);
  const int64_t targets = layout.Add<int32_t>(n);
  memory_ = context.tables.Take(layout.bytes());
  tables = {.tokens = static_cast<int32_t>(t),
            .loss_count = static_cast<int32_t>(n),
            .ids = memory_.Device<int32_t>(ids),
            .positions = memory_.Device<int32_t>(row_positions),
            .loss_of_row = memory_.Device<int32_t>(loss_of_row),
            .loss_rows = memory_.Device<int32_t>(rows),
            .loss_targets = memory_.Device<int32_t>(targets)};
  FillTables(description);
  memory_.Upload(layout.bytes());
}

void CudaBatch::Describe(const BatchDescription& description) {
  size_t loss = 0;
  for (const Segment& segment : segments) {
    assert(segment.first_row == tokens() && segment.rows > 0);
    assert(segment.first_position >= 0 && segment.first_position % kChunkTokens == 0);
    for (int64_t row = 0; row < segment.rows; ++row) {
      positions.push_back(static_cast<int32_t>(segment.first_angle + segment.first_position + row));
    }
    for (; loss < loss_rows.size() && loss_rows[loss].row < tokens(); ++loss) {
      assert(loss_rows[loss].row >= segment.first_row);
      assert(loss == 0 || loss_rows[loss].row > loss_rows[loss - 1].row);
      loss_trained.push_back(segment.mode == Mode::kTrain ? 1 : 0);
    }
  }
  chunks = ChunksOf(segments);
  assert(positions.size() == description.ids.size() && loss == loss_rows.size());
}

void CudaBatch::FillTables(const BatchDescription& description) {
  std::copy(description.ids.begin(), description.ids.end(), memory_.HostOf(tables.ids));
  std::copy(positions.begin(), positions.end(), memory_.HostOf(tables.positions));
  int32_t* loss_of_row = memory_.HostOf(tables.loss_of_row);
  std::fill_n(loss_of_row, tokens(), -1);
  for (size_t i = 0; i < loss_rows.size(); ++i) {
    memory_.HostOf(tables.loss_rows)[i] = static_cast<int32_t>(loss_rows[i].row);
    memory_.HostOf(tables.loss_targets)[i] = loss_rows[i].target;
    if (loss_trained[i] != 0) loss_of_row[loss_rows[i].row] = static_cast<int32_t>(i);
  }
}

}  // namespace lorad::kernels::cuda
