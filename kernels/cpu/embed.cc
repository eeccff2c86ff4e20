#include <cassert>
#include <cstring>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {

void Embed(const Context& context, const CpuBatch& batch, const CpuLinear& table,
           const TensorView& x) {
  const TensorView& weight = table.weight;  // [V, H]
  assert(HasShape(x, batch.tokens(), weight.columns));
  ForRows(context, batch.tokens(), [&](int64_t row) {
    const int64_t id = batch.ids[static_cast<size_t>(row)];
    assert(id >= 0 && id < weight.rows);
    std::memcpy(x.row(row), weight.row(id), static_cast<size_t>(weight.columns) * sizeof(float));
  });
}

}  // namespace lorad::kernels::cpu
