// How fast something was done lately: the ends of steps or microbatches, with what was done in
// each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace lorad::server {

// A rate is that of the newest ends, and of two seconds at least: what else the machine does in a
// moment, such as to start a command or to write a file, makes a tenth of a second of small steps
// twice as long. It begins behind what ends in its first moment: where the coordinator was stopped,
// or was started again, workers say at once what they did meanwhile.
//
// Work: a number, or a value type that adds.
template <class Work>
class Pace {
 public:
  static constexpr int64_t kSpanUs = 2'000'000;
  static constexpr int64_t kMomentUs = 200'000;

  // Goes by so many of the newest ends; those that come faster than that in the span are taken
  // together. REQUIRES: more than two.
  explicit Pace(size_t ends) : ends_(ends), least_us_(kSpanUs / static_cast<int64_t>(ends - 2)) {}

  // REQUIRES: no time before the last.
  void Add(int64_t time_us, const Work& work) {
    const size_t size = kept_.size();
    if (size == 0) begin_us_ = time_us;
    if (size == 1 && time_us - begin_us_ < kMomentUs) {
      kept_.front().time_us = time_us;
      return;
    }
    if (size >= 2 && kept_[size - 1].time_us - kept_[size - 2].time_us < least_us_) {
      kept_.back().time_us = time_us;
      kept_.back().work += work;
      return;
    }
    kept_.push_back({time_us, work});
    if (kept_.size() > ends_) kept_.pop_front();
  }

  // More that was done until the newest end.
  void AddToLast(const Work& work) {
    if (!kept_.empty()) kept_.back().work += work;
  }

  void Clear() { kept_.clear(); }

  // What was done after the first end,
  Work Done() const {
    Work done = {};
    for (size_t i = 1; i < kept_.size(); ++i) done += kept_[i].work;
    return done;
  }
  // and in how long; 0 before there are two.
  double Seconds() const {
    return kept_.empty() ? 0
                         : static_cast<double>(kept_.back().time_us - kept_.front().time_us) / 1e6;
  }
  // Of a part of Done(); 0 where it took no time.
  double PerSecond(double part) const { return Seconds() > 0 ? part / Seconds() : 0; }

  // With fewer ends, or in less time, the rate is a guess.
  bool IsKnown() const {
    return kept_.size() >= 8 && kept_.back().time_us - kept_.front().time_us >= kSpanUs / 4;
  }

 private:
  struct Ends {
    int64_t time_us = 0;  // of the last
    Work work = {};       // of all
  };

  size_t ends_;
  int64_t least_us_;       // that one of these lasts
  int64_t begin_us_ = 0;   // the first end since Clear
  std::deque<Ends> kept_;  // oldest first
};

}  // namespace lorad::server
