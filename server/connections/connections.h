// The connections that are open: who is at their other end, how many there may be, and which of
// them are idle, at both doors. Any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/connections/caller.h"
#include "server/connections/peer.h"
#include "server/connections/refusals.h"

namespace lorad::server {

struct ConnectionLimits {
  int total = 0;
  int for_workers = 0;      // of these; clients get them only while no worker needs them
  std::set<uid_t> allowed;  // users who may speak
  // The worker that a certificate names, or why it is none's; null: there is no door for workers.
  std::function<absl::StatusOr<std::string>(const std::string& certificate)> worker_of;
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
  // The same at the workers' door, which has as many places as are kept for workers at the other.
  bool AdmitWorker(int fd, const std::string& address);
  // Reports to the log the connections at the workers' door that have ended without a call: such a
  // peer could not say who it is.
  void ReportSilent();

  // A call, as long as it lasts.
  class Visit {
   public:
    Visit(std::shared_ptr<Connection> connection, std::string worker);
    Visit(Visit&&) noexcept = default;
    Visit& operator=(Visit&&) = delete;
    ~Visit();

    // Who calls, by its certificate; "" = somebody of this host.
    const std::string& worker() const { return worker_; }

   private:
    std::shared_ptr<Connection> connection_;  // with the register
    std::string worker_;
  };
  enum class Who { kClient, kWorker };
  // PERMISSION_DENIED (NOT_YOUR_DAEMON) for other users; RESOURCE_EXHAUSTED (TOO_MANY_CONNECTIONS)
  // for clients on the places that are kept for workers. At the workers' door, with a line in the
  // log: PERMISSION_DENIED (CERTIFICATE_MISSING; NOT_SERVED_HERE for clients), and what worker_of
  // says.
  absl::StatusOr<Visit> Enter(const Caller& caller, Who who);

  Refusals& refusals() { return refusals_; }

 private:
  struct Connection {
    int fd = -1;
    ino_t inode = 0;  // the descriptor may be another's by now
    uid_t uid = 0;
    bool allowed = false;
    bool of_workers_share = false;
    std::atomic<bool> has_called = false;
    std::mutex mutex;
    int calls ABSL_GUARDED_BY(mutex) = 0;
    int64_t idle_since_us ABSL_GUARDED_BY(mutex) = 0;  // monotonic
  };
  // By address of the peer. Shared with visits.
  using Register = std::map<std::string, std::shared_ptr<Connection>>;
  static bool IsOpen(const Connection& connection);
  static std::shared_ptr<Connection> Make(int fd);
  static void ForgetClosed(Register& connections);
  static bool EndIdlest(Register& connections);
  absl::StatusOr<Visit> EnterLocally(const Caller& caller, Who who);
  absl::StatusOr<std::string> CheckWorker(const Caller& caller, Who who) const;

  const ConnectionLimits limits_;
  Refusals refusals_;
  std::mutex mutex_;
  Register connections_ ABSL_GUARDED_BY(mutex_);
  Register workers_ ABSL_GUARDED_BY(mutex_);  // at their door
};

}  // namespace lorad::server
