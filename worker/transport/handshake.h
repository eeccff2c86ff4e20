// How the connections between stages are opened (sockets.h has the rules), and the transport over
// those that are open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

// INVALID_ARGUMENT where these are no stage of a group, or endpoints of another one.
absl::Status CheckStage(const StageIdentity& me, const std::vector<std::string>& endpoints);

// A connection towards an earlier stage on which nothing has been said. Errors as Dial's.
using DialStage =
    std::function<absl::StatusOr<FileDescriptor>(v1::StageHello::Purpose, int stage, Deadline)>;

// Dials the stages before this one, then accepts those behind it, until all are there. Errors name
// the other stage and its endpoint.
absl::StatusOr<Connections> Shake(const FileDescriptor& listening, const StageIdentity& me,
                                  const std::vector<std::string>& endpoints, const DialStage& dial,
                                  const SocketsOptions& options, const WakeUp& wake_up);

// The stage's transport. `at_end` is called when it ends, behind the last byte, with the
// connections shut down.
std::unique_ptr<Transport> TransportOver(Connections connections, const StageIdentity& me,
                                         const SocketsOptions& options,
                                         std::function<void()> at_end = nullptr);

}  // namespace lorad::worker
