#include "kernels/cuda/linear_loss.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "kernels/cuda/check.h"

namespace lorad::kernels::cuda {
namespace {

// What a chunk's G may take, where the device is not filled before.
constexpr int64_t kGradientBytesMax = int64_t{768} << 20;
// What logits may take that are not of the type of G. (512 rows at a time instead of 1,024 cost the
// product 5 % at a hidden size of 2,048 and nothing at 4,096.)
constexpr int64_t kLogitBytesMax = int64_t{320} << 20;
// The product's tile, for counting how many fill the device.
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 256;
// Logits in work at the same time: most of an H100's 50 MB of L2 cache.
constexpr int64_t kCachedBytes = int64_t{40} << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

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

DType LinearLossOperation::LogitsType() const {
  return context_.activation == DType::kFloat32 ? DType::kFloat32 : options_.logits;
}

LinearLossOperation::Plan LinearLossOperation::PlanOf(int64_t rows, int64_t vocabulary,
                                                      int64_t hidden) const {
  const int64_t activation = BytesOf(context_.activation);
  Plan plan;
  plan.columns = RoundUp(vocabulary, 64);
  const int64_t column_tiles = (hidden + kTileColumns - 1) / kTileColumns;
  const int64_t filling = std::max<int64_t>(context_.multiprocessors / column_tiles, 1) * kTileRows;
  const int64_t affordable =
      std::max(kGradientBytesMax / (plan.columns * activation) / kTileRows * kTileRows, kTileRows);
  const int64_t wanted =
      options_.gradient_rows > 0 ? options_.gradient_rows : std::min(filling, affordable);
  plan.gradient_rows = std::min(RoundUp(rows, kTileRows), wanted);
  plan.in_place = LogitsType() == context_.activation;
  plan.logit_rows = plan.gradient_rows;
  if (!plan.in_place) {
    // By the shape alone, so that fewer rows never need more memory.
    const int64_t bytes = wanted * plan.columns * BytesOf(LogitsType());
    const int64_t parts = (bytes + kLogitBytesMax - 1) / kLogitBytesMax;
    const int64_t equal = RoundUp((wanted + parts - 1) / parts, kTileRows);
    plan.logit_rows =
        std::min(plan.gradient_rows, options_.logit_rows > 0 ? options_.logit_rows : equal);
  }
  const auto take = [&plan](int64_t bytes) {
    return std::exchange(plan.bytes, plan.bytes + RoundUp(bytes, 256));
  };
  plan.gathered_at = take(plan.gradient_rows * RoundUp(hidden, 64) * activation);
  plan.gradient_at = take(plan.gradient_rows * plan.columns * activation);
  plan.logits_at = plan.gradient_at;
  if (!plan.in_place) {
    plan.logits_at = take(plan.logit_rows * plan.columns * BytesOf(LogitsType()));
  }
  plan.unit_at = take(plan.gradient_rows * RoundUp(hidden, 64) * activation);
  plan.gemm_at = take(Gemm::WorkspaceBytes());
  return plan;
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
                              const TensorView& log_p, const TensorView& unit) {
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
  while (range.first < rows) {
    const bool gradient = range.first < with_gradient;
    const int64_t end = gradient ? with_gradient : rows;
    range.count = std::min(plan.gradient_rows, end - range.first);
    TensorView g;
    if (gradient) {
      g = Scratch(plan.gradient_at, range.count, vocabulary, plan.columns, context_.activation);
    }
    RunForward(plan, range, x, weight, log_p, g);
    if (gradient) RunBackward(plan, range, g, weight, unit);
    range.first += range.count;
  }
}

void LinearLossOperation::RunForward(const Plan& plan, const LossRange& range, const TensorView& x,
                                     const TensorView& weight, const TensorView& log_p,
                                     const TensorView& gradient) {
  const cudaStream_t stream = context_.stream.get();
  const bool accurate = context_.activation == DType::kFloat32;
  const int64_t row_bytes = plan.columns * BytesOf(LogitsType());
  const SoftmaxOptions softmax = {
      .accurate = accurate,
      .cluster = options_.cluster && context_.capability >= 90,
      .rows_at_once = options_.rows_at_once > 0
                          ? options_.rows_at_once
                          : std::clamp(kCachedBytes / row_bytes, int64_t{64}, int64_t{1024})};
  const TensorView gathered =
      Scratch(plan.gathered_at, range.count, x.columns, RoundUp(x.columns, 64), x.dtype);
  LaunchGatherRows(range, x, gathered, stream);
  for (int64_t first = 0; first < range.count; first += plan.logit_rows) {
    LossRange part = range;
    part.first += first;
    part.count = std::min(plan.logit_rows, range.count - first);
    const TensorView logits =
        Scratch(plan.logits_at, part.count, weight.rows, plan.columns, LogitsType());
    gemm_.Run({.product = Product::kForward,
               .x = gathered.Rows(first, part.count),
               .weight = weight,
               .y = logits},
              workspace_ + plan.gemm_at, stream);
    LaunchSoftmaxGradient(part, logits, log_p,
                          gradient.empty() ? gradient : gradient.Rows(first, part.count), softmax,
                          stream);
  }
}

void LinearLossOperation::RunBackward(const Plan& plan, const LossRange& range,
                                      const TensorView& gradient, const TensorView& weight,
                                      const TensorView& unit) {
  const cudaStream_t stream = context_.stream.get();
  const bool direct = range.order == nullptr && IsProductOutput(unit);
  const TensorView y = direct ? unit.Rows(range.first, range.count)
                              : Scratch(plan.unit_at, range.count, weight.columns,
                                        RoundUp(weight.columns, 64), unit.dtype);
  gemm_.Run({.product = Product::kInputGradient, .x = gradient, .weight = weight, .y = y},
            workspace_ + plan.gemm_at, stream);
  if (!direct) LaunchScatterRows(range, y, unit, stream);
}

}  // namespace lorad::kernels::cuda
