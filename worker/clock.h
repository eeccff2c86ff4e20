#ifndef LORAD_WORKER_CLOCK_H_
#define LORAD_WORKER_CLOCK_H_

#include <functional>

namespace lorad::worker {

// Milliseconds since some fixed moment, never going back. Time enters through constructors; it
// changes what is reported, never a result.
using Clock = std::function<double()>;

Clock SteadyClock();

}  // namespace lorad::worker

#endif  // LORAD_WORKER_CLOCK_H_
