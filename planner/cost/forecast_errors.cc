#include "planner/cost/forecast_errors.h"

#include <algorithm>
#include <cmath>

namespace lorad::planner {
namespace {

constexpr double kOutside = 0.1;  // of moments, at both ends together
constexpr double kAdaption = 0.05;
constexpr double kErrorMax = 40;  // a second for the age of the universe

}  // namespace

ForecastInterval ForecastErrors::IntervalOf(double forecast_s) const {
  const double grained_s = forecast_s + kGrainSeconds;
  return {.earliest_s = std::max(0.0, grained_s * factor_low_ - kGrainSeconds),
          .latest_s = std::max(0.0, grained_s * factor_high_ - kGrainSeconds)};
}

void ForecastErrors::Observe(double forecast_s, double actual_s, bool inside) {
  seen_.push_back({std::log((actual_s + kGrainSeconds) / (forecast_s + kGrainSeconds)), inside});
  if (seen_.size() > kKept) seen_.pop_front();
  Sum();
}

double ForecastErrors::OutsideShare() const {
  double share = kOutside;
  for (const Seen& seen : seen_) {
    share = std::min(kOutside, share + kAdaption * (kOutside - (seen.inside ? 0 : 1)));
  }
  return std::max(share, 0.0);
}

void ForecastErrors::Sum() {
  std::vector<double> errors;
  for (const Seen& seen : seen_) errors.push_back(seen.error);
  std::ranges::sort(errors);
  const auto k = static_cast<size_t>(OutsideShare() / 2 * static_cast<double>(errors.size() + 1));
  double low = errors.empty() ? 0 : errors[std::max<size_t>(k, 1) - 1];
  double high = errors.empty() ? 0 : errors[errors.size() - std::max<size_t>(k, 1)];
  if (k == 0) {
    low = std::min(low, -std::log(kFactorAtFirst));
    high = std::max(high, std::log(kFactorAtFirst));
  }
  factor_low_ = std::exp(std::min(low, 0.0));
  factor_high_ = std::exp(std::max(high, 0.0));
}

double ForecastErrors::mean_error() const {
  if (seen_.empty()) return 0;
  double sum = 0;
  for (const Seen& seen : seen_) sum += std::abs(seen.error);
  return std::expm1(sum / static_cast<double>(seen_.size()));
}

double ForecastErrors::share_inside() const {
  if (seen_.empty()) return 0;
  const auto inside = std::ranges::count_if(seen_, [](const Seen& seen) { return seen.inside; });
  return static_cast<double>(inside) / static_cast<double>(seen_.size());
}

std::vector<double> ForecastErrors::values() const {
  std::vector<double> values;
  for (const Seen& seen : seen_) values.insert(values.end(), {seen.error, seen.inside ? 1.0 : 0.0});
  return values;
}

bool ForecastErrors::SetValues(const std::vector<double>& values) {
  if (values.size() % 2 != 0 || values.size() > 2 * kKept) return false;
  std::deque<Seen> seen;
  for (size_t i = 0; i < values.size(); i += 2) {
    if (!(std::abs(values[i]) <= kErrorMax)) return false;  // nor a NaN
    seen.push_back({values[i], values[i + 1] != 0});
  }
  seen_ = std::move(seen);
  Sum();
  return true;
}

}  // namespace lorad::planner
