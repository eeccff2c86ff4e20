#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/transport/listener.h"
#include "worker/transport/socket.h"

namespace lorad::worker {

struct SocketsOptions {
  // Until all stages are connected, or for the coordinator's lease if that is shorter: all of them
  // are asked to join at once, so one that comes later has not heard from its coordinator either.
  int64_t join_ms = 10'000;
  int64_t hello_ms = 2'000;  // until a connection says who it is
  // A peer whose kernel does not answer for so long is gone, or for the coordinator's lease if that
  // is shorter (StageIdentity): a host that is cut off from its neighbour alone holds up its group
  // no longer than one that is cut off from the coordinator.
  int64_t silence_ms = 10'000;
  // Of every wait for a peer that lives: the last resort (transport.h). A window's loads and saves
  // take seconds and minutes.
  int64_t wait_ms = 3'600'000;
};

// The stages of a group over TCP: one connection between neighbours for tensors, one between stage
// 0 and each other stage for notes. A peer that ends is known as soon as its kernel says so, a host
// that is cut off after silence_ms: by TCP's keepalive while nothing is on its way, by its user
// timeout else. That one also ends a connection whose peer takes no bytes, so a tensor is not sent
// before the peer has said that there is room for it (frame.h), and whatever comes is read at once.
// A process that stands still while its kernel answers is for the coordinator to find, whose
// heartbeats it misses.
//
// A stage listens before it knows where the others do, and joins them once it does. The later stage
// dials, and says hello (StageHello); the earlier one answers, or refuses with the reason and goes
// on waiting for the right one: a connection of another epoch, of other stages or numerics, without
// proof that it has the group's secret, that is there already, that says nothing in time, or
// something else.
class SocketsListener : public StageListener {
 public:
  // On a free port of `host`, a name or an address of this machine.
  static absl::StatusOr<std::unique_ptr<SocketsListener>> Open(const std::string& host,
                                                               const SocketsOptions& options = {});
  SocketsListener(const SocketsListener&) = delete;
  SocketsListener& operator=(const SocketsListener&) = delete;

  const std::string& endpoint() const override { return endpoint_; }
  absl::StatusOr<std::unique_ptr<Transport>> Join(
      const StageIdentity& me, const std::vector<std::string>& endpoints) override;
  void Interrupt() override { wake_up_.Set(); }

 private:
  SocketsListener(Listening listening, std::string endpoint, const SocketsOptions& options);

  const FileDescriptor socket_;
  const std::string endpoint_;
  const SocketsOptions options_;
  WakeUp wake_up_;
};

}  // namespace lorad::worker
