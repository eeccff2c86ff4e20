// Where the driver's time comes from.
#pragma once

#include "server/core/events/moment.h"

namespace lorad::server {

class Clock {
 public:
  virtual ~Clock() = default;
  // Any thread.
  virtual Moment Now() = 0;
};

// CLOCK_MONOTONIC and CLOCK_REALTIME. Never freed.
Clock& RealClock();

}  // namespace lorad::server
