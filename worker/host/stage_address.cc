#include "worker/host/stage_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::worker {
namespace {

// All of this machine, all machines, or a group of them.
bool StandsForMany(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const in_addr_t number = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
    return number == INADDR_ANY || number == INADDR_BROADCAST || IN_MULTICAST(number);
  }
  const in6_addr& of_six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&of_six) || IN6_IS_ADDR_MULTICAST(&of_six);
}

// Empty: nothing is wrong.
std::string WhatIsWrong(const std::string& host) {
  if (std::ranges::count(host, ':') == 1 || absl::StrContains(host, '[')) {
    return "is to be a name or an address alone: no brackets, and no port, which is a free one";
  }
  const bool of_host = std::ranges::all_of(host, [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(".-_:%", static_cast<char>(c));
  });
  if (host.empty() || !of_host) return "is no name and no address";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
    return "is no name that this machine knows, and no address";
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  if (StandsForMany(*found->ai_addr))
    return "stands for all addresses or many, and others need one";
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool ours = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
  const int cause = errno;
  if (fd >= 0) close(fd);
  if (ours) return "";
  return absl::StrCat("is of no interface of this machine (", strerror(cause), ")");
}

}  // namespace

absl::Status CheckStageAddress(const std::string& host) {
  const std::string wrong = WhatIsWrong(host);
  if (wrong.empty()) return absl::OkStatus();
  return storage::WithReason(
      absl::StatusCode::kInvalidArgument, "STAGE_ADDRESS",
      absl::StrCat(
          "--stage-address '", absl::CHexEscape(host), "' ", wrong,
          "; give a name or an address of this machine (`ip address` lists them), or leave "
          "it out"));
}

}  // namespace lorad::worker
