#include "planner/cost/time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

constexpr double kPriorWeight = 0.01;  // observations

Terms TermsOf(const TimeCoefficients& x) { return {x.constant_ms, x.token_ms, x.squared_ms}; }

}  // namespace

void TimeFit::Observe(int64_t tokens, int64_t squared_lengths, double ms) {
  const Microbatch one{static_cast<double>(tokens), static_cast<double>(squared_lengths), ms};
  if (before_) {
    if (!std::exchange(has_taken_first_, true)) Take(*before_, one);
    Take(one, *before_);
  }
  before_ = one;
}

void TimeFit::Take(const Microbatch& one, const Microbatch& beside) {
  double ms = one.ms;
  if (beside.ms > 0 && beside.tokens > 0 && beside.squared_lengths > 0) {
    const double times =
        std::max({1.0, one.tokens / beside.tokens, one.squared_lengths / beside.squared_lengths});
    ms = std::min(ms, kOutlier * times * beside.ms);
  }
  fit_.Observe({1, one.tokens, one.squared_lengths}, ms);
}

TimeCoefficients TimeFit::Fit(const TimeCoefficients& prior) const {
  const Terms x = fit_.Fit(TermsOf(prior), kPriorWeight);
  return {x[0], x[1], x[2]};
}

Prediction TimeFit::Predict(double tokens, double squared_lengths,
                            const TimeCoefficients& prior) const {
  return fit_.Predict({1, tokens, squared_lengths}, TermsOf(prior), kPriorWeight);
}

double ReplicaMs(const std::vector<double>& microbatch_ms, int stages) {
  double sum = 0, longest = 0;
  for (double ms : microbatch_ms) {
    sum += ms;
    longest = std::max(longest, ms);
  }
  return sum + (stages - 1) * longest;
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
  return TrainCoefficients()(tokens, squared_lengths, microbatches);
}

double TimeModel::EvaluateMs(double tokens, double squared_lengths, double microbatches) const {
  return EvaluateCoefficients()(tokens, squared_lengths, microbatches);
}

double TimeModel::EvaluatedShare(double tokens) const {
  // A forward that was measured says nothing beside a backward that was not.
  const TimeModel assumed(prior_);
  const TimeModel& times = backward_.observations() > 0 ? *this : assumed;
  return times.EvaluateMs(tokens, 0, 1) / times.TrainMs(tokens, 0, 1);
}

Prediction TimeModel::PredictTrainMs(double tokens, double squared_lengths) const {
  const Prediction forward = forward_.Predict(tokens, squared_lengths, prior_.forward);
  const Prediction backward = backward_.Predict(tokens, squared_lengths, prior_.backward);
  const double half = std::hypot(forward.high - forward.value, backward.high - backward.value);
  Prediction sum;
  sum.value = forward.value + backward.value;
  sum.low = std::max(0.0, sum.value - half);
  sum.high = sum.value + half;
  sum.outside = std::max(forward.outside, backward.outside);
  return sum;
}

TimeCoefficients TimeModel::TrainCoefficients() const {
  const TimeCoefficients forward = EvaluateCoefficients();
  const TimeCoefficients backward = backward_.Fit(prior_.backward);
  return {forward.constant_ms + backward.constant_ms, forward.token_ms + backward.token_ms,
          forward.squared_ms + backward.squared_ms};
}

TimeCoefficients TimeModel::EvaluateCoefficients() const { return forward_.Fit(prior_.forward); }

bool TimeModel::SetSums(const std::vector<double>& forward, const std::vector<double>& backward) {
  TimeModel model = *this;
  if (!model.forward_.SetSums(forward) || !model.backward_.SetSums(backward)) return false;
  *this = model;
  return true;
}

const char* TimeModel::basis() const { return is_measured() ? kMeasuredBasis : kAssumedBasis; }

std::string TimeModel::BasisOf(double tokens, double squared_lengths) const {
  const double outside = forward_.Outside(tokens, squared_lengths);
  if (!is_measured() || outside <= 0.1) return basis();
  return absl::StrFormat("%s, extrapolated by %.0f %%", basis(), 100 * outside);
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
