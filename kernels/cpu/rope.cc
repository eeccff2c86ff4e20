#include <cassert>
#include <cmath>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {

void FillRope(const Context& context, std::span<const float> inverse_frequencies, float factor,
              const TensorView& table) {
  const int64_t half = static_cast<int64_t>(inverse_frequencies.size());
  assert(HasShape(table, table.rows, 2 * half));
  ForRows(context, table.rows, [&](int64_t position) {
    float* row = table.row(position);
    for (int64_t i = 0; i < half; ++i) {
      // The angle is a float32 product, as in transformers; a more exact one would be another
      // model.
      const float angle =
          static_cast<float>(position) * inverse_frequencies[static_cast<size_t>(i)];
      row[i] = std::cos(angle) * factor;
      row[half + i] = std::sin(angle) * factor;
    }
  });
}

void Rope(const Context& context, const CpuBatch& batch, const HeadAngles& angles, float sign,
          const TensorView& x) {
  const int64_t head_size = angles.head_size;
  const TensorView& table = angles.table;
  assert(HasShape(x, batch.tokens(), x.columns) && x.columns % head_size == 0);
  assert(table.columns <= head_size);
  ForRows(context, x.rows, [&](int64_t row) {
    const int64_t angle = batch.angle_rows[static_cast<size_t>(row)];
    assert(angle < table.rows);
    context.loops.rope(x.row(row), table.row(angle), sign, x.columns / head_size, head_size,
                       table.columns);
  });
}

}  // namespace lorad::kernels::cpu
