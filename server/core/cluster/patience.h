// How long a worker that is alive may say nothing of what it was asked before it counts as lost: a
// multiple of what that should take, and never less than a floor of minutes.
#pragma once

#include <cstdint>

#include "planner/cost/time.h"
#include "server/core/cluster/orders.h"
#include "server/core/events/options.h"

namespace lorad::server {

// The rate at which a model is read from a slow disk.
inline constexpr double kSlowDiskBytesPerSecond = 50e6;

struct Patience {
  double expected_s = 0;
  int64_t limit_us = 0;
};

// The patience with a group that is being formed: its weights are read.
Patience PatienceToForm(const CoreOptions& options, int64_t weights_bytes);

// The patience with a window: its microbatches, forward and backward. By the measured speed, on
// whatever device, or by the speed that is assumed of the group's own, whichever is longer.
Patience PatienceFor(const CoreOptions& options, const WindowWork& work,
                     const planner::TimeModel& measured, const planner::TimeModel& assumed);

}  // namespace lorad::server
