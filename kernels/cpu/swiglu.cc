#include <cassert>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {

void SwiGlu(const Context& context, const CpuBatch& batch, Gate gate, const TensorView& gate_up,
            const TensorView& y) {
  const int64_t size = y.columns;
  const auto run = gate == Gate::kSilu ? context.loops.swiglu : context.loops.geglu;
  assert(HasShape(gate_up, batch.tokens(), 2 * size) && HasShape(y, batch.tokens(), size));
  ForRows(context, y.rows, [&](int64_t row) {
    const float* from = gate_up.row(row);
    run(from, from + size, y.row(row), size);
  });
}

void SwiGluBackward(const Context& context, const CpuBatch& batch, Gate gate,
                    const TensorView& gate_up, const TensorView& dy, const TensorView& dgate_up) {
  const int64_t size = dy.columns;
  const auto run =
      gate == Gate::kSilu ? context.loops.swiglu_backward : context.loops.geglu_backward;
  assert(HasShape(gate_up, batch.tokens(), 2 * size) && HasShape(dy, batch.tokens(), size));
  assert(HasShape(dgate_up, batch.tokens(), 2 * size));
  ForRows(context, dy.rows, [&](int64_t row) {
    const float* from = gate_up.row(row);
    float* to = dgate_up.row(row);
    run(from, from + size, dy.row(row), to, to + size, size);
  });
}

}  // namespace lorad::kernels::cpu
