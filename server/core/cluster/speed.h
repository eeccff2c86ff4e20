// How fast a worker trains beside what the times of its kind say (fits.h): by the newest of its own
// microbatches. A value type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "planner/cost/time.h"

namespace lorad::server {

struct TimedMicrobatch {
  planner::Workload work;
  double forward_ms = 0;
  double backward_ms = 0;  // 0: it evaluates
};

// Microbatches are taken together in spans, so that a worker that stands still for a part of each
// second is as slow as it is in the mean; and of the spans the slowest and the fastest quarter do
// not count, so that one that is cold, or stops for some seconds, says nothing.
class Speed {
 public:
  static constexpr int64_t kSpanMicrobatches = 4;  // so many at least,
  static constexpr double kSpanMs = 1000;          // and so much of the worker's time
  static constexpr size_t kSpans = 8;              // so many of the newest count;
  static constexpr size_t kSpansKnown = 6;         // with fewer nothing is known

  // Those of another base model begin anew.
  void Observe(const std::string& base_model, const TimedMicrobatch& one);
  const std::string& base_model() const { return base_model_; }
  // How many times as long as by `times` the spans that count have taken, in the mean; 0: not
  // known.
  double Ratio(const planner::TimeModel& times) const;
  // The mean length of a span. A worker that was last measured longer ago than this is not compared
  // (speeds.cc): what has changed since may be in all spans of another, and in none of its own.
  double SpanMs() const;

 private:
  struct Sums {
    double microbatches = 0;
    planner::Workload work;

    void Add(const TimedMicrobatch& one);
    double Ms(const planner::TimeCoefficients& times) const { return times.Ms(work, microbatches); }
  };
  struct Span {
    Sums trained, evaluated;
    double ms = 0;

    bool IsLong() const;
  };

  std::string base_model_;
  Span open_;
  std::deque<Span> spans_;  // oldest first
};

}  // namespace lorad::server
