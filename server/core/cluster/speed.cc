#include "server/core/cluster/speed.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace lorad::server {

void Speed::Sums::Add(const TimedMicrobatch& one) {
  ++microbatches;
  work += one.work;
}

bool Speed::Span::IsLong() const {
  return trained.microbatches + evaluated.microbatches >= kSpanMicrobatches && ms >= kSpanMs;
}

void Speed::Observe(const std::string& base_model, const TimedMicrobatch& one) {
  if (base_model != base_model_) *this = {};
  base_model_ = base_model;
  (one.backward_ms > 0 ? open_.trained : open_.evaluated).Add(one);
  open_.ms += one.forward_ms + one.backward_ms;
  if (!open_.IsLong()) return;
  spans_.push_back(std::exchange(open_, {}));
  if (spans_.size() > kSpans) spans_.pop_front();
}

double Speed::Ratio(const planner::TimeModel& times) const {
  if (spans_.size() < kSpansKnown) return 0;
  const planner::TimeCoefficients train = times.TrainCoefficients();
  const planner::TimeCoefficients evaluate = times.EvaluateCoefficients();
  std::vector<double> ratios;
  for (const Span& span : spans_) {
    const double expected_ms = span.trained.Ms(train) + span.evaluated.Ms(evaluate);
    if (expected_ms <= 0) return 0;
    ratios.push_back(span.ms / expected_ms);
  }
  std::ranges::sort(ratios);
  const auto out = static_cast<std::ptrdiff_t>(ratios.size() / 4);
  const double sum = std::accumulate(ratios.begin() + out, ratios.end() - out, 0.0);
  return sum / static_cast<double>(std::ssize(ratios) - 2 * out);
}

double Speed::SpanMs() const {
  double ms = 0;
  for (const Span& span : spans_) ms += span.ms / static_cast<double>(spans_.size());
  return ms;
}

}  // namespace lorad::server
