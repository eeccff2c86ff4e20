// A device that does everything as late as it may: operations are remembered and run only when the
// host waits for them. What the caller changes, frees or reads too early gives other results.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lorad::worker {

std::unique_ptr<kernels::Backend> MakeLateBackend(std::unique_ptr<kernels::Backend> backend);

}  // namespace lorad::worker
