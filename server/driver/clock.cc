#include "server/driver/clock.h"

#include <chrono>

namespace lorad::server {
namespace {

template <class Source>
int64_t Microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Source::now().time_since_epoch())
      .count();
}

class SystemClock final : public Clock {
 public:
  Moment Now() override {
    return {Microseconds<std::chrono::steady_clock>(), Microseconds<std::chrono::system_clock>()};
  }
};

}  // namespace

Clock& RealClock() {
  static SystemClock* const clock = new SystemClock;
  return *clock;
}

}  // namespace lorad::server
