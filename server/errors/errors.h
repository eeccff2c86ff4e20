// Errors as the API's clients see them, made anywhere in the coordinator without gRPC at hand.
//
// An error is an absl::Status whose payloads carry its machine-readable half:
//   "lorad/reason"            UPPER_SNAKE_CASE text; becomes google.rpc.ErrorInfo.reason (domain
//   "lorad") "lorad/metadata/KEY"      text; becomes an entry of ErrorInfo.metadata
//   "type.googleapis.com/..." a serialized google.rpc detail, passed on as it is
// grpc_status.h turns one into a grpc::Status. All functions are pure and safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace lorad::server {

// A fault of one field of a request: its path ("adapter.rank") and what it must be.
struct FieldViolation {
  std::string field;
  std::string description;

  bool operator==(const FieldViolation&) const = default;
};

using ErrorMetadata = std::vector<std::pair<std::string, std::string>>;

absl::Status Error(absl::StatusCode code, const std::string& reason, const std::string& message,
                   const ErrorMetadata& metadata = {});

// INVALID_ARGUMENT (INVALID_FIELDS) with all violations as google.rpc.BadRequest. `what` names the
// thing that has them: "job". REQUIRES: at least one violation.
absl::Status InvalidFields(const std::string& what, const std::vector<FieldViolation>& violations);

// The violations that InvalidFields put in; empty for any other status.
std::vector<FieldViolation> FieldViolations(const absl::Status& status);

// DATA_LOSS (STORE_CORRUPT): `what` is stored ("job 'job-ab12'"), what is wrong with it, and what
// to do.
absl::Status StoreCorrupt(const std::string& what, const std::string& wrong = "cannot be read");

// NOT_FOUND (JOB_NOT_FOUND, ...): `kind` is "job", "dataset", "model", "adapter", "checkpoint", ...
absl::Status NotFound(const std::string& kind, const std::string& name);

// ALREADY_EXISTS (JOB_EXISTS, ...).
absl::Status AlreadyExists(const std::string& kind, const std::string& name);

// ALREADY_EXISTS (REQUEST_ID_REUSED): the request_id came before with other content.
absl::Status RequestIdReused(const std::string& request_id);

// FAILED_PRECONDITION with google.rpc.PreconditionFailure; `subject` is what stands in the way:
// "job job-ab12".
absl::Status PreconditionFailed(const std::string& reason, const std::string& subject,
                                const std::string& message);

// RESOURCE_EXHAUSTED with google.rpc.QuotaFailure: a limit of the service; `subject` is what is
// limited.
absl::Status LimitExceeded(const std::string& reason, const std::string& subject,
                           const std::string& message);

// RESOURCE_EXHAUSTED (QUOTA_EXCEEDED) with a violation of google.rpc.QuotaFailure for each limit:
// its subject ("team=math queued_jobs") and how it stands. The message is these and the remedy.
// REQUIRES: at least one.
absl::Status QuotaExceeded(const std::vector<std::pair<std::string, std::string>>& limits,
                           const std::string& remedy);

// UNAVAILABLE with google.rpc.RetryInfo.
absl::Status Unavailable(const std::string& reason, const std::string& message, int64_t retry_ms);

// The reason of a status that is not OK: its payload, or a word for its code ("INTERNAL") where it
// has none.
std::string Reason(const absl::Status& status);

// The status under another message, with its code and payloads.
absl::Status WithMessage(const absl::Status& status, const std::string& message);

// The status with "lorad/reason" set to `reason` unless it has one; a status of storage/ says what
// went wrong but not to whom.
absl::Status WithReason(absl::Status status, const std::string& reason);

// Text that protobuf reads back.
bool IsUtf8(const std::string& text);

// `text` as valid UTF-8 of at most `bytes_max` bytes, cut with "..." where it is longer. Errors
// quote what clients and files hold, and travel in headers, which are limited (8 KiB).
std::string Quotable(const std::string& text, size_t bytes_max);

}  // namespace lorad::server
