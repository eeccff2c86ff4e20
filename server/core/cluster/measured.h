// What stages say of their microbatches, kept for those who look.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"
#include "planner/stages/moments.h"

namespace lorad::server {

// Of each stage so many microbatches, the newest.
inline constexpr size_t kMeasuredKept = 1024;

struct MeasuredMicrobatch {
  planner::MicrobatchMoments moments;  // by the clock of the stage's worker
  int64_t tokens = 0;
  std::vector<std::string> jobs;
};

// REQUIRES: the report fits (WhatIsWrong).
void KeepMeasured(const worker::v1::MicrobatchDone& done, std::vector<std::string> jobs,
                  std::deque<MeasuredMicrobatch>* measured);

// The newest `count` of them, with `offset_ms` added to each moment.
planner::StageMoments NewestOf(const std::deque<MeasuredMicrobatch>& measured, size_t count,
                               double offset_ms);

// What the stages of a group compute of a microbatch, each for itself, summed up: what one worker
// with all blocks would take.
class WholePasses {
 public:
  struct Times {
    double forward_ms = 0;
    double backward_ms = 0;
  };
  // One of `stages` has done its part. The sums, where it is the last to say so.
  std::optional<Times> Add(const worker::v1::MicrobatchDone& done, size_t stages);

 private:
  struct Sum {
    Times times;
    size_t stages = 0;  // that are in it
  };
  std::map<int64_t, Sum> open_;  // by microbatch
};

// How far the coordinator's clock is ahead of a worker's: each of its messages says so, and how
// long it was on its way. The least of the newest 64 counts, so what is left of that is the same
// for all workers but for their distance.
class ClockOffset {
 public:
  void Heard(int64_t now_us, int64_t clock_us);
  bool known() const { return !heard_us_.empty(); }
  // REQUIRES: known.
  int64_t us() const;

 private:
  std::deque<int64_t> heard_us_;
};

}  // namespace lorad::server
