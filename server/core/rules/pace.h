// How fast tokens were trained lately: the ends of steps or microbatches, with the tokens of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace lorad::server {

// A rate is that of the newest ends, and of two seconds at least: what else the machine does in a
// moment, such as to start a command or to write a file, makes a tenth of a second of small steps
// twice as long.
class Pace {
 public:
  static constexpr int64_t kSpanUs = 2'000'000;

  // Goes by so many of the newest ends; those that come faster than that in the span are taken
  // together. REQUIRES: more than two.
  explicit Pace(size_t ends) : ends_(ends), least_us_(kSpanUs / static_cast<int64_t>(ends - 2)) {}

  // REQUIRES: no time before the last.
  void Add(int64_t time_us, int64_t tokens) {
    const size_t size = kept_.size();
    if (size >= 2 && kept_[size - 1].time_us - kept_[size - 2].time_us < least_us_) {
      kept_.back() = {time_us, kept_.back().tokens + tokens};
      return;
    }
    kept_.push_back({time_us, tokens});
    if (kept_.size() > ends_) kept_.pop_front();
  }

  void Clear() { kept_.clear(); }

  // Tokens a second from the first end to the last; 0 before there are two.
  double Rate() const {
    if (kept_.size() < 2) return 0;
    int64_t tokens = 0;
    for (size_t i = 1; i < kept_.size(); ++i) tokens += kept_[i].tokens;
    const int64_t us = kept_.back().time_us - kept_.front().time_us;
    return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0;
  }

  // With fewer ends, or in less time, the rate is a guess.
  bool IsKnown() const {
    return kept_.size() >= 8 && kept_.back().time_us - kept_.front().time_us >= kSpanUs / 4;
  }

 private:
  struct Ends {
    int64_t time_us = 0;  // of the last
    int64_t tokens = 0;   // of all
  };

  size_t ends_;
  int64_t least_us_;       // that one of these lasts
  std::deque<Ends> kept_;  // oldest first
};

}  // namespace lorad::server
