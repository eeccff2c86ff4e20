#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

// What both sides of a connection must have alike, but for the stage and the lease.
struct StageIdentity {
  int64_t epoch = 0;
  int stage = 0;
  int stages = 1;
  std::string numerics_id;
  std::string secret = {};  // of the group, proved and never said
  // For how long the coordinator waits for a worker that is silent. It is not said.
  int64_t lease_ms = std::numeric_limits<int64_t>::max();
};

// A stage that the others can reach, before they have. Threads: Interrupt may come from any, the
// rest from one.
class StageListener {
 public:
  virtual ~StageListener() = default;

  // Where the others reach it: "HOST:PORT".
  virtual const std::string& endpoint() const = 0;

  // Connects this stage with the others, whose endpoints stand by stage. FAILED_PRECONDITION: the
  // other side refuses, and why; UNAVAILABLE, DEADLINE_EXCEEDED: a stage is not there;
  // CANCELLED: interrupted.
  virtual absl::StatusOr<std::unique_ptr<Transport>> Join(
      const StageIdentity& me, const std::vector<std::string>& endpoints) = 0;

  // Ends a Join, now or later.
  virtual void Interrupt() = 0;
};

// One for a group that is being formed.
using OpenListener = std::function<absl::StatusOr<std::unique_ptr<StageListener>>()>;

}  // namespace lorad::worker
