#include "server/connections/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

absl::Status NotAnAddress(const std::string& option, const std::string& text) {
  return Error(
      absl::StatusCode::kInvalidArgument, "INVALID_LISTEN",
      absl::StrCat(option, " must be ADDRESS:PORT like 127.0.0.1:7070 or [::1]:7070, got '", text,
                   "'"));
}

bool IsAddress(const std::string& host) {
  in6_addr any;
  return inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

bool IsLoopback(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<ListenAddress> Parse(const char* option, const std::string& text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  address.option = option;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return NotAnAddress(option, text);
  }
  address.host = text.substr(0, colon);
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return NotAnAddress(option, text);
  }
  if (!IsAddress(address.host)) return NotAnAddress(option, text);
  return address;
}

}  // namespace

std::string ListenAddress::ToText() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<ListenAddress> ParseListen(const std::string& text) {
  absl::StatusOr<ListenAddress> address = Parse("--listen", text);
  if (!address.ok() || IsLoopback(address->host)) return address;
  return Error(absl::StatusCode::kFailedPrecondition, "NOT_LOOPBACK",
               absl::StrCat("will not listen on ", address->host,
                            ": others could reach it without credentials. Listen on 127.0.0.1, and "
                            "use an SSH tunnel from elsewhere; workers on other hosts come by "
                            "--worker-listen"));
}

absl::StatusOr<ListenAddress> ParseWorkerListen(const std::string& text) {
  return Parse("--worker-listen", text);
}

absl::StatusOr<uid_t> ParseUser(const std::string& text) {
  uid_t uid;
  if (absl::SimpleAtoi(text, &uid)) return uid;
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> buffer(1 << 16);
  getpwnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->pw_uid;
  return Error(
      absl::StatusCode::kInvalidArgument, "NO_SUCH_USER",
      absl::StrCat("--allow-user must be a user of this machine or a number, got '", text, "'"));
}

absl::StatusOr<int> OpenListeningSocket(ListenAddress* address) {
  sockaddr_storage storage = {};
  socklen_t length;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (address->host.find(':') == std::string::npos) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(address->port));
    inet_pton(AF_INET, address->host.c_str(), &v4->sin_addr);
    length = sizeof(*v4);
  } else {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(address->port));
    inet_pton(AF_INET6, address->host.c_str(), &v6->sin6_addr);
    length = sizeof(*v6);
  }
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int yes = 1;  // connections of a daemon before that linger do not count
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  auto* const name = reinterpret_cast<sockaddr*>(&storage);
  if (fd >= 0 && bind(fd, name, length) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, name, &length) == 0) {
    address->port = ntohs(storage.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
    return fd;
  }
  const int cause = errno;
  if (fd >= 0) close(fd);
  if (cause == EADDRINUSE) {
    return Error(absl::StatusCode::kUnavailable, "PORT_IN_USE",
                 absl::StrCat("port ", address->port, " on ", address->host,
                              " is in use: is a daemon running already? Choose another with ",
                              address->option, " (port 0 = a free one)"));
  }
  return Error(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
               absl::StrCat("cannot listen on ", address->ToText(), ": ", strerror(cause)));
}

absl::Status CheckPortFree(const ListenAddress& address) {
  ListenAddress probe = address;
  const absl::StatusOr<int> fd = OpenListeningSocket(&probe);
  if (fd.ok()) close(*fd);
  return fd.status();
}

}  // namespace lorad::server
