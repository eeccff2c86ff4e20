#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/transport/transport.h"

namespace lorad::worker {

// How the stages of one process are joined. The defaults pass everything on at once.
struct InProcessOptions {
  enum class Moment {
    kAtOnce,    // as soon as both sides have handed over their memory
    kAtLast,    // when one of the two waits: what is changed too early, or read, shows
    kShuffled,  // the one or the other, by the seed
  };
  Moment moment = Moment::kAtOnce;
  int64_t delay_us_max = 0;  // a tensor or a note comes this much later at most, by the seed
  uint64_t seed = 0;
  int64_t timeout_ms = 30'000;  // of every wait: in one process a stage that is late is stuck
};

// Transports of `stages` stages in one process, stage 0's first. Each belongs to a thread of its
// own; the others see one that ends as a stage that is gone.
std::vector<std::unique_ptr<Transport>> JoinInProcess(int stages, const InProcessOptions& options);

}  // namespace lorad::worker
