// Small things that every service does with a gRPC call. Only for the services' own .cc files.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"
#include "server/validation/names.h"

namespace lorad::server {

// The client's deadline; InfiniteFuture where it gave none.
inline absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

// What a unary call answers.
template <typename Message>
grpc::Status Answer(absl::StatusOr<Message> result, Message* response) {
  if (!result.ok()) return ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

// Collects what is wrong with a request's fields.
class RequestCheck {
 public:
  RequestCheck& Field(const std::string& field, const std::string& wrong) {
    if (!wrong.empty()) violations_.push_back({field, wrong});
    return *this;
  }
  absl::Status status() const {
    return violations_.empty() ? absl::OkStatus() : InvalidFields("request", violations_);
  }

 private:
  std::vector<FieldViolation> violations_;
};

// Checks a list's page_size, and fills in the default for 0.
template <typename Request>
absl::Status CompletePage(Request& request, int max, int default_size) {
  absl::Status status =
      RequestCheck()
          .Field("page_size", CheckPageSize(request.page_size(), max, default_size))
          .status();
  if (request.page_size() == 0) request.set_page_size(default_size);
  return status;
}

// A message as bytes that are equal for equal content (maps in order of their keys).
template <typename Message>
std::string DeterministicBytes(const Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace lorad::server
