#ifndef LORAD_WORKER_RPC_STATUS_H_
#define LORAD_WORKER_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lorad::worker {

// The two count their codes alike.
inline absl::Status FromRpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::string_view(status.error_message()));
}

}  // namespace lorad::worker

#endif  // LORAD_WORKER_RPC_STATUS_H_
