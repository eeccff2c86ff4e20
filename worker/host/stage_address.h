// The address at which other stages are to reach a worker, as lorad too is given it.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace lorad::worker {

// Whether `host` (--stage-address) is a name or an address of this machine at which one can listen
// for others: no port, no wildcard, an interface has it. INVALID_ARGUMENT (STAGE_ADDRESS) with what
// is wrong and how to mend it. Opens a socket and closes it; safe from any thread.
absl::Status CheckStageAddress(const std::string& host);

}  // namespace lorad::worker
