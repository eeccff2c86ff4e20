// absl::Status (see errors.h) as the grpc::Status that goes over the wire: code, message, and a
// google.rpc.Status with ErrorInfo{reason, domain "lorad", metadata} first and the further details
// after it.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace lorad::server {

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace lorad::server
