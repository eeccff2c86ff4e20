#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "worker/link/credentials.h"

namespace lorad::worker {

// A connection is asked for a sign of life after so long without one, and given up when none came
// for so long: a coordinator may stand still for more than a minute, and no worker is to leave its
// group for that.
inline constexpr int kKeepaliveMs = 10'000;
inline constexpr int kKeepaliveWaitMs = 90'000;

// A connection of its own to the coordinator: over TLS with `credentials` as they are now, or
// without where they are null.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& coordinator,
                                           const Credentials* credentials);

// The end of a call in words that say what to do, where it is TLS that did not come about.
absl::Status ExplainTls(const absl::Status& status, const Credentials* credentials);

// Whether a coordinator at `address` ("HOST:PORT") is on this host by its name: only there does it
// speak without TLS.
bool IsLoopback(const std::string& address);

}  // namespace lorad::worker
