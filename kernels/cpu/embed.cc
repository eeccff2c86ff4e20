#include <cassert>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {

void Embed(const Context& context, const CpuBatch& batch, const CpuLinear& table, float factor,
           const TensorView& x) {
  const TensorView& weight = table.weight;  // [V, H]
  assert(HasShape(x, batch.tokens(), weight.columns));
  ForRows(context, batch.tokens(), [&](int64_t row) {
    const int64_t id = batch.ids[static_cast<size_t>(row)];
    assert(id >= 0 && id < weight.rows);
    context.loops.scale(weight.row(id), factor, x.row(row), weight.columns);
  });
}

}  // namespace lorad::kernels::cpu
