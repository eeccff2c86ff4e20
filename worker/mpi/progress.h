// What the thread that calls MPI stands at, for the one that ends the process when a call does not
// return.
#pragma once

#include <atomic>
#include <cstdint>

namespace lorad::worker {

struct Progress {
  enum class Stage {
    kAsksServer,   // begins, or says or looks up a name: the site's server is to answer
    kAwaitsOther,  // until another stage connects, as long as the worker likes
    kRelays,
  };
  std::atomic<Stage> stage = Stage::kAsksServer;
  std::atomic<int64_t> calls = 0;  // that have returned: counts up
};

}  // namespace lorad::worker
