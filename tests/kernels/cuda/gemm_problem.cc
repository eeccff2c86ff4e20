#include "tests/kernels/cuda/gemm_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TensorView Dense(void* data, int64_t rows, int64_t columns, DType dtype) {
  return {.data = data,
          .rows = rows,
          .columns = columns,
          .row_stride = columns,
          .dtype = dtype,
          .device = Device::kCuda};
}

std::unique_ptr<Fenced> MakeRandom(int64_t rows, int64_t columns, DType dtype, float scale,
                                   uint64_t seed) {
  auto matrix = std::make_unique<Fenced>(rows, columns, dtype);
  FillRandom(matrix->view(), scale, seed);
  return matrix;
}

}  // namespace

Problem::Problem(const Gemm& gemm, const ProblemOptions& options, uint64_t seed)
    : options_(options), random_(seed) {
  const bool forward = options.product == Product::kForward;
  const int64_t inner = forward ? options.inputs : options.outputs;
  columns_ = forward ? options.outputs : options.inputs;
  x_ = MakeRandom(options.rows, inner, options.dtype, 1, random_());
  weight_ = MakeRandom(options.outputs, options.inputs, options.dtype,
                       1 / std::sqrt(static_cast<float>(inner)), random_());
  y_ = std::make_unique<Fenced>(options.rows, columns_, options.dtype);
  if (forward && Chance(0.5)) bias_ = MakeRandom(1, columns_, options.dtype, 1, random_());
  if (Chance(0.5)) {
    residual_ = MakeRandom(options.rows, columns_, options.dtype, 1, random_());
    in_place_ = Chance(0.5);
  }
  MakeSegments();
  if (options.terms) {
    MakeSlots();
    FillCoefficients();
    MakeTables(gemm);
  }
  for (const Segment& segment : segments_) {
    if (!segment.finite) FillConstant(x_->view().Rows(segment.first_row, segment.rows), kNan);
  }
  // Negative zeros: sums that are exactly zero must not depend on company either.
  const Segment& zero = segments_[static_cast<size_t>(Draw(0, std::ssize(segments_) - 1))];
  if (zero.finite && Chance(0.5)) FillConstant(x_->view().Rows(zero.first_row, zero.rows), -0.0f);
}

int64_t Problem::Draw(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

bool Problem::Chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }

void Problem::MakeSegments() {
  for (int64_t row = 0; row < options_.rows;) {
    const int64_t rows = std::min(options_.rows - row, Draw(1, options_.longest_segment));
    segments_.push_back({.first_row = row, .rows = rows, .slot = -1, .finite = true});
    row += rows;
  }
  if (options_.not_finite && segments_.size() > 1 && Chance(0.5)) {
    segments_[static_cast<size_t>(Draw(0, std::ssize(segments_) - 1))].finite = false;
  }
}

void Problem::MakeSlots() {
  const int64_t slots = Draw(1, 6);
  for (int64_t i = 0; i < slots; ++i) {
    const bool masked =
        options_.masks && options_.product == Product::kInputGradient && Chance(0.5);
    const int first = static_cast<int>(terms_.size());
    // Up to three targets, side by side.
    int64_t begin = 0;
    for (int target = 0; target < 3 && begin < options_.outputs; ++target) {
      const int64_t end =
          target == 2 ? options_.outputs
                      : std::min(options_.outputs, begin + Draw(1, options_.outputs / 8) * 8);
      if (Chance(0.8)) MakeTerm(begin, end - begin, masked);
      begin = end;
    }
    slots_.push_back({.first_term = first, .terms = static_cast<int>(terms_.size()) - first});
  }
  for (Segment& segment : segments_) segment.slot = static_cast<int>(Draw(-1, slots - 1));
}

void Problem::MakeTerm(int64_t first_output, int64_t outputs, bool masked) {
  constexpr int64_t kRanks[] = {16, 16, 16, 32, 48, 64, 80, 128, 256};
  const bool forward = options_.product == Product::kForward;
  Term term;
  term.first_output = forward ? first_output : 0;
  term.rank = kRanks[Draw(0, std::ssize(kRanks) - 1)];
  term.first_column = coefficient_columns_;
  coefficient_columns_ += term.rank + 16 * Draw(0, 1);
  const int64_t rows = forward ? outputs : term.rank;
  const int64_t columns = forward ? term.rank : options_.inputs;
  term.factor = std::make_unique<DeviceMemory>(rows * columns * BytesOf(options_.dtype));
  term.factor_view = Dense(term.factor->data(), rows, columns, options_.dtype);
  FillRandom(term.factor_view, 0.25f, random_());
  if (masked) {
    const int64_t words = (columns_ + kMaskColumns - 1) / kMaskColumns * (kMaskColumns / 32);
    term.mask = std::make_unique<DeviceMemory>(options_.rows * words * 4);
    auto* bits = static_cast<uint32_t*>(term.mask->data());
    FillRandomBits(bits, options_.rows * words, random_());
    term.drop = {.words = bits, .row_words = words, .scale = 1.25f};
  }
  terms_.push_back(std::move(term));
}

void Problem::FillCoefficients() {
  coefficients_ = std::make_unique<Fenced>(
      options_.rows, std::max<int64_t>(coefficient_columns_, 16), options_.dtype);
  const TensorView& s = coefficients_->view();
  FillConstant(s, 0);
  for (const Segment& segment : segments_) {
    if (segment.slot < 0) continue;
    const Slot& slot = slots_[static_cast<size_t>(segment.slot)];
    for (int i = slot.first_term; i < slot.first_term + slot.terms; ++i) {
      const Term& term = terms_[static_cast<size_t>(i)];
      const TensorView part =
          s.Rows(segment.first_row, segment.rows).Columns(term.first_column, term.rank);
      FillRandom(part, 1, random_());
      if (!segment.finite) FillConstant(part, kNan);
    }
  }
}

void Problem::MakeTables(const Gemm& gemm) {
  std::vector<LowRankTerm> terms;
  for (const Term& term : terms_) {
    terms.push_back(gemm.MakeTerm(options_.product, term.factor_view, term.first_column,
                                  term.first_output, term.drop));
  }
  std::vector<int32_t> first = {0};
  std::vector<int32_t> list;
  for (int64_t row = 0; row < options_.rows; row += kTermTileRows) {
    std::vector<bool> present(slots_.size());
    for (const Segment& segment : segments_) {
      if (segment.slot >= 0 && segment.first_row < row + kTermTileRows &&
          row < segment.first_row + segment.rows) {
        present[static_cast<size_t>(segment.slot)] = true;
      }
    }
    if (Chance(0.1)) present[0] = true;  // more than needed is allowed
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      for (int i = 0; present[slot] && i < slots_[slot].terms; ++i) {
        list.push_back(slots_[slot].first_term + i);
      }
    }
    first.push_back(static_cast<int32_t>(list.size()));
  }
  device_terms_ = std::make_unique<DeviceArray<LowRankTerm>>(terms);
  device_first_ = std::make_unique<DeviceArray<int32_t>>(first);
  device_list_ = std::make_unique<DeviceArray<int32_t>>(list);
}

TensorView Problem::residual() const { return residual_ ? residual_->view() : TensorView{}; }

GemmArguments Problem::Prepare() {
  GemmArguments arguments;
  arguments.product = options_.product;
  arguments.x = x_->view();
  arguments.weight = weight_->view();
  arguments.y = y_->view();
  if (bias_) arguments.bias = bias_->view();
  y_->Poison();
  if (residual_) {
    if (in_place_) CopyMatrix(residual_->view(), y_->view());
    arguments.residual = in_place_ ? y_->view() : residual_->view();
  }
  if (options_.terms) {
    arguments.coefficients = coefficients_->view();
    arguments.terms = {.terms = device_terms_->data(),
                       .first = device_first_->data(),
                       .list = device_list_->data(),
                       .count = static_cast<int32_t>(terms_.size())};
  }
  return arguments;
}

std::vector<Sample> Problem::Samples(int count) {
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    const auto& segment = segments_[static_cast<size_t>(Draw(0, std::ssize(segments_) - 1))];
    if (!segment.finite) continue;
    // Borders are where mistakes are.
    const int64_t row = Chance(0.3) ? segment.rows - 1 : Draw(0, segment.rows - 1);
    const int64_t column = Chance(0.2) ? columns_ - 1 - Draw(0, 7) : Draw(0, columns_ - 1);
    samples.push_back({static_cast<int32_t>(segment.first_row + row),
                       static_cast<int32_t>(std::max<int64_t>(column, 0))});
  }
  return samples;
}

int64_t Problem::CountDifferentAlone(Gemm& gemm, void* workspace, size_t index) {
  const Segment& segment = segments_[index];
  GemmArguments arguments;
  arguments.product = options_.product;
  arguments.x = x_->view().Rows(segment.first_row, segment.rows);
  arguments.weight = weight_->view();
  if (bias_) arguments.bias = bias_->view();
  if (residual_) arguments.residual = residual_->view().Rows(segment.first_row, segment.rows);
  const Fenced y(segment.rows, columns_, options_.dtype);
  arguments.y = y.view();

  std::vector<LowRankTerm> terms;
  std::vector<int32_t> list;
  int64_t column = 16;
  const Slot slot = segment.slot < 0 ? Slot{.first_term = 0, .terms = 0}
                                     : slots_[static_cast<size_t>(segment.slot)];
  Fenced s(segment.rows, coefficient_columns_ + 64, options_.dtype);
  FillConstant(s.view(), 0);
  for (int i = slot.first_term; i < slot.first_term + slot.terms; ++i) {
    const Term& term = terms_[static_cast<size_t>(i)];
    DropMask drop = term.drop;
    if (drop.words != nullptr) drop.words += segment.first_row * drop.row_words;
    CopyMatrix(coefficients_->view()
                   .Rows(segment.first_row, segment.rows)
                   .Columns(term.first_column, term.rank),
               s.view().Columns(column, term.rank));
    list.push_back(static_cast<int32_t>(terms.size()));
    terms.push_back(
        gemm.MakeTerm(options_.product, term.factor_view, column, term.first_output, drop));
    column += term.rank;
  }
  std::vector<int32_t> first = {0};
  std::vector<int32_t> lists;
  for (int64_t row = 0; row < segment.rows; row += kTermTileRows) {
    lists.insert(lists.end(), list.begin(), list.end());
    first.push_back(static_cast<int32_t>(lists.size()));
  }
  const DeviceArray<LowRankTerm> device_terms(terms);
  const DeviceArray<int32_t> device_first(first);
  const DeviceArray<int32_t> device_list(lists);
  if (!terms.empty()) {
    arguments.coefficients = s.view();
    arguments.terms = {.terms = device_terms.data(),
                       .first = device_first.data(),
                       .list = device_list.data(),
                       .count = static_cast<int32_t>(terms.size())};
  }
  gemm.Run(arguments, workspace, nullptr);
  const int64_t different =
      CountDifferent(y.view(), y_->view().Rows(segment.first_row, segment.rows));
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  return different;
}

}  // namespace lorad::kernels::cuda
