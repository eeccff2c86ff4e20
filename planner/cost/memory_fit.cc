#include "planner/cost/memory_fit.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

Terms<3> TermsOf(int64_t tokens, int64_t squared_lengths) {
  return {1, static_cast<double>(tokens), static_cast<double>(squared_lengths)};
}

}  // namespace

void MemoryFit::Observe(const Peak& peak) {
  assert(peak.counted_bytes > 0 && peak.peak_bytes > 0);
  const auto measured = static_cast<double>(peak.peak_bytes);
  if (observations() >= kFittedFrom) {
    const double predicted = Predict(peak.counted_bytes, peak.tokens, peak.squared_lengths).value;
    errors_ += std::abs(predicted - measured) / measured;
    ++predicted_;
  }
  fit_.Observe(TermsOf(peak.tokens, peak.squared_lengths),
               measured - static_cast<double>(peak.counted_bytes), 1 / (measured * measured));
}

MemoryCoefficients MemoryFit::Fit() const {
  if (observations() < kFittedFrom) return {};
  const Terms<3> b = fit_.Fit();
  return {b[0], b[1], b[2]};
}

Prediction MemoryFit::Predict(int64_t counted_bytes, int64_t tokens,
                              int64_t squared_lengths) const {
  const auto counted = static_cast<double>(counted_bytes);
  Prediction prediction;
  prediction.value = prediction.low = counted;
  prediction.high = std::numeric_limits<double>::infinity();
  prediction.outside = fit_.Outside(TermsOf(tokens, squared_lengths));
  if (observations() < kFittedFrom) return prediction;
  const Terms<3> terms = TermsOf(tokens, squared_lengths);
  const MemoryCoefficients b = Fit();
  prediction.value = counted + b.constant + b.token * terms[1] + b.squared * terms[2];
  const Prediction beyond =
      fit_.Predict(terms, {}, 1e-9, 1 / (prediction.value * prediction.value));
  const double half = beyond.high - beyond.value;
  prediction.low = std::max(0.0, prediction.value - half);
  prediction.high = prediction.value + half;
  return prediction;
}

std::vector<double> MemoryFit::sums() const {
  std::vector<double> sums = fit_.sums();
  sums.insert(sums.end(), {errors_, static_cast<double>(predicted_)});
  return sums;
}

bool MemoryFit::SetSums(std::vector<double> sums) {
  if (sums.size() != decltype(fit_)::kSums + 2) return false;
  const double predicted = sums.back(), errors = sums[sums.size() - 2];
  sums.resize(decltype(fit_)::kSums);
  if (!(errors >= 0 && predicted >= 0 && predicted < 1e15) || !fit_.SetSums(sums)) return false;
  errors_ = errors;
  predicted_ = static_cast<int64_t>(predicted);
  return true;
}

double MemoryFit::mean_error() const {
  return predicted_ > 0 ? errors_ / static_cast<double>(predicted_)
                        : std::numeric_limits<double>::quiet_NaN();
}

std::string MemoryFit::ToText() const {
  const MemoryCoefficients b = Fit();
  std::string text = absl::StrCat("counted + ", b.constant, " + ", b.token, " tokens + ", b.squared,
                                  " squares bytes (", observations(), " peaks");
  if (predicted_ > 0) {
    absl::StrAppendFormat(&text, ", mean error of predictions %.3f %%", 100 * mean_error());
  }
  return text + ")";
}

}  // namespace lorad::planner
