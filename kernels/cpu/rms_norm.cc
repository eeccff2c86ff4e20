#include <cassert>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {

void RmsNorm(const Context& context, const CpuBatch& batch, const TensorView& x,
             const TensorView& weight, float eps, const TensorView& y) {
  const int64_t hidden = x.columns;
  assert(HasShape(x, batch.tokens(), hidden) && HasShape(y, batch.tokens(), hidden));
  assert(HasShape(weight, 1, hidden));
  ForRows(context, x.rows, [&](int64_t row) {
    context.loops.rms_norm(x.row(row), weight.f32(), eps, y.row(row), hidden);
  });
}

void RmsNormBackward(const Context& context, const CpuBatch& batch, const TensorView& x,
                     const TensorView& weight, float eps, const TensorView& dy,
                     const TensorView& dx) {
  const int64_t hidden = x.columns;
  assert(HasShape(x, batch.tokens(), hidden) && HasShape(dy, batch.tokens(), hidden));
  assert(HasShape(dx, batch.tokens(), hidden) && HasShape(weight, 1, hidden));
  ForRows(context, x.rows, [&](int64_t row) {
    context.loops.rms_norm_backward(x.row(row), weight.f32(), eps, dy.row(row), dx.row(row),
                                    hidden);
  });
}

void RmsNormGradient(const Context& context, const CpuBatch& batch, const TensorView& x,
                     const TensorView& weight, float eps, const TensorView& dy,
                     const TensorView& dx) {
  const int64_t hidden = x.columns;
  assert(HasShape(x, batch.tokens(), hidden) && HasShape(dy, batch.tokens(), hidden));
  assert(HasShape(dx, batch.tokens(), hidden) && HasShape(weight, 1, hidden));
  ForRows(context, x.rows, [&](int64_t row) {
    context.loops.rms_norm_gradient(x.row(row), weight.f32(), eps, dy.row(row), dx.row(row),
                                    hidden);
  });
}

void RmsNormAdd(const Context& context, const CpuBatch& batch, const TensorView& x,
                const TensorView& weight, float eps, const TensorView& residual,
                const TensorView& y) {
  const int64_t hidden = x.columns;
  assert(HasShape(x, batch.tokens(), hidden) && HasShape(residual, batch.tokens(), hidden));
  assert(HasShape(y, batch.tokens(), hidden) && HasShape(weight, 1, hidden));
  ForRows(context, x.rows, [&](int64_t row) {
    context.loops.rms_norm_add(x.row(row), weight.f32(), eps, residual.row(row), y.row(row),
                               hidden);
  });
}

}  // namespace lorad::kernels::cpu
