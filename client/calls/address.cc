#include "client/calls/address.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lorad::client {

std::string CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0 && address.find('/') == std::string::npos &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535) {
    return "";
  }
  return absl::StrCat("must be HOST:PORT, like 127.0.0.1:7070, with a port from 1 to 65535, got '",
                      address, "'");
}

}  // namespace lorad::client
