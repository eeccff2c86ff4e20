// The connections that are open: who is at their other end, how many there may be, and which of
// them are idle. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/connections/peer.h"

namespace lorad::server {

struct ConnectionLimits {
  int total = 0;
  int for_workers = 0;      // of these; clients get them only while no worker needs them
  std::set<uid_t> allowed;  // users who may speak
};

// The most connections that the process can hold: half of its file descriptors, the rest is for its
// files.
int ConnectionsMax();

class Connections {
 private:
  struct Connection;

 public:
  explicit Connections(ConnectionLimits limits) : limits_(std::move(limits)) {}

  // A new connection; the descriptor stays the caller's. Where there is no place, that one of those
  // without a call ends which has had none for the longest. False: all have calls, or a stranger
  // found too many of his kind; the caller closes it.
  bool Admit(int fd, const PeerFinder::Peer& peer);

  // A call, as long as it lasts.
  class Visit {
   public:
    explicit Visit(std::shared_ptr<Connection> connection);
    Visit(Visit&&) noexcept = default;
    Visit& operator=(Visit&&) = delete;
    ~Visit();

   private:
    std::shared_ptr<Connection> connection_;  // with the register
  };
  enum class Who { kClient, kWorker };
  // PERMISSION_DENIED (NOT_YOUR_DAEMON) for other users; RESOURCE_EXHAUSTED (TOO_MANY_CONNECTIONS)
  // for clients on the places that are kept for workers.
  absl::StatusOr<Visit> Enter(const std::string& grpc_peer, Who who);

 private:
  struct Connection {
    int fd = -1;
    ino_t inode = 0;  // the descriptor may be another's by now
    uid_t uid = 0;
    bool allowed = false;
    bool of_workers_share = false;
    std::mutex mutex;
    int calls ABSL_GUARDED_BY(mutex) = 0;
    int64_t idle_since_us ABSL_GUARDED_BY(mutex) = 0;  // monotonic
  };
  static bool IsOpen(const Connection& connection);
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EndIdlest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimits limits_;
  std::mutex mutex_;
  // Guarded by mutex_; by address of the peer. Shared with visits.
  std::map<std::string, std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server
