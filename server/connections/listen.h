// Where the daemon listens.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::server {

struct ListenAddress {
  std::string host;                 // an address
  int port = 0;                     // 0 = a free one
  const char* option = "--listen";  // where it was given, for messages

  std::string ToText() const;  // "127.0.0.1:7070", "[::1]:7070"
};

// "HOST:PORT" with HOST an address or localhost (which is 127.0.0.1). INVALID_ARGUMENT
// (INVALID_LISTEN) for other text; FAILED_PRECONDITION (NOT_LOOPBACK) for a host that others can
// reach: no TLS protects it.
absl::StatusOr<ListenAddress> ParseListen(const std::string& text);
// The same for --worker-listen, which others may reach: TLS protects it.
absl::StatusOr<ListenAddress> ParseWorkerListen(const std::string& text);

// The user of --allow-user: a name of this machine's, or a number. INVALID_ARGUMENT (NO_SUCH_USER).
absl::StatusOr<uid_t> ParseUser(const std::string& text);

// A socket that listens there, not blocking; a port that was 0 is filled in. The caller closes it.
// UNAVAILABLE (PORT_IN_USE, CANNOT_LISTEN).
absl::StatusOr<int> OpenListeningSocket(ListenAddress* address);

// UNAVAILABLE (PORT_IN_USE) when somebody listens there already, and other errors of bind(2).
absl::Status CheckPortFree(const ListenAddress& address);

}  // namespace lorad::server
