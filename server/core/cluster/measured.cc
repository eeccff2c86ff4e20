#include "server/core/cluster/measured.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace lorad::server {
namespace {

constexpr size_t kOffsetsKept = 64;

planner::Span SpanOf(int64_t begin_us, double length_ms) {
  const double begin_ms = static_cast<double>(begin_us) / 1e3;
  return {begin_ms, begin_ms + length_ms};
}

planner::Span SpanOf(const worker::v1::MicrobatchDone::Transfer& transfer) {
  return SpanOf(transfer.begin_us(),
                static_cast<double>(transfer.end_us() - transfer.begin_us()) / 1e3);
}

planner::Span Moved(const planner::Span& span, double offset_ms) {
  return {span.start_ms + offset_ms, span.end_ms + offset_ms};
}

}  // namespace

void KeepMeasured(const worker::v1::MicrobatchDone& done, std::vector<std::string> jobs,
                  std::deque<MeasuredMicrobatch>* measured) {
  if (done.forward_begin_us() == 0) return;
  MeasuredMicrobatch& kept = measured->emplace_back();
  kept.moments = {.number = done.microbatch(),
                  .evaluates = done.backward_begin_us() == 0,
                  .forward = SpanOf(done.forward_begin_us(), done.forward_ms()),
                  .backward = SpanOf(done.backward_begin_us(), done.backward_ms()),
                  .activations = SpanOf(done.activations()),
                  .gradient = SpanOf(done.gradient())};
  kept.tokens = done.tokens();
  kept.jobs = std::move(jobs);
  if (measured->size() > kMeasuredKept) measured->pop_front();
}

planner::StageMoments NewestOf(const std::deque<MeasuredMicrobatch>& measured, size_t count,
                               double offset_ms) {
  planner::StageMoments newest;
  for (size_t i = measured.size() - std::min(count, measured.size()); i < measured.size(); ++i) {
    planner::MicrobatchMoments moments = measured[i].moments;
    moments.forward = Moved(moments.forward, offset_ms);
    moments.backward = Moved(moments.backward, offset_ms);
    moments.activations = Moved(moments.activations, offset_ms);
    moments.gradient = Moved(moments.gradient, offset_ms);
    newest.push_back(moments);
  }
  return newest;
}

std::optional<WholePasses::Times> WholePasses::Add(const worker::v1::MicrobatchDone& done,
                                                   size_t stages) {
  if (done.forward_begin_us() == 0) return std::nullopt;  // nothing was computed here
  Sum& sum = open_[done.microbatch()];
  sum.times.forward_ms += done.forward_ms();
  sum.times.backward_ms += done.backward_ms();
  if (++sum.stages == stages) return open_.extract(done.microbatch()).mapped().times;
  // Of one that a stage has dropped the rest does not come.
  if (open_.size() > kMeasuredKept) open_.erase(open_.begin());
  return std::nullopt;
}

void ClockOffset::Heard(int64_t now_us, int64_t clock_us) {
  heard_us_.push_back(now_us - clock_us);
  if (heard_us_.size() > kOffsetsKept) heard_us_.pop_front();
}

int64_t ClockOffset::us() const {
  assert(known());
  return *std::ranges::min_element(heard_us_);
}

}  // namespace lorad::server
