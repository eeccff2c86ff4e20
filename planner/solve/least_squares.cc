#include "planner/solve/least_squares.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
template <size_t kTerms>
using Matrix = std::array<Terms<kTerms>, kTerms>;

// The equations of the terms in `subset` (bits); the others are zero.
template <size_t kTerms>
Matrix<kTerms> Restrict(const Matrix<kTerms>& products, unsigned subset) {
  Matrix<kTerms> a = products;
  for (size_t i = 0; i < kTerms; ++i) {
    if (subset & (1u << i)) continue;
    for (size_t j = 0; j < kTerms; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1;
  }
  return a;
}

// a x = b by elimination with pivots. False where a is singular.
template <size_t kTerms>
bool Solve(Matrix<kTerms> a, Terms<kTerms> b, Terms<kTerms>* x) {
  for (size_t column = 0; column < kTerms; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < kTerms; ++row) {
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    }
    if (std::abs(a[pivot][column]) < 1e-14) return false;
    std::swap(a[pivot], a[column]);
    std::swap(b[pivot], b[column]);
    for (size_t row = column + 1; row < kTerms; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t j = column; j < kTerms; ++j) a[row][j] -= factor * a[column][j];
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = kTerms; row-- > 0;) {
    double value = b[row];
    for (size_t j = row + 1; j < kTerms; ++j) value -= a[row][j] * (*x)[j];
    (*x)[row] = value / a[row][row];
  }
  return true;
}

template <size_t kTerms>
double Dot(const Terms<kTerms>& a, const Terms<kTerms>& b) {
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// Which terms x takes (bits).
template <size_t kTerms>
unsigned Positive(const Terms<kTerms>& x) {
  unsigned subset = 0;
  for (size_t i = 0; i < kTerms; ++i) subset |= x[i] > 0 ? 1u << i : 0;
  return subset;
}

// x^T A x - 2 b^T x: the squared error less a constant.
template <size_t kTerms>
double Error(const Matrix<kTerms>& products, const Terms<kTerms>& responses,
             const Terms<kTerms>& x) {
  double error = -2 * Dot(responses, x);
  for (size_t i = 0; i < kTerms; ++i) error += x[i] * Dot(products[i], x);
  return error;
}

// The best of the sets of terms: the least error among those whose solution is not negative.
template <size_t kTerms>
Terms<kTerms> Minimize(const Matrix<kTerms>& products, const Terms<kTerms>& responses) {
  Terms<kTerms> best = {};
  double best_error = 0;
  for (unsigned subset = 1; subset < (1u << kTerms); ++subset) {
    Terms<kTerms> b = responses, x = {};
    for (size_t i = 0; i < kTerms; ++i) {
      if (!(subset & (1u << i))) b[i] = 0;
    }
    if (!Solve(Restrict(products, subset), b, &x)) continue;
    if (std::any_of(x.begin(), x.end(), [](double value) { return value < 0; })) continue;
    const double error = Error(products, responses, x);
    if (error < best_error) {
      best_error = error;
      best = x;
    }
  }
  return best;
}

}  // namespace

template <size_t kTerms>
std::vector<double> NonNegativeFit<kTerms>::sums() const {
  std::vector<double> sums;
  for (const Terms<kTerms>& row : products_) sums.insert(sums.end(), row.begin(), row.end());
  sums.insert(sums.end(), responses_.begin(), responses_.end());
  sums.insert(sums.end(), {squared_, weight_, count_, count_squares_});
  sums.push_back(static_cast<double>(observations_));
  sums.insert(sums.end(), least_.begin(), least_.end());
  sums.insert(sums.end(), largest_.begin(), largest_.end());
  return sums;
}

template <size_t kTerms>
bool NonNegativeFit<kTerms>::SetSums(const std::vector<double>& sums) {
  const auto is_good = [](double sum) { return std::isfinite(sum) && std::abs(sum) < 1e300; };
  if (sums.size() != kSums || !std::ranges::all_of(sums, is_good)) return false;
  constexpr size_t kWeight = kTerms * kTerms + kTerms + 1, kObservations = kWeight + 3;
  if (sums[kObservations] < 0 || sums[kObservations] > 1e15 || sums[kWeight] < 0) return false;
  const bool none = sums[kObservations] == 0;
  if (none != (sums[kWeight] == 0) || none != (sums[kWeight + 1] == 0)) return false;
  for (size_t i = kObservations + 1; i <= kObservations + kTerms; ++i) {
    if (sums[i] > sums[i + kTerms]) return false;  // the least beside the largest
  }
  auto next = sums.begin();
  const auto take = [&] { return *next++; };
  for (Terms<kTerms>& row : products_) std::ranges::generate(row, take);
  std::ranges::generate(responses_, take);
  for (double* sum : {&squared_, &weight_, &count_, &count_squares_}) *sum = take();
  observations_ = static_cast<int64_t>(take());
  std::ranges::generate(least_, take);
  std::ranges::generate(largest_, take);
  return true;
}

double StudentQuantile(double degrees) {
  assert(degrees >= 1);
  struct Row {
    double degrees, quantile;
  };
  static constexpr Row kTable[] = {{1, 12.706}, {2, 4.3027}, {3, 3.1824}, {4, 2.7764}, {5, 2.5706}};
  for (size_t i = 1; i < std::size(kTable); ++i) {
    const Row &from = kTable[i - 1], &to = kTable[i];
    if (degrees <= to.degrees) {  // rounded to the more careful side between whole numbers
      return degrees < to.degrees ? from.quantile : to.quantile;
    }
  }
  // Cornish and Fisher's expansion.
  const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * degrees * degrees * degrees);
}

std::string Prediction::ToText() const {
  std::string text = absl::StrCat(value, " (", low, " to ", high, ")");
  if (std::isinf(outside)) return absl::StrCat(text, ", nothing like it was observed");
  if (outside > 0) {
    absl::StrAppendFormat(&text, ", %.0f %% outside the observed range", 100 * outside);
  }
  return text;
}

template <size_t kTerms>
void NonNegativeFit<kTerms>::Observe(const Terms<kTerms>& terms, double response, double weight) {
  assert(std::isfinite(response) && std::isfinite(weight) && weight > 0);
  const double keep = memory_ > 0 ? 1 - 1 / memory_ : 1;
  for (size_t i = 0; i < kTerms; ++i) {
    assert(std::isfinite(terms[i]) && terms[i] >= 0);
    responses_[i] = responses_[i] * keep + weight * terms[i] * response;
    for (size_t j = 0; j < kTerms; ++j) {
      products_[i][j] = products_[i][j] * keep + weight * terms[i] * terms[j];
    }
    least_[i] = observations_ ? std::min(least_[i], terms[i]) : terms[i];
    largest_[i] = observations_ ? std::max(largest_[i], terms[i]) : terms[i];
  }
  squared_ = squared_ * keep + weight * response * response;
  weight_ = weight_ * keep + weight;
  count_ = count_ * keep + 1;
  count_squares_ = count_squares_ * keep * keep + 1;
  ++observations_;
}

template <size_t kTerms>
typename NonNegativeFit<kTerms>::Scaled NonNegativeFit<kTerms>::Scale(const Terms<kTerms>& prior,
                                                                      double prior_weight) const {
  Scaled scaled;
  for (size_t i = 0; i < kTerms; ++i) {
    scaled.scale[i] = std::max(1e-9, std::sqrt(products_[i][i] / weight_));
  }
  // Of a mean response, what the prior lets a term take, squared.
  const auto share_of = [&](size_t i) {
    constexpr double kLeast = 1e-8;
    if (prior[i] <= 0 || squared_ <= 0) return 1.0;
    const double part = prior[i] * scaled.scale[i];
    return std::clamp(part * part * weight_ / squared_, kLeast, 1.0);
  };
  for (size_t i = 0; i < kTerms; ++i) {
    const double pull = prior_weight * weight_ / count_ / share_of(i);
    scaled.responses[i] = responses_[i] / scaled.scale[i] + pull * prior[i] * scaled.scale[i];
    for (size_t j = 0; j < kTerms; ++j) {
      scaled.products[i][j] = products_[i][j] / (scaled.scale[i] * scaled.scale[j]);
    }
    scaled.products[i][i] += pull;
    // Scaled to a size that suits elimination and its threshold.
    scaled.responses[i] /= weight_;
    for (double& product : scaled.products[i]) product /= weight_;
  }
  return scaled;
}

template <size_t kTerms>
Terms<kTerms> NonNegativeFit<kTerms>::Fit(const Terms<kTerms>& prior, double prior_weight) const {
  if (observations_ == 0) return prior;
  const Scaled scaled = Scale(prior, prior_weight);
  Terms<kTerms> x = Minimize(scaled.products, scaled.responses);
  for (size_t i = 0; i < kTerms; ++i) x[i] /= scaled.scale[i];
  return x;
}

template <size_t kTerms>
double NonNegativeFit<kTerms>::LevelOf(const Terms<kTerms>& prior) const {
  if (observations_ == 0) return 1;
  const double said = Dot(products_[0], prior);
  return said > 0 ? std::max(responses_[0], 0.0) / said : 1;
}

template <size_t kTerms>
double NonNegativeFit<kTerms>::Misfit(const Terms<kTerms>& x) const {
  if (squared_ <= 0) return 0;
  return std::clamp(1 + Error(products_, responses_, x) / squared_, 0.0, 1.0);
}

template <size_t kTerms>
Terms<kTerms> NonNegativeFit<kTerms>::MeanTerms() const {
  Terms<kTerms> mean = products_[0];
  for (double& term : mean) term /= std::max(weight_, 1e-300);
  return mean;
}

template <size_t kTerms>
double NonNegativeFit<kTerms>::Outside(const Terms<kTerms>& terms) const {
  if (observations_ == 0) return kInfinity;
  double outside = 0;
  for (size_t i = 0; i < kTerms; ++i) {
    if (terms[i] > largest_[i]) outside = std::max(outside, terms[i] / largest_[i] - 1);
    if (terms[i] < least_[i]) outside = std::max(outside, least_[i] / terms[i] - 1);
  }
  return outside;
}

template <size_t kTerms>
Terms<kTerms> NonNegativeFit<kTerms>::Nearest(const Terms<kTerms>& terms) const {
  Terms<kTerms> nearest;
  for (size_t i = 0; i < kTerms; ++i) nearest[i] = std::clamp(terms[i], least_[i], largest_[i]);
  return nearest;
}

template <size_t kTerms>
std::optional<double> NonNegativeFit<kTerms>::Leverage(const Terms<kTerms>& terms,
                                                       const Terms<kTerms>& x,
                                                       const Scaled& equations) const {
  const unsigned subset = Positive(x);
  Terms<kTerms> at = {}, solved = {};
  for (size_t i = 0; i < kTerms; ++i) {
    if (subset & (1u << i)) at[i] = terms[i] / equations.scale[i];
  }
  if (!Solve(Restrict(equations.products, subset), at, &solved)) return std::nullopt;
  return Dot(at, solved) / weight_;
}

template <size_t kTerms>
double NonNegativeFit<kTerms>::Uncertainty(const Terms<kTerms>& terms, const Terms<kTerms>& prior,
                                           double prior_weight) const {
  if (observations_ == 0) return 0;
  const Scaled equations = Scale(prior, prior_weight);
  const std::optional<double> leverage = Leverage(terms, Fit(prior, prior_weight), equations);
  if (!leverage) return kInfinity;
  return std::sqrt(*leverage * prior_weight * squared_ / weight_);
}

// With a ridge of r on products of size 1, r v^T (A + r)^-1 v is the squared length of what of v
// lies in directions without any observation, and next to nothing of the others.
template <size_t kTerms>
bool NonNegativeFit<kTerms>::Observed(const Terms<kTerms>& terms, unsigned subset) const {
  constexpr double kRidge = 1e-9, kShareMax = 0.01;
  Scaled scaled = Scale({}, 0);
  Terms<kTerms> at = {}, solved = {};
  for (size_t i = 0; i < kTerms; ++i) {
    if (terms[i] > 0 && largest_[i] == 0) return false;
    scaled.products[i][i] += kRidge;
    if (subset & (1u << i)) at[i] = terms[i] / scaled.scale[i];
  }
  if (!Solve(Restrict(scaled.products, subset), at, &solved)) return false;
  return kRidge * Dot(at, solved) <= kShareMax * Dot(at, at);
}

template <size_t kTerms>
Prediction NonNegativeFit<kTerms>::Predict(const Terms<kTerms>& terms, const Terms<kTerms>& prior,
                                           double prior_weight, double weight) const {
  Prediction prediction;
  const Terms<kTerms> x = Fit(prior, prior_weight);
  prediction.value = Dot(terms, x);
  prediction.outside = Outside(terms);
  prediction.high = kInfinity;
  const unsigned subset = Positive(x);
  const double effective = count_squares_ > 0 ? count_ * count_ / count_squares_ : 0;
  const double degrees = effective - std::popcount(subset);
  if (degrees < 1 || !Observed(terms, subset)) return prediction;

  // Variance of an observation of weight 1, then of a new one and of the fit itself at its terms.
  const double squares = std::max(0.0, squared_ + Error(products_, responses_, x));
  const double variance = squares / (count_ * (degrees / effective));
  const std::optional<double> of_fit = Leverage(terms, x, Scale(prior, prior_weight));
  if (!of_fit) return prediction;
  const double half = StudentQuantile(degrees) * std::sqrt(variance * (1 / weight + *of_fit));
  prediction.low = std::max(0.0, prediction.value - half);
  prediction.high = prediction.value + half;
  return prediction;
}

template class NonNegativeFit<3>;
template class NonNegativeFit<4>;

}  // namespace lorad::planner
