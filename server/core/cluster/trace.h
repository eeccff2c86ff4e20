#pragma once

#include "lorad/v1/cluster.pb.h"
#include "server/core/events/events.h"

namespace lorad::server {

// The bars of what was measured, from 0 on, and those of the same operations run again without
// waits for anything but one another (planner::RunAgain); none of these where the moments make no
// pipeline, as when a cut has dropped some. Pure; O(microbatches * stages^2).
v1::Trace ToTrace(const MeasuredGroup& measured);

}  // namespace lorad::server
