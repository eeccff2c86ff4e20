// The process at the other end of a connection over loopback: the kernel knows.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace lorad::server {

// Asks the kernel (sock_diag) for the owners of sockets. Not thread-safe.
class PeerFinder {
 public:
  // UNAVAILABLE (PEER_CHECK_UNAVAILABLE) where the kernel cannot be asked.
  static absl::StatusOr<PeerFinder> Open();
  PeerFinder(PeerFinder&& other) noexcept;
  PeerFinder& operator=(PeerFinder&&) = delete;
  ~PeerFinder();

  struct Peer {
    std::string address;  // "127.0.0.1:40000", "[::1]:40000"
    uid_t uid = 0;
  };
  // The peer whose socket, on this machine, the accepted TCP connection `fd` came from. NOT_FOUND
  // where it is gone already.
  absl::StatusOr<Peer> Find(int fd);

 private:
  explicit PeerFinder(int netlink) : netlink_(netlink) {}
  absl::StatusOr<uid_t> Ask(const void* request, size_t bytes);

  int netlink_;
  uint32_t sequence_ = 0;
};

// The address of the peer of `fd`, as Peer's; "" where it is gone already.
std::string AddressOfPeer(int fd);

}  // namespace lorad::server
