#include "server/connections/connections.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int kStrangersMax = 16;  // connections of users who get a refusal
constexpr int kConnectionsMin = 16;

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ino_t InodeOf(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

absl::Status NotAllowed(uid_t uid) {
  return Error(absl::StatusCode::kPermissionDenied, "NOT_YOUR_DAEMON",
               absl::StrCat("this daemon belongs to user ", geteuid(), ", and you are user ", uid,
                            ": ask its owner to start it with --allow-user ", uid),
               {{"uid", absl::StrCat(uid)}});
}

}  // namespace

int ConnectionsMax() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int64_t half = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 2;
  return static_cast<int>(std::clamp<int64_t>(half, kConnectionsMin, kConnectionsMax));
}

Connections::Visit::Visit(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {
  std::lock_guard lock(connection_->mutex);
  connection_->calls += 1;
}

Connections::Visit::~Visit() {
  if (connection_ == nullptr) return;
  std::lock_guard lock(connection_->mutex);
  connection_->calls -= 1;
  connection_->idle_since_us = NowUs();
}

bool Connections::IsOpen(const Connection& connection) {
  return InodeOf(connection.fd) == connection.inode;
}

void Connections::ForgetClosed() {
  std::erase_if(connections_, [](const auto& entry) { return !IsOpen(*entry.second); });
}

bool Connections::EndIdlest() {
  auto idlest = connections_.end();
  int64_t since_us = 0;
  for (auto entry = connections_.begin(); entry != connections_.end(); ++entry) {
    std::lock_guard lock(entry->second->mutex);
    if (entry->second->calls > 0) continue;
    if (idlest == connections_.end() || entry->second->idle_since_us < since_us) {
      idlest = entry;
      since_us = entry->second->idle_since_us;
    }
  }
  if (idlest == connections_.end()) return false;
  // gRPC sees its end and closes it.
  if (IsOpen(*idlest->second)) shutdown(idlest->second->fd, SHUT_RDWR);
  connections_.erase(idlest);
  return true;
}

bool Connections::Admit(int fd, const PeerFinder::Peer& peer) {
  auto connection = std::make_shared<Connection>();
  connection->fd = fd;
  connection->inode = InodeOf(fd);
  connection->uid = peer.uid;
  connection->allowed = limits_.allowed.contains(peer.uid);
  {
    std::lock_guard unseen(connection->mutex);
    connection->idle_since_us = NowUs();
  }

  std::lock_guard lock(mutex_);
  const int for_all = limits_.total - limits_.for_workers;
  if (static_cast<int>(connections_.size()) >= for_all) ForgetClosed();
  if (!connection->allowed) {
    const auto is_stranger = [](const auto& entry) {
      return !entry.second->allowed && IsOpen(*entry.second);
    };
    if (std::count_if(connections_.begin(), connections_.end(), is_stranger) >= kStrangersMax) {
      return false;
    }
  }
  if (static_cast<int>(connections_.size()) >= for_all && !EndIdlest()) {
    if (static_cast<int>(connections_.size()) >= limits_.total || !connection->allowed) {
      return false;
    }
    connection->of_workers_share = true;
  }
  connections_[peer.address] = std::move(connection);
  return true;
}

absl::StatusOr<Connections::Visit> Connections::Enter(const std::string& grpc_peer, Who who) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(PeerAddress(grpc_peer));
  if (found == connections_.end()) {
    return Unavailable("CONNECTION_ENDED", "the connection was ended: call again", 100);
  }
  if (!found->second->allowed) return NotAllowed(found->second->uid);
  if (found->second->of_workers_share && who == Who::kClient) {
    return LimitExceeded("TOO_MANY_CONNECTIONS", "connections",
                         absl::StrCat("at most ", limits_.total - limits_.for_workers,
                                      " connections of clients are open at once, and all have "
                                      "calls: end one, or try again later"));
  }
  return Visit(found->second);
}

}  // namespace lorad::server
