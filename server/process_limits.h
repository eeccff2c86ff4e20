#pragma once

#include "absl/status/status.h"

namespace lorad::server {

// Whether this process may have what every daemon needs, however idle: libraries that find out
// later wait for ever, or abort. RESOURCE_EXHAUSTED: TOO_FEW_FILES (descriptors), TOO_FEW_THREADS.
absl::Status CheckProcessLimits();

}  // namespace lorad::server
