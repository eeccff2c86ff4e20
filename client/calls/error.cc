#include "client/calls/error.h"

#include <grpcpp/support/status.h>

#include <cassert>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lorad::client {
namespace {

constexpr absl::string_view kReason = "lorad/reason";
constexpr absl::string_view kViolations = "lorad/violations";

absl::Status Make(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                  absl::string_view violations) {
  absl::Status status(code, message);
  status.SetPayload(kReason, absl::Cord(reason));
  if (!violations.empty()) status.SetPayload(kViolations, absl::Cord(violations));
  return status;
}

constexpr absl::string_view kMetadata = "lorad/metadata/";

struct Details {
  std::string reason;
  std::map<std::string, std::string> metadata;
  std::string violations;
};

Details ReadDetails(const grpc::Status& status) {
  Details details;
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    if (any.UnpackTo(&info)) {
      details.reason = info.reason();
      details.metadata = {info.metadata().begin(), info.metadata().end()};
    }
    if (!any.UnpackTo(&bad)) continue;
    for (const auto& violation : bad.field_violations()) {
      absl::StrAppend(&details.violations, details.violations.empty() ? "" : "\n",
                      violation.field(), ": ", violation.description());
    }
  }
  return details;
}

// A name that somebody gave may hold what a terminal would obey.
std::string OneLine(absl::string_view text) {
  std::string line = absl::StrReplaceAll(text, {{"\r", ""}, {"\n", " "}});
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return line;
}

}  // namespace

absl::Status Error(absl::string_view reason, absl::string_view message,
                   absl::string_view violations) {
  return Make(absl::StatusCode::kUnknown, reason, message, violations);
}

absl::Status FromRpc(const grpc::Status& status, absl::string_view server) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  Details details = ReadDetails(status);
  std::string message = status.error_message();
  if (details.reason.empty() && code == absl::StatusCode::kUnavailable) {
    details.reason = "UNREACHABLE";
    const bool refused = absl::StrContains(message, "onnection refused");
    // What had been written decides which of the two it is.
    const bool closed = absl::StrContains(message, "failed to connect") &&
                        (absl::StrContains(message, "Socket closed") ||
                         absl::StrContains(message, "Connection reset by peer"));
    message = absl::StrCat(
        "no lorad answers at ", server, " (", refused ? "connection refused" : message, "); ",
        closed ? "what listens there closes the connection, as a port for workers does "
                 "(--worker-listen) or a daemon that ends: name the daemon's --listen address with "
                 "--server HOST:PORT"
               : "start one with `lorad serve --data-dir DIR`, or name another with --server "
                 "HOST:PORT");
  }
  if (details.reason.empty() && code == absl::StatusCode::kResourceExhausted &&
      absl::StrContains(message, "message larger than max")) {
    details.reason = "REQUEST_TOO_LARGE";
    message = absl::StrCat("the daemon takes no request of that size (", message, ")");
  }
  if (details.reason.empty() && code == absl::StatusCode::kUnimplemented) {
    message = absl::StrCat("what answers at ", server, " does not know this call (", message,
                           "); is it a lorad of this version?");
  }
  if (details.reason.empty()) details.reason = absl::StatusCodeToString(code);
  absl::Status made = Make(code, details.reason, message, details.violations);
  for (const auto& [key, value] : details.metadata) {
    made.SetPayload(absl::StrCat(kMetadata, key), absl::Cord(value));
  }
  return made;
}

std::string ReasonOf(const absl::Status& status) {
  const auto reason = status.GetPayload(kReason);
  return reason.has_value() ? std::string(*reason) : absl::StatusCodeToString(status.code());
}

std::string MetadataOf(const absl::Status& status, absl::string_view key) {
  const auto value = status.GetPayload(absl::StrCat(kMetadata, key));
  return value.has_value() ? std::string(*value) : "";
}

void PrintError(const absl::Status& status, std::ostream& out) {
  assert(!status.ok());
  out << "error: " << ReasonOf(status) << ": " << OneLine(status.message()) << "\n";
  const auto violations = status.GetPayload(kViolations);
  if (!violations.has_value()) return;
  for (absl::string_view line : absl::StrSplit(std::string(*violations), '\n')) {
    out << "  " << OneLine(line) << "\n";
  }
}

}  // namespace lorad::client
