#include "client/calls/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lorad::client {
namespace {

// A name or an address, one of IPv6 in brackets: gRPC reads a colon in a host as it likes.
bool IsHost(absl::string_view host) {
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  return !host.empty() && std::ranges::all_of(host, [&](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '/' && c != '[' && c != ']' &&
           (c != ':' || brackets);
  });
}

bool IsPort(absl::string_view port) {
  int number = 0;
  return std::ranges::all_of(port, absl::ascii_isdigit) && absl::SimpleAtoi(port, &number) &&
         number >= 1 && number <= 65535;
}

bool IsIpv6(const std::string& host) {
  in6_addr address = {};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

std::string CheckAddress(const std::string& address) {
  const std::size_t colon = std::min(address.rfind(':'), address.size());
  const std::string host = address.substr(0, colon);
  const std::string port = address.substr(std::min(colon + 1, address.size()));
  if (IsHost(host) && IsPort(port)) return "";
  return absl::StrCat(
      "must be HOST:PORT, like 127.0.0.1:7070, with a port from 1 to 65535, got '", address, "'",
      IsIpv6(host) ? absl::StrCat("; an address of IPv6 stands in brackets, [", host, "]:", port)
                   : "");
}

}  // namespace lorad::client
