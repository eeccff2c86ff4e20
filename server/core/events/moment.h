// Time, as the core's events give it.
#pragma once

#include <cstdint>

namespace lorad::server {

inline constexpr int64_t kMillisecond = 1000;  // in microseconds

// A moment by both clocks. Leases, timers and back-off are counted by `steady_us`, which nobody can
// set and which never goes back; `wall_us` stamps what people read, and counts what outlives a
// process (turn.h).
struct Moment {
  int64_t steady_us = 0;  // since some point before the coordinator's start
  int64_t wall_us = 0;    // since 1970 UTC
};

}  // namespace lorad::server
