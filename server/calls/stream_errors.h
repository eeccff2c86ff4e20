// How streams end that were waited for too long.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lorad::server {

// DEADLINE_EXCEEDED (FIRST_MESSAGE_LATE).
absl::Status FirstMessageLate(absl::Duration wait);
// DEADLINE_EXCEEDED (STREAM_IDLE).
absl::Status StreamIdle(absl::Duration wait);

}  // namespace lorad::server
