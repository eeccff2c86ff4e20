#include "server/errors/grpc_status.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// All of a status must fit into the 8 KiB of headers that clients take, the message twice.
constexpr size_t kMessageBytesMax = 1000;
constexpr size_t kMetadataBytesMax = 200;
constexpr size_t kFieldBytesMax = 100;
constexpr size_t kDescriptionBytesMax = 400;
constexpr size_t kViolationsBytesMax = 3000;
constexpr size_t kDetailBytesMax = 1500;
constexpr char kBadRequest[] = "type.googleapis.com/google.rpc.BadRequest";

// As many violations as fit, the last of them saying how many do not.
google::rpc::BadRequest BadRequestThatFits(const std::vector<FieldViolation>& violations) {
  google::rpc::BadRequest detail;
  for (size_t i = 0; i < violations.size(); ++i) {
    google::rpc::BadRequest::FieldViolation* violation = detail.add_field_violations();
    violation->set_field(Quotable(violations[i].field, kFieldBytesMax));
    violation->set_description(Quotable(violations[i].description, kDescriptionBytesMax));
    if (detail.ByteSizeLong() > kViolationsBytesMax) {
      violation->set_description(absl::StrCat("and ", violations.size() - i, " more"));
      break;
    }
  }
  return detail;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::ErrorInfo info;
  info.set_reason(Reason(status));
  info.set_domain("lorad");
  std::map<std::string, std::string> details;  // ordered: payloads come in no order of their own
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (absl::ConsumePrefix(&type, "lorad/metadata/")) {
      (*info.mutable_metadata())[std::string(type)] =
          Quotable(std::string(payload), kMetadataBytesMax);
    } else if (type == kBadRequest) {
      details.emplace(kBadRequest, BadRequestThatFits(FieldViolations(status)).SerializeAsString());
    } else if (absl::StartsWith(type, "type.googleapis.com/") && payload.size() < kDetailBytesMax) {
      details.emplace(std::string(type), std::string(payload));
    }
  });
  const std::string message = Quotable(std::string(status.message()), kMessageBytesMax);
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(message);
  wire.add_details()->PackFrom(info);
  for (const auto& [type, bytes] : details) {
    google::protobuf::Any* detail = wire.add_details();
    detail->set_type_url(type);
    detail->set_value(bytes);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      wire.SerializeAsString());
}

}  // namespace lorad::server
