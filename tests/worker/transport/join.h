// The stages of a group joined by listeners, all in this process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/transport/agreement.h"
#include "worker/transport/sockets.h"

namespace lorad::worker {

using Joined = std::vector<absl::StatusOr<std::unique_ptr<Transport>>>;

// On a free port of this machine.
absl::StatusOr<std::unique_ptr<StageListener>> ListenByASocket();

// Every stage joins by its listener, on a thread of its own, as it says it is; `change` may make it
// another. Throws where a listener does not open.
Joined TryJoin(int stages, const OpenListener& open_listener,
               const std::function<void(StageIdentity*)>& change = nullptr);

// Throws where a stage has not joined.
std::vector<std::unique_ptr<Transport>> AllOf(Joined joined);

Joined TryJoinBySockets(int stages, const SocketsOptions& options,
                        const std::function<void(StageIdentity*)>& change = nullptr);

std::vector<std::unique_ptr<Transport>> JoinBySockets(int stages,
                                                      const SocketsOptions& options = {});

// Stages with devices.
Joined TryJoinDevices(const std::vector<DeviceWay>& stages, const SocketsOptions& options = {});

}  // namespace lorad::worker
