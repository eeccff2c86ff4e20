#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace lorad::worker {

// A call's end as an absl::Status, for decisions by its code and for the log: its message begins
// with the reason where the coordinator gave one (it is the payload kReasonPayload too), and ends
// with the fields that are wrong.
absl::Status FromRpc(const grpc::Status& status);

}  // namespace lorad::worker
