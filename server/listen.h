// Where the daemon listens.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::server {

struct ListenAddress {
  std::string host;  // 127.0.0.0/8 or ::1
  int port = 0;      // 0 = a free one

  std::string ToText() const;  // "127.0.0.1:7070", "[::1]:7070"
};

// "HOST:PORT" with HOST an address or localhost (which is 127.0.0.1). INVALID_ARGUMENT
// (INVALID_LISTEN) for other text; FAILED_PRECONDITION (NOT_LOOPBACK) for a host that others can
// reach: there is no TLS to protect it.
absl::StatusOr<ListenAddress> ParseListen(const std::string& text);

// UNAVAILABLE (PORT_IN_USE) when somebody listens there already, and other errors of bind(2).
absl::Status CheckPortFree(const ListenAddress& address);

}  // namespace lorad::server
