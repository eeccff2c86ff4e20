#include <cassert>

#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {
namespace {

// Calls run(first column, weight) for every run of a row.
template <typename Function>
void ForRuns(const QkNorm& norm, int64_t columns, Function&& run) {
  for (int64_t first = 0; first < columns;) {
    const TensorView& weight = first < norm.q_columns ? norm.q_weight : norm.k_weight;
    run(first, weight);
    first += weight.columns;
  }
}

void CheckShapes(const CpuBatch& batch, const TensorView& x, const QkNorm& norm) {
  assert(HasShape(x, batch.tokens(), x.columns) && norm.q_columns <= x.columns);
  assert(HasShape(norm.q_weight, 1, norm.q_weight.columns));
  assert(HasShape(norm.k_weight, 1, norm.k_weight.columns));
  assert(norm.q_columns % norm.q_weight.columns == 0);
  assert((x.columns - norm.q_columns) % norm.k_weight.columns == 0);
}

}  // namespace

void QkNormRope(const Context& context, const CpuBatch& batch, const TensorView& x,
                const QkNorm& norm, const HeadAngles& angles, const TensorView& y) {
  CheckShapes(batch, x, norm);
  assert(HasShape(y, batch.tokens(), x.columns));
  ForRows(context, x.rows, [&](int64_t row) {
    ForRuns(norm, x.columns, [&](int64_t first, const TensorView& weight) {
      context.loops.rms_norm(x.row(row) + first, weight.f32(), norm.eps, y.row(row) + first,
                             weight.columns);
    });
  });
  if (!angles.empty()) Rope(context, batch, angles, 1.0f, y);
}

void QkNormBackward(const Context& context, const CpuBatch& batch, const TensorView& x,
                    const QkNorm& norm, const TensorView& d) {
  CheckShapes(batch, x, norm);
  assert(HasShape(d, batch.tokens(), x.columns));
  ForRows(context, x.rows, [&](int64_t row) {
    ForRuns(norm, x.columns, [&](int64_t first, const TensorView& weight) {
      float* gradient = d.row(row) + first;
      context.loops.rms_norm_gradient(x.row(row) + first, weight.f32(), norm.eps, gradient,
                                      gradient, weight.columns);
    });
  });
}

}  // namespace lorad::kernels::cpu
