#include "worker/transport/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lorad::worker {
namespace {

constexpr int kBacklog = 64;
constexpr int64_t kBytesOfCall = int64_t{1} << 20;

absl::Status Failed(std::string_view what) {
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", std::strerror(errno)));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int flags,
                                  int type = SOCK_STREAM) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("no address for ", host, ": ", gai_strerror(error)));
  }
  return Addresses(found, &freeaddrinfo);
}

absl::Status Prepare(int fd, int64_t silence_ms) {
  const auto set = [fd](int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
  };
  const int seconds = static_cast<int>(std::max<int64_t>(silence_ms / 1000, 1));
  const bool done = fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && set(IPPROTO_TCP, TCP_NODELAY, 1) &&
                    set(SOL_SOCKET, SO_KEEPALIVE, 1) && set(IPPROTO_TCP, TCP_KEEPIDLE, 1) &&
                    set(IPPROTO_TCP, TCP_KEEPINTVL, 1) && set(IPPROTO_TCP, TCP_KEEPCNT, seconds) &&
                    set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence_ms));
  return done ? absl::OkStatus() : Failed("cannot prepare a socket");
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.Release();
  }
  return *this;
}

int FileDescriptor::Release() { return std::exchange(fd_, -1); }

WakeUp::WakeUp() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void WakeUp::Set() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
}

void WakeUp::Clear() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(fd_.get(), &count, sizeof(count));
}

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string given(text);
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", given, "' is not HOST:PORT"));
  }
  Endpoint endpoint{std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
  if (endpoint.host.front() == '[' && endpoint.host.back() == ']') {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  return endpoint;
}

absl::StatusOr<Listening> Listen(const std::string& host) {
  const auto addresses = Resolve(host, "0", AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& address = **addresses;
  Listening listening;
  listening.socket =
      FileDescriptor(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = listening.socket.get();
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (fd < 0 || bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return Failed(absl::StrCat("cannot listen on ", host));
  }
  listening.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return listening;
}

absl::StatusOr<FileDescriptor> Accept(int listening, int64_t silence_ms) {
  FileDescriptor accepted(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted.open()) return Failed("cannot accept a connection");
  const absl::Status status = Prepare(accepted.get(), silence_ms);
  if (!status.ok()) return status;
  return accepted;
}

absl::StatusOr<FileDescriptor> Dial(const std::string& endpoint, int64_t silence_ms,
                                    Deadline deadline, const WakeUp& wake_up) {
  const auto parsed = ParseEndpoint(endpoint);
  if (!parsed.ok()) return parsed.status();
  const auto addresses = Resolve(parsed->host, parsed->port, 0);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& address = **addresses;
  FileDescriptor dialled(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!dialled.open()) return Failed("cannot open a socket");
  absl::Status status = Prepare(dialled.get(), silence_ms);
  if (!status.ok()) return status;
  if (connect(dialled.get(), address.ai_addr, address.ai_addrlen) == 0) return dialled;
  if (errno != EINPROGRESS) return Failed(absl::StrCat("cannot reach ", endpoint));
  status = Await(dialled.get(), POLLOUT, deadline, wake_up);
  if (!status.ok()) return status;
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(dialled.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return dialled;
  errno = error;
  return Failed(absl::StrCat("cannot reach ", endpoint));
}

std::string PeerOf(int fd) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&peer), length, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool v6 = peer.ss_family == AF_INET6;
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

// A connected datagram socket has its route looked up, and with it its own address.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& endpoint) {
  const auto parsed = ParseEndpoint(endpoint);
  if (!parsed.ok()) return parsed.status();
  const auto addresses = Resolve(parsed->host, parsed->port, 0, SOCK_DGRAM);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& address = **addresses;
  const FileDescriptor asking(socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  char text[NI_MAXHOST] = {};
  if (!asking.open() || connect(asking.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      getsockname(asking.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return Failed(absl::StrCat("no address of this machine leads to ", endpoint));
  }
  return std::string(text);
}

absl::Status Await(int fd, short events, Deadline deadline, const WakeUp& wake_up) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::DeadlineExceededError("nothing came in time");
    pollfd fds[] = {{fd, events, 0}, {wake_up.fd(), POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(left.count()) + 1);
    if (ready < 0 && errno != EINTR) return Failed("cannot wait for a socket");
    if (fds[1].revents != 0) return absl::CancelledError("interrupted");
    if (ready > 0 && fds[0].revents != 0) return absl::OkStatus();
  }
}

absl::StatusOr<int64_t> ReadSome(int fd, char* to, int64_t bytes) {
  const ssize_t got = recv(fd, to, static_cast<size_t>(std::min(bytes, kBytesOfCall)), 0);
  if (got > 0) return got;
  if (got == 0) return absl::UnavailableError("it has closed the connection");
  if (errno == EAGAIN || errno == EINTR) return 0;
  return Failed("it cannot be read from");
}

absl::StatusOr<int64_t> WriteSome(int fd, const char* from, int64_t bytes) {
  const ssize_t put =
      send(fd, from, static_cast<size_t>(std::min(bytes, kBytesOfCall)), MSG_NOSIGNAL);
  if (put >= 0) return put;
  if (errno == EAGAIN || errno == EINTR) return 0;
  return Failed("it cannot be written to");
}

}  // namespace lorad::worker
