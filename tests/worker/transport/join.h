// The stages of a group joined by sockets, all in this process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "worker/transport/sockets.h"

namespace lorad::worker {

using Joined = std::vector<absl::StatusOr<std::unique_ptr<Transport>>>;

// Every stage joins on a thread of its own, as it says it is; `change` may make it another.
Joined TryJoinBySockets(int stages, const SocketsOptions& options,
                        const std::function<void(StageIdentity*)>& change = nullptr);

// Throws where a stage does not join.
std::vector<std::unique_ptr<Transport>> JoinBySockets(int stages,
                                                      const SocketsOptions& options = {});

}  // namespace lorad::worker
