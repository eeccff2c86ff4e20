// How far off forecasts of moments were, and from that the interval of the next one. Pure.
//
// A forecast says: in p seconds. It happens after a seconds. The error is
//   e = log((a + s) / (p + s)),   s = kGrainSeconds,
// so that of short times seconds count, and of long ones their share. With e_(1) <= .. <= e_(n) the
// newest kKept errors, the next forecast has the interval
//   [(p + s) exp(min(e_(k), 0)) - s, (p + s) exp(max(e_(n + 1 - k), 0)) - s],
//   k = floor(a / 2 (n + 1)),
// not below 0. With a = 0.1 it holds the moment nine times in ten or more if the next error is like
// these: split conformal prediction (Lei et al., "Distribution-free predictive inference for
// regression", 2018, section 2). It holds p itself, also where all errors went one way. Where k is
// 0 nobody can know: then e_(1) and e_(n), or a factor of kFactorAtFirst either way, whichever is
// wider.
//
// Loads change, and then the next error is not like these. So each of those kept, from the oldest
// on, moves the share that may lie outside,
//   a <- min(0.1, a + 0.05 (0.1 - (1 if it lay outside, else 0))),
// from 0.1: adaptive conformal inference (Gibbs and Candes, "Adaptive conformal inference under
// distribution shift", 2021, section 2), but never more than 0.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace lorad::planner {

// Seconds from the moment at which it is said.
struct ForecastInterval {
  double earliest_s = 0;
  double latest_s = 0;
};

// A value type. Seconds are finite and not below 0.
class ForecastErrors {
 public:
  static constexpr size_t kKept = 200;
  static constexpr double kGrainSeconds = 2;
  static constexpr double kFactorAtFirst = 2;

  // O(1).
  ForecastInterval IntervalOf(double forecast_s) const;
  // It has happened; whether it lay in the interval that was said. O(kKept).
  void Observe(double forecast_s, double actual_s, bool inside);

  // Of those kept: how many, the mean of |e| as a share (0.1: 10 % off), and the share of those
  // that lay inside; 0 where there is none.
  int64_t observations() const { return static_cast<int64_t>(seen_.size()); }
  double mean_error() const;
  double share_inside() const;

  // All that it knows, to be kept: e, and whether it lay inside, of each, oldest first. False where
  // that was never anybody's; nothing changes then.
  std::vector<double> values() const;
  bool SetValues(const std::vector<double>& values);

 private:
  struct Seen {
    double error = 0;
    bool inside = false;
  };
  void Sum();
  double OutsideShare() const;

  std::deque<Seen> seen_;  // oldest first
  double factor_low_ = 1 / kFactorAtFirst, factor_high_ = kFactorAtFirst;
};

}  // namespace lorad::planner
