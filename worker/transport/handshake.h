// How the connections between stages are opened (sockets.h has the rules).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/transport/socket.h"
#include "worker/transport/sockets.h"

namespace lorad::worker {

// By purpose and the stage on the other side.
using Connections = std::map<std::pair<v1::StageHello::Purpose, int>, FileDescriptor>;

// Dials the stages before this one, then accepts those behind it, until all are there.
absl::StatusOr<Connections> Shake(const FileDescriptor& listening, const StageIdentity& me,
                                  const std::vector<std::string>& endpoints,
                                  const SocketsOptions& options, const WakeUp& wake_up);

}  // namespace lorad::worker
