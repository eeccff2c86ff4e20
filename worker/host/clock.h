#pragma once

#include <functional>

namespace lorad::worker {

// Milliseconds since some fixed moment, never going back. Time enters through constructors; it
// changes what is reported, never a result.
using Clock = std::function<double()>;

Clock SteadyClock();

}  // namespace lorad::worker
