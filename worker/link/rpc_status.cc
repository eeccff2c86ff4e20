#include "worker/link/rpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "storage/files/errors.h"

namespace lorad::worker {

absl::Status FromRpc(const grpc::Status& status) {
  std::string message = status.error_message();
  std::string reason;
  google::rpc::Status rich;
  if (rich.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : rich.details()) {
      google::rpc::ErrorInfo info;
      google::rpc::BadRequest bad;
      if (any.UnpackTo(&info)) {
        reason = info.reason();
        message = absl::StrCat(reason, ": ", message);
      }
      if (!any.UnpackTo(&bad)) continue;
      for (const auto& wrong : bad.field_violations()) {
        absl::StrAppend(&message, "; ", wrong.field(), " ", wrong.description());
      }
    }
  }
  // The two count their codes alike.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), message);
  if (!reason.empty()) {
    result.SetPayload(storage::Absl(storage::kReasonPayload), absl::Cord(reason));
  }
  return result;
}

}  // namespace lorad::worker
