#include <cassert>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {

void SwiGlu(const Context& context, const CpuBatch& batch, const TensorView& gate_up,
            const TensorView& y) {
  const int64_t size = y.columns;
  assert(HasShape(gate_up, batch.tokens(), 2 * size) && HasShape(y, batch.tokens(), size));
  ForRows(context, y.rows, [&](int64_t row) {
    const float* gate = gate_up.row(row);
    context.loops.swiglu(gate, gate + size, y.row(row), size);
  });
}

void SwiGluBackward(const Context& context, const CpuBatch& batch, const TensorView& gate_up,
                    const TensorView& dy, const TensorView& dgate_up) {
  const int64_t size = dy.columns;
  assert(HasShape(gate_up, batch.tokens(), 2 * size) && HasShape(dy, batch.tokens(), size));
  assert(HasShape(dgate_up, batch.tokens(), 2 * size));
  ForRows(context, dy.rows, [&](int64_t row) {
    const float* gate = gate_up.row(row);
    float* dgate = dgate_up.row(row);
    context.loops.swiglu_backward(gate, gate + size, dy.row(row), dgate, dgate + size, size);
  });
}

}  // namespace lorad::kernels::cpu
