#include "tests/kernels/cuda/linear_loss_rig.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lorad::kernels::cuda::testing {
namespace {

// Random values are drawn for this many and repeated: no multiple of a row, so no rows are equal.
constexpr int64_t kDrawn = (int64_t{1} << 24) + 57;

float Rounded(float value, DType dtype) {
  return dtype == DType::kBfloat16 ? FromBfloat16(ToBfloat16(value)) : value;
}

// Tensors that meet in a product have seeds of their own: a row of x must be no row of W.
void FillRepeating(const TensorView& view, float size, uint64_t seed) {
  Source source(seed);
  const int64_t drawn = std::min(kDrawn, view.elements());
  std::vector<uint16_t> values(static_cast<size_t>(drawn));
  for (uint16_t& value : values) value = ToBfloat16(size * source.Normal());
  for (int64_t first = 0; first < view.elements(); first += drawn) {
    const int64_t count = std::min(drawn, view.elements() - first);
    LORAD_CUDA_CHECK(cudaMemcpy(static_cast<uint16_t*>(view.data) + first, values.data(),
                                static_cast<size_t>(count) * 2, cudaMemcpyHostToDevice));
  }
}

}  // namespace

LinearLossRig::LinearLossRig(DType dtype, int64_t vocabulary, int64_t hidden, int64_t tokens_max,
                             float size, const LinearLossOptions& options,
                             const GemmOptions& gemm_options)
    : context_(0, dtype),
      gemm_(gemm_options),
      operation_(context_, gemm_, options),
      vocabulary_(vocabulary),
      hidden_(hidden),
      tokens_max_(tokens_max),
      weight_(std::make_unique<DeviceMatrix>(vocabulary, hidden, dtype)) {
  const float deviation = size / std::sqrt(static_cast<float>(hidden));
  if (vocabulary * hidden <= kDrawn) {
    Source source(4711);
    for (int64_t i = 0; i < vocabulary * hidden; ++i) {
      head_.push_back(Rounded(deviation * source.Normal(), dtype));
    }
    weight_->Write(head_);
  } else {
    FillRepeating(weight_->view(), deviation, 4711);
  }
  linear_.weight = weight_->view();
  workspace_ = std::make_unique<DeviceBytes>(operation_.WorkspaceBytes(
      {.tokens = tokens_max, .hidden = hidden, .vocabulary = vocabulary}));
  operation_.SetWorkspace(workspace_->data(), workspace_->bytes());
}

std::vector<float> LinearLossRig::HiddenOf(const LossSequence& sequence) const {
  Source source(sequence.seed);
  std::vector<float> values(static_cast<size_t>(sequence.rows * hidden_));
  for (float& value : values) {
    value = sequence.scale * Rounded(source.Normal(), context_.activation);
  }
  return values;
}

std::vector<int64_t> LinearLossRig::LossRowsOf(const LossSequence& sequence) const {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < sequence.rows; ++row) {
    if (sequence.every_row || row % 3 != 1) rows.push_back(row);
  }
  return rows;
}

int32_t LinearLossRig::TargetOf(const LossSequence& sequence, int64_t row) const {
  Source source(sequence.seed * 1000003 + static_cast<uint64_t>(row));
  return static_cast<int32_t>(source.Integer(0, vocabulary_ - 1));
}

std::vector<LossResults> LinearLossRig::Run(const std::vector<LossSequence>& sequences,
                                            bool gradient) {
  std::vector<Segment> segments;
  std::vector<LossRow> loss_rows;
  std::vector<float> hidden;
  int64_t tokens = 0;
  for (const LossSequence& sequence : sequences) {
    segments.push_back({.first_row = tokens, .rows = sequence.rows, .mode = sequence.mode});
    for (const int64_t row : LossRowsOf(sequence)) {
      loss_rows.push_back({.row = tokens + row, .target = TargetOf(sequence, row)});
    }
    const std::vector<float> part = HiddenOf(sequence);
    hidden.insert(hidden.end(), part.begin(), part.end());
    tokens += sequence.rows;
  }
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  const auto n = static_cast<int64_t>(loss_rows.size());
  const CudaBatch batch(context_, {ids, segments, loss_rows});
  DeviceMatrix x(tokens, hidden_, context_.activation);
  DeviceMatrix log_p(1, n, DType::kFloat32);
  DeviceMatrix unit(n, hidden_, context_.activation);
  x.Write(hidden);
  log_p.Write(std::vector<float>(static_cast<size_t>(n), NAN));
  unit.Write(std::vector<float>(static_cast<size_t>(n * hidden_), NAN));
  operation_.Run(batch, x.view(), linear_, log_p.view(), gradient ? unit.view() : TensorView());
  const std::vector<float> all_log_p = log_p.Read();
  const std::vector<float> all_unit = unit.Read();
  std::vector<LossResults> results;
  auto first = all_log_p.begin();
  auto first_unit = all_unit.begin();
  for (const LossSequence& sequence : sequences) {
    const auto count = static_cast<int64_t>(LossRowsOf(sequence).size());
    results.push_back(
        {.log_p = {first, first + count}, .unit = {first_unit, first_unit + count * hidden_}});
    first += count;
    first_unit += count * hidden_;
  }
  return results;
}

LossReference LinearLossRig::ReferenceOf(const LossSequence& sequence) const {
  const std::vector<float> hidden = HiddenOf(sequence);
  LossReference reference;
  std::vector<double> z(static_cast<size_t>(vocabulary_));
  for (const int64_t row : LossRowsOf(sequence)) {
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t word = 0; word < vocabulary_; ++word) {
      double dot = 0;
      for (int64_t i = 0; i < hidden_; ++i) {
        dot += static_cast<double>(hidden[static_cast<size_t>(row * hidden_ + i)]) *
               static_cast<double>(head_[static_cast<size_t>(word * hidden_ + i)]);
      }
      z[static_cast<size_t>(word)] = dot;
      max = std::max(max, dot);
    }
    double sum = 0;
    for (const double value : z) sum += std::exp(value - max);
    const int32_t target = TargetOf(sequence, row);
    const double lse = max + std::log(sum);
    reference.log_p.push_back(z[static_cast<size_t>(target)] - lse);
    std::vector<double> unit(static_cast<size_t>(hidden_));
    for (int64_t word = 0; word < vocabulary_; ++word) {
      const double g = (word == target ? 1 : 0) - std::exp(z[static_cast<size_t>(word)] - lse);
      for (int64_t i = 0; i < hidden_; ++i) {
        unit[static_cast<size_t>(i)] +=
            g * static_cast<double>(head_[static_cast<size_t>(word * hidden_ + i)]);
      }
    }
    reference.unit.insert(reference.unit.end(), unit.begin(), unit.end());
  }
  return reference;
}

LinearLossRig::Times LinearLossRig::Measure(int64_t rows) {
  std::vector<LossRow> loss_rows;
  for (int64_t row = 0; row < rows; ++row) {
    loss_rows.push_back({.row = row, .target = static_cast<int32_t>(row * 37 % vocabulary_)});
  }
  const std::vector<Segment> segments = {{.rows = rows}};
  const std::vector<int32_t> ids(static_cast<size_t>(rows));
  const CudaBatch batch(context_, {ids, segments, loss_rows});
  DeviceMatrix x(rows, hidden_, context_.activation);
  FillRepeating(x.view(), 1, 1);
  DeviceMatrix log_p(1, rows, DType::kFloat32);
  DeviceMatrix unit(rows, hidden_, context_.activation);
  // A whole G of random numbers for the products alone, as many rows as a chunk has.
  constexpr int64_t kProductRows = 2048;
  const int64_t product_rows = std::min(rows, kProductRows);
  const int64_t columns = (vocabulary_ + 63) / 64 * 64;
  DeviceMatrix g(product_rows, columns, context_.activation);
  FillRepeating(g.view(), 0.01f, 2);
  DeviceMatrix logits(product_rows, columns, context_.activation);
  DeviceBytes scratch(Gemm::WorkspaceBytes());
  const cudaStream_t stream = context_.stream.get();
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  const auto forward_products = [&] {
    for (int64_t first = 0; first < rows; first += product_rows) {
      const int64_t count = std::min(product_rows, rows - first);
      gemm_.Run({.product = Product::kForward,
                 .x = x.view().Rows(first, count),
                 .weight = linear_.weight,
                 .y = logits.view().Rows(0, count).Columns(0, vocabulary_)},
                scratch.data(), stream);
    }
  };
  const auto backward_products = [&] {
    for (int64_t first = 0; first < rows; first += product_rows) {
      const int64_t count = std::min(product_rows, rows - first);
      gemm_.Run({.product = Product::kInputGradient,
                 .x = g.view().Rows(0, count).Columns(0, vocabulary_),
                 .weight = linear_.weight,
                 .y = unit.view().Rows(first, count)},
                scratch.data(), stream);
    }
  };
  Times times;
  times.all_ms = MedianMs(
      stream, 1, [&] { operation_.Run(batch, x.view(), linear_, log_p.view(), unit.view()); });
  times.forward_ms =
      MedianMs(stream, 1, [&] { operation_.Run(batch, x.view(), linear_, log_p.view(), {}); });
  times.forward_product_ms = MedianMs(stream, 1, forward_products);
  times.gradient_product_ms = MedianMs(stream, 1, backward_products);
  return times;
}

}  // namespace lorad::kernels::cuda::testing
