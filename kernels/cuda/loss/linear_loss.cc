#include "kernels/cuda/loss/linear_loss.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

using sizes::RoundUp;

struct LossTables final : Extension {
  int64_t trained = 0;  // loss rows that train: these come first
  // Device; null where no row that trains stands behind one that does not.
  const int32_t* order = nullptr;
  DeviceTable memory;
};

const LossTables& TablesOf(Context& context, const CudaBatch& batch) {
  if (batch.loss == nullptr) {
    auto tables = std::make_unique<LossTables>();
    std::vector<int32_t> order;
    for (const bool train : {true, false}) {
      for (size_t i = 0; i < batch.loss_trained.size(); ++i) {
        if ((batch.loss_trained[i] != 0) == train) order.push_back(static_cast<int32_t>(i));
      }
      if (train) tables->trained = static_cast<int64_t>(order.size());
    }
    if (!std::is_sorted(order.begin(), order.end())) {
      const int64_t bytes = static_cast<int64_t>(order.size() * sizeof(int32_t));
      tables->memory = context.tables.Take(bytes);
      std::copy(order.begin(), order.end(), tables->memory.Host<int32_t>(0));
      tables->order = tables->memory.Device<int32_t>(0);
      tables->memory.Upload(bytes);
    }
    batch.loss = std::move(tables);
  }
  return static_cast<const LossTables&>(*batch.loss);
}

// Whether the product may write there (gemm.h).
bool IsProductOutput(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         view.row_stride * BytesOf(view.dtype) % 16 == 0;
}

}  // namespace

LinearLossOperation::LinearLossOperation(Context& context, Gemm& gemm,
                                         const LinearLossOptions& options)
    : context_(context), gemm_(gemm), options_(options) {}

bool LinearLossOperation::Fused() const {
  return context_.activation == DType::kBfloat16 && gemm_.own();
}

LinearLossOperation::Plan LinearLossOperation::PlanOf(int64_t rows, int64_t vocabulary,
                                                      int64_t hidden) const {
  return sizes::LayCudaLoss(rows, vocabulary, hidden, BytesOf(context_.activation),
                            context_.multiprocessors, options_.rows);
}

LinearLossOperation::PlainPlan LinearLossOperation::PlainPlanOf(const Plan& plan) const {
  if (context_.activation == DType::kFloat32) {
    return {.rows = plan.rows, .logit_rows = plan.rows, .logits_at = plan.words_at};
  }
  // Of 2 bytes a row and word, three quarters for the gradient, the rest for 4 bytes a logit: whole
  // tiles of 128 rows where a chunk has a thousand.
  const int64_t rows = plan.rows / 4 * 3;
  return {.rows = rows,
          .logit_rows = plan.rows / 8,
          .logits_at = plan.words_at + rows * plan.columns * BytesOf(DType::kBfloat16)};
}

int64_t LinearLossOperation::WorkspaceBytes(const Limits& limits) const {
  return PlanOf(std::max<int64_t>(limits.tokens, 1), limits.vocabulary, limits.hidden).bytes;
}

void LinearLossOperation::SetWorkspace(void* data, int64_t bytes) {
  workspace_ = static_cast<char*>(data);
  workspace_bytes_ = bytes;
}

void LinearLossOperation::Prepare(const CudaBatch& batch) { TablesOf(context_, batch); }

TensorView LinearLossOperation::Scratch(int64_t at, int64_t rows, int64_t columns,
                                        int64_t row_stride, DType dtype) const {
  return {.data = workspace_ + at,
          .rows = rows,
          .columns = columns,
          .row_stride = row_stride,
          .dtype = dtype,
          .device = Device::kCuda};
}

void LinearLossOperation::Run(const CudaBatch& batch, const TensorView& x, const CudaLinear& head,
                              const TensorView& log_p, const TensorView& unit, float cap) {
  const int64_t rows = static_cast<int64_t>(batch.loss_rows.size());
  if (rows == 0) return;
  const TensorView& weight = head.weight;
  const int64_t hidden = weight.columns;
  const int64_t vocabulary = weight.rows;
  assert(x.rows == batch.tokens() && x.columns == hidden && x.dtype == context_.activation);
  assert(log_p.rows == 1 && log_p.columns == rows && !head.has_bias);
  assert(unit.empty() ||
         (unit.rows == rows && unit.columns == hidden && unit.dtype == context_.activation));
  const Plan plan = PlanOf(rows, vocabulary, hidden);
  assert(plan.bytes <= workspace_bytes_);
  const LossTables& tables = TablesOf(context_, batch);
  LossRange range = {
      .order = tables.order, .rows = batch.tables.loss_rows, .targets = batch.tables.loss_targets};
  const int64_t with_gradient = unit.empty() ? 0 : tables.trained;
  const bool fused = Fused() && cap == 0;
  const int64_t chunk_rows = fused ? plan.rows : PlainPlanOf(plan).rows;
  while (range.first < rows) {
    const bool gradient = range.first < with_gradient;
    const int64_t end = gradient ? with_gradient : rows;
    range.count = std::min(chunk_rows, end - range.first);
    const TensorView wanted = gradient ? unit : TensorView();
    fused ? RunFused(plan, range, x, weight, log_p, wanted)
          : RunPlain(plan, range, x, weight, cap, log_p, wanted);
    range.first += range.count;
  }
}

void LinearLossOperation::Logits(const TensorView& x, const int32_t* rows, const CudaLinear& head,
                                 float cap, const TensorView& z) {
  const cudaStream_t stream = context_.stream.get();
  const TensorView& weight = head.weight;
  assert(x.columns == weight.columns && x.dtype == context_.activation && !head.has_bias);
  assert(z.columns == weight.rows && z.dtype == DType::kFloat32 && IsProductOutput(z));
  const Plan plan = PlanOf(z.rows, weight.rows, weight.columns);
  assert(plan.bytes <= workspace_bytes_);
  LossRange range = {.rows = rows};
  while (range.first < z.rows) {
    range.count = std::min(plan.rows, z.rows - range.first);
    const TensorView gathered =
        Scratch(plan.gathered_at, range.count, x.columns, RoundUp(x.columns, 64), x.dtype);
    LaunchGatherRows(range, x, gathered, stream);
    gemm_.Run({.product = Product::kForward,
               .x = gathered,
               .weight = weight,
               .y = z.Rows(range.first, range.count)},
              workspace_ + plan.gemm_at, stream);
    range.first += range.count;
  }
  if (cap != 0) LaunchCap(z, cap, stream);
}

LossChunk LinearLossOperation::ChunkOf(const Plan& plan) const {
  return {.targets = reinterpret_cast<int32_t*>(workspace_ + plan.targets_at),
          .references = reinterpret_cast<float*>(workspace_ + plan.references_at),
          .target_logits = reinterpret_cast<float*>(workspace_ + plan.target_logits_at),
          .factors = reinterpret_cast<LossFactors*>(workspace_ + plan.factors_at),
          .parts = reinterpret_cast<LossPart*>(workspace_ + plan.parts_at),
          .again = reinterpret_cast<int32_t*>(workspace_ + plan.again_at)};
}

void LinearLossOperation::RunFused(const Plan& plan, const LossRange& range, const TensorView& x,
                                   const TensorView& weight, const TensorView& log_p,
                                   const TensorView& unit) {
  const cudaStream_t stream = context_.stream.get();
  const TensorView gathered =
      Scratch(plan.gathered_at, range.count, x.columns, RoundUp(x.columns, 64), x.dtype);
  const TensorView words =
      Scratch(plan.words_at, range.count, weight.rows, plan.columns, DType::kBfloat16);
  const LossChunk chunk = ChunkOf(plan);
  LaunchGatherTargets(range, x, weight, gathered, chunk, stream);
  for (const bool again : {false, true}) {
    gemm_.Run({.product = Product::kForward,
               .x = gathered,
               .weight = weight,
               .y = words,
               .exponentials = {.references = chunk.references,
                                .targets = chunk.targets,
                                .target_logits = chunk.target_logits,
                                .parts = chunk.parts,
                                .needed = again ? chunk.again : nullptr}},
              workspace_ + plan.gemm_at, stream);
    LaunchFoldParts(range, weight.rows, chunk, again, log_p, stream);
  }
  if (unit.empty()) return;
  RunGradient(plan, range, words, weight, {.targets = chunk.targets, .factors = chunk.factors},
              unit);
}

void LinearLossOperation::RunPlain(const Plan& plan, const LossRange& range, const TensorView& x,
                                   const TensorView& weight, float cap, const TensorView& log_p,
                                   const TensorView& unit) {
  const cudaStream_t stream = context_.stream.get();
  const PlainPlan plain = PlainPlanOf(plan);
  const TensorView gathered =
      Scratch(plan.gathered_at, range.count, x.columns, RoundUp(x.columns, 64), x.dtype);
  const TensorView gradient = unit.empty() ? TensorView()
                                           : Scratch(plan.words_at, range.count, weight.rows,
                                                     plan.columns, context_.activation);
  LaunchGatherRows(range, x, gathered, stream);
  for (int64_t first = 0; first < range.count; first += plain.logit_rows) {
    LossRange part = range;
    part.first += first;
    part.count = std::min(plain.logit_rows, range.count - first);
    const TensorView logits =
        Scratch(plain.logits_at, part.count, weight.rows, plan.columns, DType::kFloat32);
    gemm_.Run({.product = Product::kForward,
               .x = gathered.Rows(first, part.count),
               .weight = weight,
               .y = logits},
              workspace_ + plan.gemm_at, stream);
    LaunchSoftmaxGradient(part, logits, cap, log_p,
                          unit.empty() ? unit : gradient.Rows(first, part.count),
                          context_.activation == DType::kFloat32, stream);
  }
  if (!unit.empty()) RunGradient(plan, range, gradient, weight, {}, unit);
}

void LinearLossOperation::RunGradient(const Plan& plan, const LossRange& range,
                                      const TensorView& words, const TensorView& weight,
                                      const TargetTables& targets, const TensorView& unit) {
  const cudaStream_t stream = context_.stream.get();
  const bool direct = range.order == nullptr && IsProductOutput(unit);
  const TensorView y = direct ? unit.Rows(range.first, range.count)
                              : Scratch(plan.unit_at, range.count, weight.columns,
                                        RoundUp(weight.columns, 64), unit.dtype);
  gemm_.Run({.product = Product::kInputGradient,
             .x = words,
             .weight = weight,
             .y = y,
             .target_rows = targets},
            workspace_ + plan.gemm_at, stream);
  if (!direct) LaunchScatterRows(range, y, unit, stream);
}

}  // namespace lorad::kernels::cuda
