// Time in a simulation, and what is due in it. Everything random comes from one seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>

namespace lorad::sim {

class Clockwork {
 public:
  // delay_us_max: what takes a while (Later) takes less than this; 0: everything happens at once,
  // in the order it was caused.
  Clockwork(uint64_t seed, int64_t delay_us_max) : random_(seed), delay_us_max_(delay_us_max) {}
  Clockwork(const Clockwork&) = delete;
  Clockwork& operator=(const Clockwork&) = delete;

  int64_t now_us() const { return now_us_; }
  std::mt19937_64& random() { return random_; }
  bool Chance(double share);
  int64_t Delay();

  void At(int64_t at_us, std::function<void()> what);
  void Later(std::function<void()> what) { At(now_us_ + Delay(), std::move(what)); }
  // For heartbeats and time-outs: the agenda is quiet where only such are left.
  void AlarmAt(int64_t at_us, std::function<void()> what);

  bool empty() const { return agenda_.empty(); }
  bool quiet() const { return static_cast<int64_t>(agenda_.size()) == alarms_; }
  // Lets the next thing happen; false: nothing is left that could.
  bool RunNext();
  void Sleep(int64_t us);
  // What is due meanwhile comes at once after it.
  void StandStill(int64_t us) { now_us_ += us; }

 private:
  std::mt19937_64 random_;
  const int64_t delay_us_max_;
  int64_t now_us_ = 1'000'000'000;
  std::multimap<int64_t, std::function<void()>> agenda_;
  int64_t alarms_ = 0;  // of its entries
};

}  // namespace lorad::sim
