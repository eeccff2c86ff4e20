#include "tests/sim/worker/clockwork.h"

#include <algorithm>
#include <utility>

namespace lorad::sim {

bool Clockwork::Chance(double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < share;
}

int64_t Clockwork::Delay() {
  return delay_us_max_ == 0 ? 0 : static_cast<int64_t>(random_() % delay_us_max_);
}

void Clockwork::At(int64_t at_us, std::function<void()> what) {
  agenda_.emplace(std::max(at_us, now_us_), std::move(what));
}

void Clockwork::AlarmAt(int64_t at_us, std::function<void()> what) {
  ++alarms_;
  At(at_us, [this, what = std::move(what)] {
    --alarms_;
    what();
  });
}

bool Clockwork::RunNext() {
  if (agenda_.empty()) return false;
  const auto next = agenda_.begin();
  now_us_ = std::max(now_us_, next->first);
  const std::function<void()> what = std::move(next->second);
  agenda_.erase(next);
  what();
  return true;
}

void Clockwork::Sleep(int64_t us) {
  const int64_t until_us = now_us_ + us;
  while (!agenda_.empty() && agenda_.begin()->first <= until_us) RunNext();
  now_us_ = std::max(now_us_, until_us);
}

}  // namespace lorad::sim
