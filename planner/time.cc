#include "planner/time.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

constexpr int kTerms = 3;
constexpr double kPriorWeight = 0.01;  // observations
using Matrix = std::array<std::array<double, kTerms>, kTerms>;
using Vector = std::array<double, kTerms>;

// Solves the equations of the terms in `subset` (bits), the others being zero, by elimination with
// pivots. False where they are singular or a solution is negative.
bool SolveSubset(const Matrix& products, const Vector& responses, unsigned subset, Vector* out) {
  Matrix a = products;
  Vector b = responses;
  for (int i = 0; i < kTerms; ++i) {
    if (subset & (1u << i)) continue;
    for (int j = 0; j < kTerms; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1;
    b[i] = 0;
  }
  for (int column = 0; column < kTerms; ++column) {
    int pivot = column;
    for (int row = column + 1; row < kTerms; ++row) {
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    }
    if (std::abs(a[pivot][column]) < 1e-12) return false;
    std::swap(a[pivot], a[column]);
    std::swap(b[pivot], b[column]);
    for (int row = column + 1; row < kTerms; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (int j = column; j < kTerms; ++j) a[row][j] -= factor * a[column][j];
      b[row] -= factor * b[column];
    }
  }
  for (int row = kTerms - 1; row >= 0; --row) {
    double value = b[row];
    for (int j = row + 1; j < kTerms; ++j) value -= a[row][j] * (*out)[j];
    (*out)[row] = value / a[row][row];
  }
  return std::all_of(out->begin(), out->end(), [](double x) { return x >= 0; });
}

// x^T A x - 2 b^T x: the squared error less a constant.
double Error(const Matrix& products, const Vector& responses, const Vector& x) {
  double error = 0;
  for (int i = 0; i < kTerms; ++i) {
    error -= 2 * responses[i] * x[i];
    for (int j = 0; j < kTerms; ++j) error += x[i] * products[i][j] * x[j];
  }
  return error;
}

}  // namespace

void TimeFit::Observe(int64_t tokens, int64_t squared_lengths, double ms) {
  const Vector f = {1, static_cast<double>(tokens), static_cast<double>(squared_lengths)};
  const double keep = 1 - 1 / kMemory;
  for (int i = 0; i < kTerms; ++i) {
    responses_[i] = responses_[i] * keep + f[i] * ms;
    for (int j = 0; j < kTerms; ++j) products_[i][j] = products_[i][j] * keep + f[i] * f[j];
  }
  ++observations_;
}

// Terms are scaled to the size they were observed with; the prior is a small part of an observation
// of each term alone at that size, so it decides what the data leave open and no more. The best of
// the eight sets of terms that may be positive is the least squares' solution.
TimeCoefficients TimeFit::Fit(const TimeCoefficients& prior) const {
  const double weight = products_[0][0];
  if (weight <= 0) return prior;
  const Vector prior_terms = {prior.constant_ms, prior.token_ms, prior.squared_ms};
  Vector scale;
  for (int i = 0; i < kTerms; ++i) scale[i] = std::max(1e-9, std::sqrt(products_[i][i] / weight));
  Matrix products;
  Vector responses;
  for (int i = 0; i < kTerms; ++i) {
    responses[i] = responses_[i] / scale[i] + kPriorWeight * prior_terms[i] * scale[i];
    for (int j = 0; j < kTerms; ++j) products[i][j] = products_[i][j] / (scale[i] * scale[j]);
    products[i][i] += kPriorWeight;
  }
  Vector best = {0, 0, 0};
  double best_error = 0;
  for (unsigned subset = 1; subset < (1u << kTerms); ++subset) {
    Vector x = {0, 0, 0};
    if (!SolveSubset(products, responses, subset, &x)) continue;
    const double error = Error(products, responses, x);
    if (error < best_error) {
      best_error = error;
      best = x;
    }
  }
  return {best[0] / scale[0], best[1] / scale[1], best[2] / scale[2]};
}

TimePrior PriorOf(const WorkModel& work) {
  const double ms_per_flop = 1e3 / work.flops_per_second;
  TimePrior prior;
  prior.forward = {0, work.flops_per_token * ms_per_flop, work.flops_per_squared * ms_per_flop};
  prior.backward = {0, prior.forward.token_ms, 2.5 * prior.forward.squared_ms};
  return prior;
}

void TimeModel::Observe(int64_t tokens, int64_t squared_lengths, double forward_ms,
                        double backward_ms) {
  forward_.Observe(tokens, squared_lengths, forward_ms);
  if (backward_ms > 0) backward_.Observe(tokens, squared_lengths, backward_ms);
}

double TimeModel::TrainMs(double tokens, double squared_lengths, double microbatches) const {
  const TimeCoefficients backward = backward_.Fit(prior_.backward);
  return EvaluateMs(tokens, squared_lengths, microbatches) + backward.constant_ms * microbatches +
         backward.token_ms * tokens + backward.squared_ms * squared_lengths;
}

double TimeModel::EvaluateMs(double tokens, double squared_lengths, double microbatches) const {
  const TimeCoefficients forward = forward_.Fit(prior_.forward);
  return forward.constant_ms * microbatches + forward.token_ms * tokens +
         forward.squared_ms * squared_lengths;
}

const char* TimeModel::basis() const {
  return forward_.observations() >= kMeasuredFrom ? kMeasuredBasis : kAssumedBasis;
}

std::string TimeModel::ToText() const {
  const TimeCoefficients forward = forward_.Fit(prior_.forward);
  const TimeCoefficients backward = backward_.Fit(prior_.backward);
  return absl::StrCat("forward ", forward.constant_ms, " + ", forward.token_ms, " tokens + ",
                      forward.squared_ms, " squares ms, backward ", backward.constant_ms, " + ",
                      backward.token_ms, " tokens + ", backward.squared_ms, " squares ms (",
                      basis(), ", ", forward_.observations(), " microbatches)");
}

}  // namespace lorad::planner
