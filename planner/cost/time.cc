#include "planner/cost/time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

constexpr double kExtrapolatedFrom = 0.1, kUncertainFrom = 0.25;

Terms<4> TermsOf(const Workload& work) {
  return {1, work.tokens, work.squared_lengths, work.adapter_work};
}

Terms<4> TermsOf(const TimeCoefficients& times) {
  return {times.constant_ms, times.token_ms, times.squared_ms, times.adapter_ms};
}

std::string Text(const TimeCoefficients& times) {
  return absl::StrCat(times.constant_ms, " + ", times.token_ms, " tokens + ", times.squared_ms,
                      " squares + ", times.adapter_ms, " adapters ms");
}

}  // namespace

TimeCoefficients operator*(double factor, const TimeCoefficients& times) {
  return {.constant_ms = factor * times.constant_ms,
          .token_ms = factor * times.token_ms,
          .squared_ms = factor * times.squared_ms,
          .adapter_ms = factor * times.adapter_ms};
}

TimeCoefficients operator+(const TimeCoefficients& a, const TimeCoefficients& b) {
  return {.constant_ms = a.constant_ms + b.constant_ms,
          .token_ms = a.token_ms + b.token_ms,
          .squared_ms = a.squared_ms + b.squared_ms,
          .adapter_ms = a.adapter_ms + b.adapter_ms};
}

void TimeFit::Observe(const Workload& microbatch, double ms, const TimeCoefficients& expected) {
  const Microbatch one{microbatch, ms};
  if (before_) {
    if (!std::exchange(has_taken_first_, true)) Take(*before_, one, expected);
    Take(one, *before_, expected);
  }
  before_ = one;
}

void TimeFit::Take(const Microbatch& one, const Microbatch& beside,
                   const TimeCoefficients& expected) {
  double ms = one.ms;
  const double beside_ms = expected.Ms(beside.work, 1);
  if (beside.ms > 0 && beside_ms > 0) {
    const double longer = std::max(expected.Ms(one.work, 1) / beside_ms, 1.0);
    ms = std::min(ms, kOutlier * longer * beside.ms);
  }
  fit_.Observe(TermsOf(one.work), ms);
}

double TimeFit::Level(const TimeCoefficients& prior) const {
  return std::clamp(fit_.LevelOf(TermsOf(prior)), 1 / kLevelMax, kLevelMax);
}

Terms<4> TimeFit::Levelled(const TimeCoefficients& prior) const {
  return TermsOf(Level(prior) * prior);
}

// The relative variance of the noise, which is taken for kNoise before anything was observed.
double TimeFit::Noise(const Terms<4>& prior) const {
  const double misfit = fit_.Misfit(fit_.Fit(prior, kNoise));
  return (fit_.count() * misfit + kNoiseFrom * kNoise) / (fit_.count() + kNoiseFrom);
}

TimeCoefficients TimeFit::Fit(const TimeCoefficients& prior) const {
  const Terms<4> levelled = Levelled(prior);
  const Terms<4> x = fit_.Fit(levelled, Noise(levelled));
  return {.constant_ms = x[0], .token_ms = x[1], .squared_ms = x[2], .adapter_ms = x[3]};
}

double TimeFit::UncertaintyMs(const Workload& microbatch, const TimeCoefficients& prior) const {
  const Terms<4> levelled = Levelled(prior);
  return fit_.Uncertainty(TermsOf(microbatch), levelled, Noise(levelled));
}

Workload TimeFit::Mean() const {
  const Terms<4> mean = fit_.MeanTerms();
  return {mean[1], mean[2], mean[3]};
}

Workload TimeFit::Nearest(const Workload& microbatch) const {
  const Terms<4> nearest = fit_.Nearest(TermsOf(microbatch));
  return {nearest[1], nearest[2], nearest[3]};
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
  prior.forward = {.token_ms = work.flops_per_token * ms_per_flop,
                   .squared_ms = work.flops_per_squared * ms_per_flop,
                   .adapter_ms = WorkModel::kFlopsPerAdapter * ms_per_flop};
  prior.backward = {.token_ms = prior.forward.token_ms,
                    .squared_ms = 2.5 * prior.forward.squared_ms,
                    .adapter_ms = 2 * prior.forward.adapter_ms};
  return prior;
}

void TimeModel::Observe(const Workload& microbatch, double forward_ms, double backward_ms) {
  forward_.Observe(microbatch, forward_ms, evaluate_);
  if (backward_ms > 0) backward_.Observe(microbatch, backward_ms, backpropagate_);
  Fit();
}

// A device that was seen to evaluate alone is as fast or slow at its backwards, term by term.
TimeCoefficients TimeModel::BackwardPrior() const {
  // What was seen to take no time takes some.
  const auto as = [](double seen, double of_forward, double of_backward) {
    if (of_forward <= 0) return of_backward;
    return std::max(seen / of_forward, 1 / TimeFit::kLevelMax) * of_backward;
  };
  const TimeCoefficients &forward = prior_.forward, &backward = prior_.backward;
  return {.constant_ms = evaluate_.constant_ms,
          .token_ms = as(evaluate_.token_ms, forward.token_ms, backward.token_ms),
          .squared_ms = as(evaluate_.squared_ms, forward.squared_ms, backward.squared_ms),
          .adapter_ms = as(evaluate_.adapter_ms, forward.adapter_ms, backward.adapter_ms)};
}

void TimeModel::Fit() {
  evaluate_ = forward_.Fit(prior_.forward);
  backpropagate_ = backward_.Fit(BackwardPrior());
  train_ = evaluate_ + backpropagate_;
}

double TimeModel::TrainMs(const Workload& work, double microbatches) const {
  return train_.Ms(work, microbatches);
}

double TimeModel::EvaluateMs(const Workload& work, double microbatches) const {
  return evaluate_.Ms(work, microbatches);
}

double TimeModel::EvaluatedShare(double tokens) const {
  Workload work(tokens);
  if (const Workload mean = backward_.Mean(); mean.tokens > 0) work = tokens / mean.tokens * mean;
  if (const double ms = TrainMs(work, 1); ms > 0) return EvaluateMs(work, 1) / ms;
  return prior_.forward.Ms(work, 1) / (prior_.forward + prior_.backward).Ms(work, 1);
}

bool TimeModel::SetSums(const std::vector<double>& forward, const std::vector<double>& backward) {
  TimeModel model = *this;
  if (!model.forward_.SetSums(forward) || !model.backward_.SetSums(backward)) return false;
  model.Fit();
  *this = model;
  return true;
}

const char* TimeModel::basis() const { return is_measured() ? kMeasuredBasis : kAssumedBasis; }

std::string TimeModel::BasisOf(const Workload& microbatch) const {
  if (!is_measured()) return basis();
  const double ms = TrainMs(microbatch, 1), nearest_ms = TrainMs(forward_.Nearest(microbatch), 1);
  const double by = std::max(ms, nearest_ms) / std::min(ms, nearest_ms) - 1;
  const double off = (forward_.UncertaintyMs(microbatch, prior_.forward) +
                      backward_.UncertaintyMs(microbatch, BackwardPrior())) /
                     ms;
  if (!std::isfinite(by) || !std::isfinite(off)) {
    return absl::StrCat(basis(), ", nothing like it was measured");
  }
  if (off > std::max(by, kUncertainFrom)) {
    return absl::StrFormat("%s, uncertain by %.0f %%", basis(), 100 * off);
  }
  if (!(by > kExtrapolatedFrom)) return basis();
  return absl::StrFormat("%s, extrapolated by %.0f %%", basis(), 100 * by);
}

std::string TimeModel::ToText() const {
  return absl::StrCat("forward ", Text(evaluate_), ", backward ", Text(backpropagate_), " (",
                      basis(), ", ", forward_.observations(), " microbatches)");
}

}  // namespace lorad::planner
