#include "server/errors/grpc_status.h"

#include <map>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/errors/errors.h"

namespace lorad::server {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::ErrorInfo info;
  info.set_reason(Reason(status));
  info.set_domain("lorad");
  std::map<std::string, std::string> details;  // ordered: payloads come in no order of their own
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (absl::ConsumePrefix(&type, "lorad/metadata/")) {
      (*info.mutable_metadata())[std::string(type)] = std::string(payload);
    } else if (absl::StartsWith(type, "type.googleapis.com/")) {
      details.emplace(std::string(type), std::string(payload));
    }
  });
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(std::string(status.message()));
  wire.add_details()->PackFrom(info);
  for (const auto& [type, bytes] : details) {
    google::protobuf::Any* detail = wire.add_details();
    detail->set_type_url(type);
    detail->set_value(bytes);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      wire.SerializeAsString());
}

}  // namespace lorad::server
