#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/transport/socket.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

// What both sides of a connection must say alike, but for the stage.
struct StageIdentity {
  int64_t epoch = 0;
  int stage = 0;
  int stages = 1;
  std::string numerics_id;
};

struct SocketsOptions {
  int64_t join_ms = 10'000;     // until all stages are connected
  int64_t hello_ms = 2'000;     // until a connection says who it is
  int64_t timeout_ms = 30'000;  // of every wait behind that; and a host that is silent is gone
};

// The stages of a group over TCP: one connection between neighbours for tensors, one between stage
// 0 and each other stage for notes. A peer that ends is known as soon as its kernel says so.
//
// A stage listens before it knows where the others do, and joins them once it does. The later stage
// dials, and says hello (StageHello); the earlier one answers, or refuses with the reason and goes
// on waiting for the right one: a connection of another epoch, of other stages or numerics, that is
// there already, that says nothing in time, or something else.
// Threads: Interrupt may come from any, the rest from one.
class SocketsListener {
 public:
  // On a free port of `host`, a name or an address of this machine.
  static absl::StatusOr<std::unique_ptr<SocketsListener>> Open(const std::string& host,
                                                               const SocketsOptions& options = {});
  SocketsListener(const SocketsListener&) = delete;
  SocketsListener& operator=(const SocketsListener&) = delete;

  // "HOST:PORT", for the others.
  const std::string& endpoint() const { return endpoint_; }

  // Connects this stage with the others, whose endpoints stand by stage. FAILED_PRECONDITION: the
  // other side refuses, and why; UNAVAILABLE, DEADLINE_EXCEEDED: a stage is not there;
  // CANCELLED: interrupted.
  absl::StatusOr<std::unique_ptr<Transport>> Join(const StageIdentity& me,
                                                  const std::vector<std::string>& endpoints);
  // Ends a Join, now or later.
  void Interrupt() { wake_up_.Set(); }

 private:
  SocketsListener(Listening listening, std::string endpoint, const SocketsOptions& options);

  const FileDescriptor socket_;
  const std::string endpoint_;
  const SocketsOptions options_;
  WakeUp wake_up_;
};

}  // namespace lorad::worker
