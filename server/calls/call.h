// Small things that every service does with a request. Only for the services' own .cc files.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/errors/errors.h"
#include "server/validation/names.h"

namespace lorad::server {

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
