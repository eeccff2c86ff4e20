// How long a worker that is alive may say nothing of what it was asked before it counts as lost: a
// multiple of what that should take, and never less than a floor of minutes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "planner/cost/time.h"
#include "server/core/cluster/orders.h"
#include "server/core/events/options.h"

namespace lorad::server {

// The rate at which a model is read from a slow disk.
inline constexpr double kSlowDiskBytesPerSecond = 50e6;
// And that at which a checkpoint is sent over a slow network.
inline constexpr double kSlowNetworkBytesPerSecond = 10e6;

struct Patience {
  double expected_s = 0;
  int64_t limit_us = 0;
};

// What workers were asked and have not answered, in words that begin a sentence about one of them.
struct Asked {
  Patience patience = {.limit_us = std::numeric_limits<int64_t>::max()};
  std::string what = {};
};

// The patience with a group that is being formed: its weights are read.
Patience PatienceToForm(const CoreOptions& options, int64_t weights_bytes);

// The patience with a save of so many bytes that a job waits for.
Patience PatienceToSave(const CoreOptions& options, int64_t bytes);

// The patience with a window: its microbatches, forward and backward. By the measured speed, on
// whatever device, of workers that are that slow beside it (WorkerState), or by the speed that is
// assumed of the group's own, whichever is longer.
Patience PatienceFor(const CoreOptions& options, const WindowWork& work,
                     const planner::TimeModel& measured, double slowness,
                     const planner::TimeModel& assumed);

// Why one that has said nothing of it for so long counts as lost though it is alive; empty: it does
// not.
std::string WhyImpatient(const std::optional<Asked>& asked, int64_t quiet_us);

// Who was overdue is doubtful for so many leases more, 60 s by default. One that is slow again and
// again is overdue anew only after what its next window should take and a lease; if it were trusted
// in between, who is waited for, until when and why would turn with each window. Two leases outlast
// that for windows of up to a lease.
inline constexpr int64_t kDoubtLeases = 2;

// Whether it has taken a lease longer than expected: no job need wait for that where others would
// do.
bool IsOverdue(const CoreOptions& options, const std::optional<Asked>& asked, int64_t quiet_us);

}  // namespace lorad::server
