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

absl::Status Ended() {
  return Unavailable("CONNECTION_ENDED", "the connection was ended: call again", 100);
}

}  // namespace

int ConnectionsMax() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int64_t half = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 2;
  return static_cast<int>(std::clamp<int64_t>(half, kConnectionsMin, kConnectionsMax));
}

Connections::Visit::Visit(std::shared_ptr<Connection> connection, std::string worker)
    : connection_(std::move(connection)), worker_(std::move(worker)) {
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

std::shared_ptr<Connections::Connection> Connections::Make(int fd) {
  auto connection = std::make_shared<Connection>();
  connection->fd = fd;
  connection->inode = InodeOf(fd);
  std::lock_guard unseen(connection->mutex);
  connection->idle_since_us = NowUs();
  return connection;
}

void Connections::ForgetClosed(Register& connections) {
  std::erase_if(connections, [](const auto& entry) { return !IsOpen(*entry.second); });
}

bool Connections::EndIdlest(Register& connections) {
  auto idlest = connections.end();
  int64_t since_us = 0;
  for (auto entry = connections.begin(); entry != connections.end(); ++entry) {
    std::lock_guard lock(entry->second->mutex);
    if (entry->second->calls > 0) continue;
    if (idlest == connections.end() || entry->second->idle_since_us < since_us) {
      idlest = entry;
      since_us = entry->second->idle_since_us;
    }
  }
  if (idlest == connections.end()) return false;
  // gRPC sees its end and closes it.
  if (IsOpen(*idlest->second)) shutdown(idlest->second->fd, SHUT_RDWR);
  connections.erase(idlest);
  return true;
}

bool Connections::Admit(int fd, const PeerFinder::Peer& peer) {
  auto connection = Make(fd);
  connection->uid = peer.uid;
  connection->allowed = limits_.allowed.contains(peer.uid);

  std::lock_guard lock(mutex_);
  const int for_all = limits_.total - limits_.for_workers;
  if (static_cast<int>(connections_.size()) >= for_all) ForgetClosed(connections_);
  if (!connection->allowed) {
    const auto is_stranger = [](const auto& entry) {
      return !entry.second->allowed && IsOpen(*entry.second);
    };
    if (std::count_if(connections_.begin(), connections_.end(), is_stranger) >= kStrangersMax) {
      return false;
    }
  }
  if (static_cast<int>(connections_.size()) >= for_all && !EndIdlest(connections_)) {
    if (static_cast<int>(connections_.size()) >= limits_.total || !connection->allowed) {
      return false;
    }
    connection->of_workers_share = true;
  }
  connections_[peer.address] = std::move(connection);
  return true;
}

bool Connections::AdmitWorker(int fd, const std::string& address) {
  std::lock_guard lock(mutex_);
  if (static_cast<int>(workers_.size()) >= limits_.for_workers) ForgetClosed(workers_);
  if (static_cast<int>(workers_.size()) >= limits_.for_workers && !EndIdlest(workers_)) {
    return false;
  }
  workers_[address] = Make(fd);
  return true;
}

void Connections::ReportSilent() {
  std::lock_guard lock(mutex_);
  for (auto entry = workers_.begin(); entry != workers_.end();) {
    const auto& [address, connection] = *entry;
    if (IsOpen(*connection)) {
      ++entry;
      continue;
    }
    if (!connection->has_called) {
      refusals_.Note(
          HostOf(address),
          Error(absl::StatusCode::kUnauthenticated, "TLS_NOT_COME_ABOUT",
                "it left before it had said who it is: it speaks no TLS (lorad-worker does with "
                "--credentials), or its bundle is of another authority than this site's"));
    }
    entry = workers_.erase(entry);
  }
}

absl::StatusOr<Connections::Visit> Connections::Enter(const Caller& caller, Who who) {
  if (caller.door == Door::kLocal) return EnterLocally(caller, who);
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    const auto found = workers_.find(caller.address);
    if (found == workers_.end()) return Ended();
    connection = found->second;
  }
  connection->has_called = true;
  absl::StatusOr<std::string> worker = CheckWorker(caller, who);
  if (!worker.ok()) {
    refusals_.Note(HostOf(caller.address), worker.status());
    return worker.status();
  }
  return Visit(std::move(connection), *std::move(worker));
}

absl::StatusOr<std::string> Connections::CheckWorker(const Caller& caller, Who who) const {
  if (who == Who::kClient || limits_.worker_of == nullptr) {
    return Error(absl::StatusCode::kPermissionDenied, "NOT_SERVED_HERE",
                 "this port is for workers, and serves lorad.worker.v1 alone: clients go to the "
                 "daemon's --listen address");
  }
  if (caller.certificate.empty()) {
    return Error(absl::StatusCode::kPermissionDenied, "CERTIFICATE_MISSING",
                 "a worker on another host shows its certificate: `lorad auth worker NAME` at the "
                 "coordinator makes a bundle with one, and lorad-worker takes it as --credentials");
  }
  return limits_.worker_of(caller.certificate);
}

absl::StatusOr<Connections::Visit> Connections::EnterLocally(const Caller& caller, Who who) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(caller.address);
  if (found == connections_.end()) return Ended();
  if (!found->second->allowed) return NotAllowed(found->second->uid);
  if (found->second->of_workers_share && who == Who::kClient) {
    return LimitExceeded("TOO_MANY_CONNECTIONS", "connections",
                         absl::StrCat("at most ", limits_.total - limits_.for_workers,
                                      " connections of clients are open at once, and all have "
                                      "calls: end one, or try again later"));
  }
  return Visit(found->second, "");
}

}  // namespace lorad::server
