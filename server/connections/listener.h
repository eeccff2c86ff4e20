// A door of the daemon: accepts connections, at the local one asks the kernel who comes, and hands
// on whom the register admits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "server/connections/connections.h"
#include "server/connections/listen.h"

namespace lorad::server {

class Listener {
 public:
  // Listens on `address` (port 0: a free one is chosen and filled in); nobody is accepted yet.
  // UNAVAILABLE (PORT_IN_USE, CANNOT_LISTEN, PEER_CHECK_UNAVAILABLE).
  static absl::StatusOr<std::unique_ptr<Listener>> Open(ListenAddress* address, Door door,
                                                        Connections& connections);
  ~Listener();

  // `on_connection` takes the descriptor over; called on the listener's thread.
  void Start(std::function<void(int fd)> on_connection);
  // Accepts nobody from here on. Returns when the thread has ended.
  void Stop();

 private:
  Listener(int socket, int wake, std::optional<PeerFinder> finder, Connections& connections);
  bool Admit(int fd);
  void Run();
  void Receive(int fd);

  const int socket_;
  const int wake_;                    // an eventfd
  std::optional<PeerFinder> finder_;  // none at the workers' door
  Connections& connections_;
  std::function<void(int fd)> on_connection_;
  std::thread thread_;
};

}  // namespace lorad::server
