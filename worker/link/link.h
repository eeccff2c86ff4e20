#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// The control stream to the coordinator, one at a time. Dial, HangUp and Say are as effects.h
// describes them. Methods return at once and never call the listener before they have.
class Link {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void Said(int64_t stream, v1::CoordinatorMessage message) = 0;
    virtual void Broke(int64_t stream, absl::Status status) = 0;
  };

  virtual ~Link() = default;

  virtual void Dial(int64_t stream, const v1::Hello& hello, Listener* listener) = 0;
  virtual void HangUp() = 0;
  virtual void Say(v1::WorkerMessage message) = 0;

  // Says what waits to be said, and hangs up, within about a second; the listener is not called any
  // more once it returns. The last call.
  virtual void Close() = 0;
};

}  // namespace lorad::worker
