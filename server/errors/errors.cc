#include "server/errors/errors.h"

#include <algorithm>
#include <cassert>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

namespace lorad::server {
namespace {

constexpr char kReason[] = "lorad/reason";
constexpr char kMetadata[] = "lorad/metadata/";
constexpr char kBadRequest[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kPreconditionFailure[] = "type.googleapis.com/google.rpc.PreconditionFailure";
constexpr char kQuotaFailure[] = "type.googleapis.com/google.rpc.QuotaFailure";
constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";

// Limits that a message names; errors travel in headers.
constexpr size_t kLimitsSaidMax = 4;

// Bytes of the UTF-8 character at `at`, 0 if there is none. As protobuf reads it: no surrogates, no
// overlong forms, nothing past U+10FFFF.
size_t CharacterBytes(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xc2 && first < 0xe0 ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  if (at + bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool past_the_end = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || past_the_end ? 0 : bytes;
}

template <typename Detail>
void SetDetail(absl::Status& status, const char* type, const Detail& detail) {
  status.SetPayload(type, absl::Cord(detail.SerializeAsString()));
}

}  // namespace

absl::Status Error(absl::StatusCode code, const std::string& reason, const std::string& message,
                   const ErrorMetadata& metadata) {
  assert(code != absl::StatusCode::kOk);
  absl::Status status(code, message);
  status.SetPayload(kReason, absl::Cord(reason));
  for (const auto& [key, value] : metadata) {
    status.SetPayload(absl::StrCat(kMetadata, key), absl::Cord(value));
  }
  return status;
}

absl::Status InvalidFields(const std::string& what, const std::vector<FieldViolation>& violations) {
  assert(!violations.empty());
  std::string message =
      violations.size() == 1
          ? absl::StrCat("a field of the ", what, " is not valid")
          : absl::StrCat(violations.size(), " fields of the ", what, " are not valid");
  google::rpc::BadRequest detail;
  for (const FieldViolation& violation : violations) {
    google::rpc::BadRequest::FieldViolation* field = detail.add_field_violations();
    field->set_field(violation.field);
    field->set_description(violation.description);
  }
  absl::Status status = Error(absl::StatusCode::kInvalidArgument, "INVALID_FIELDS", message);
  SetDetail(status, kBadRequest, detail);
  return status;
}

std::vector<FieldViolation> FieldViolations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  google::rpc::BadRequest detail;
  if (auto payload = status.GetPayload(kBadRequest);
      payload && detail.ParseFromString(std::string(*payload))) {
    for (const auto& field : detail.field_violations()) {
      violations.push_back({field.field(), field.description()});
    }
  }
  return violations;
}

absl::Status StoreCorrupt(const std::string& what, const std::string& wrong) {
  return Error(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
               absl::StrCat("the stored ", what, " ", wrong,
                            "; put a copy of the data directory in its place"));
}

absl::Status NotFound(const std::string& kind, const std::string& name) {
  return Error(absl::StatusCode::kNotFound, absl::StrCat(absl::AsciiStrToUpper(kind), "_NOT_FOUND"),
               absl::StrCat("there is no ", kind, " '", name, "'"), {{kind, name}});
}

absl::Status AlreadyExists(const std::string& kind, const std::string& name) {
  return Error(absl::StatusCode::kAlreadyExists,
               absl::StrCat(absl::AsciiStrToUpper(kind), "_EXISTS"),
               absl::StrCat("the ", kind, " '", name,
                            "' exists already: choose another name or delete that one first"),
               {{kind, name}});
}

absl::Status RequestIdReused(const std::string& request_id) {
  return Error(absl::StatusCode::kAlreadyExists, "REQUEST_ID_REUSED",
               absl::StrCat("request_id '", request_id,
                            "' came before with other content: use a new one for each new request"),
               {{"request_id", request_id}});
}

absl::Status PreconditionFailed(const std::string& reason, const std::string& subject,
                                const std::string& message) {
  absl::Status status = Error(absl::StatusCode::kFailedPrecondition, reason, message);
  google::rpc::PreconditionFailure detail;
  google::rpc::PreconditionFailure::Violation* violation = detail.add_violations();
  violation->set_type(reason);
  violation->set_subject(subject);
  violation->set_description(message);
  SetDetail(status, kPreconditionFailure, detail);
  return status;
}

absl::Status LimitExceeded(const std::string& reason, const std::string& subject,
                           const std::string& message) {
  absl::Status status = Error(absl::StatusCode::kResourceExhausted, reason, message);
  google::rpc::QuotaFailure detail;
  google::rpc::QuotaFailure::Violation* violation = detail.add_violations();
  violation->set_subject(subject);
  violation->set_description(message);
  SetDetail(status, kQuotaFailure, detail);
  return status;
}

absl::Status QuotaExceeded(const std::vector<std::pair<std::string, std::string>>& limits,
                           const std::string& remedy) {
  assert(!limits.empty());
  google::rpc::QuotaFailure detail;
  std::string message;
  size_t said = 0;
  for (const auto& [subject, description] : limits) {
    google::rpc::QuotaFailure::Violation* violation = detail.add_violations();
    violation->set_subject(subject);
    violation->set_description(description);
    if (++said > kLimitsSaidMax) continue;
    absl::StrAppend(&message, message.empty() ? "" : "; ", description);
  }
  absl::Status status = Error(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
                              absl::StrCat(message, ": ", remedy));
  SetDetail(status, kQuotaFailure, detail);
  return status;
}

absl::Status Unavailable(const std::string& reason, const std::string& message, int64_t retry_ms) {
  absl::Status status = Error(absl::StatusCode::kUnavailable, reason, message);
  google::rpc::RetryInfo detail;
  detail.mutable_retry_delay()->set_seconds(retry_ms / 1000);
  detail.mutable_retry_delay()->set_nanos(static_cast<int32_t>(retry_ms % 1000 * 1'000'000));
  SetDetail(status, kRetryInfo, detail);
  return status;
}

std::string Reason(const absl::Status& status) {
  if (auto payload = status.GetPayload(kReason)) return std::string(*payload);
  return absl::StatusCodeToString(status.code());
}

absl::Status WithMessage(const absl::Status& status, const std::string& message) {
  absl::Status result(status.code(), message);
  status.ForEachPayload([&result](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

absl::Status WithReason(absl::Status status, const std::string& reason) {
  if (!status.ok() && !status.GetPayload(kReason)) status.SetPayload(kReason, absl::Cord(reason));
  return status;
}

bool IsUtf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

std::string Quotable(const std::string& text, size_t bytes_max) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    if (result.size() + std::max<size_t>(bytes, 1) > bytes_max) {
      while (!result.empty() && result.size() + 3 > bytes_max) {
        while ((static_cast<unsigned char>(result.back()) & 0xc0) == 0x80) result.pop_back();
        result.pop_back();
      }
      return result + "...";
    }
    result += bytes > 0 ? text.substr(at, bytes) : "?";
    at += std::max<size_t>(bytes, 1);
  }
  return result;
}

}  // namespace lorad::server
