#include "worker/host/clock.h"

#include <chrono>

namespace lorad::worker {

Clock SteadyClock() {
  return [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
  };
}

}  // namespace lorad::worker
