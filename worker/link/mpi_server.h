#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/link/credentials.h"

namespace lorad::worker {

// Asks the coordinator for the URI of the site's ompi-server, as of now, on a connection of its
// own. `epoch`: of the group whose stage this worker has. `silent`: the URI of one that has not
// answered, so that the coordinator starts another; else empty. Within two seconds. UNAVAILABLE:
// the server is being started, or nobody answers; FAILED_PRECONDITION: the site has none, or the
// group is another one. Threads: any.
absl::StatusOr<std::string> FindMpiServer(const std::string& coordinator,
                                          const Credentials* credentials, int64_t epoch,
                                          const std::string& silent);

}  // namespace lorad::worker
