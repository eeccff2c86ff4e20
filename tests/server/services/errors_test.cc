#include "server/errors/errors.h"

#include <catch2/catch.hpp>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/errors/grpc_status.h"

namespace lorad::server {
namespace {

google::rpc::Status Wire(const grpc::Status& status) {
  google::rpc::Status wire;
  REQUIRE(wire.ParseFromString(status.error_details()));
  return wire;
}

template <typename Detail>
Detail DetailOf(const absl::Status& status) {
  const google::rpc::Status wire = Wire(ToGrpc(status));
  for (const google::protobuf::Any& any : wire.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  FAIL("the status has no such detail");
  return {};
}

TEST_CASE("every error carries its reason, domain and metadata") {
  struct Case {
    absl::Status status;
    grpc::StatusCode code;
    std::string reason;
    std::string message;
  };
  const Case cases[] = {
      {NotFound("job", "job-x"), grpc::NOT_FOUND, "JOB_NOT_FOUND", "there is no job 'job-x'"},
      {AlreadyExists("dataset", "d"), grpc::ALREADY_EXISTS, "DATASET_EXISTS",
       "the dataset 'd' exists already: choose another name or delete that one first"},
      {RequestIdReused("r1"), grpc::ALREADY_EXISTS, "REQUEST_ID_REUSED",
       "request_id 'r1' came before with other content: use a new one for each new request"},
      {PreconditionFailed("IN_USE", "job job-x", "in use"), grpc::FAILED_PRECONDITION, "IN_USE",
       "in use"},
      {LimitExceeded("TOO_MANY_WATCHES", "watches", "too many"), grpc::RESOURCE_EXHAUSTED,
       "TOO_MANY_WATCHES", "too many"},
      {Unavailable("STOPPING", "stops", 1500), grpc::UNAVAILABLE, "STOPPING", "stops"},
      {absl::InternalError("broken"), grpc::INTERNAL, "INTERNAL", "broken"},
      {WithReason(absl::InvalidArgumentError("bad"), "BAD_HEADER"), grpc::INVALID_ARGUMENT,
       "BAD_HEADER", "bad"},
      {WithReason(NotFound("job", "x"), "OTHER"), grpc::NOT_FOUND, "JOB_NOT_FOUND",
       "there is no job 'x'"},
  };
  for (const Case& c : cases) {
    const grpc::Status status = ToGrpc(c.status);
    CHECK(status.error_code() == c.code);
    CHECK(status.error_message() == c.message);
    CHECK(Wire(status).message() == c.message);
    CHECK(Wire(status).code() == c.code);
    const auto info = DetailOf<google::rpc::ErrorInfo>(c.status);
    CHECK(info.reason() == c.reason);
    CHECK(info.domain() == "lorad");
  }
  CHECK(DetailOf<google::rpc::ErrorInfo>(NotFound("job", "job-x")).metadata().at("job") == "job-x");
  CHECK(ToGrpc(absl::OkStatus()).ok());
}

TEST_CASE("violations travel all at once") {
  const std::vector<FieldViolation> violations = {{"adapter.rank", "must be 1"},
                                                  {"priority", "no"}};
  const absl::Status status = InvalidFields("job", violations);
  CHECK(status.message() == "2 fields of the job are not valid");
  CHECK(Reason(status) == "INVALID_FIELDS");
  CHECK(FieldViolations(status) == violations);
  CHECK(FieldViolations(absl::InternalError("x")).empty());
  const auto detail = DetailOf<google::rpc::BadRequest>(status);
  REQUIRE(detail.field_violations_size() == 2);
  CHECK(detail.field_violations(0).field() == "adapter.rank");
  CHECK(detail.field_violations(1).description() == "no");
}

TEST_CASE("further details say what stands in the way, and when to try again") {
  const auto precondition = DetailOf<google::rpc::PreconditionFailure>(
      PreconditionFailed("IN_USE", "job job-x", "in use"));
  CHECK(precondition.violations(0).type() == "IN_USE");
  CHECK(precondition.violations(0).subject() == "job job-x");
  const auto quota =
      DetailOf<google::rpc::QuotaFailure>(LimitExceeded("TOO_MANY", "watches", "at most 3"));
  CHECK(quota.violations(0).subject() == "watches");
  const auto retry = DetailOf<google::rpc::RetryInfo>(Unavailable("STOPPING", "stops", 1500));
  CHECK(retry.retry_delay().seconds() == 1);
  CHECK(retry.retry_delay().nanos() == 500'000'000);
}

TEST_CASE("another message keeps reason and details") {
  const absl::Status status = WithMessage(InvalidFields("job", {{"a", "b"}}), "other");
  CHECK(status.message() == "other");
  CHECK(Reason(status) == "INVALID_FIELDS");
  CHECK(FieldViolations(status).size() == 1);
}

TEST_CASE("a status fits into headers, and is valid text") {
  std::vector<FieldViolation> violations;
  for (int i = 0; i < 200; ++i) violations.push_back({"labels", std::string(500, 'x')});
  const absl::Status status = WithMessage(InvalidFields("job", violations), std::string(9999, 'y'));
  const grpc::Status wire = ToGrpc(status);
  CHECK(wire.error_message().size() + wire.error_details().size() < 7000);
  const auto detail = DetailOf<google::rpc::BadRequest>(status);
  const int shown = detail.field_violations_size();
  CHECK(shown > 5);
  CHECK(detail.field_violations(shown - 1).description() ==
        "and " + std::to_string(200 - shown + 1) + " more");
  CHECK(ToGrpc(absl::InternalError("a\xff z")).error_message() == "a? z");
}

TEST_CASE("quotable text") {
  const std::tuple<std::string, size_t, std::string> cases[] = {
      {"abc", 3, "abc"},
      {"abcdef", 5, "ab..."},
      {"a\xc3\xa4", 9, "a\xc3\xa4"},
      {"a\xc3\xa4\xc3\xa4z", 5, "a..."},
      {"\xc3", 9, "?"},
      {"\xff\xfe", 9, "??"},
      {"\xf0\x9f\x98\x80!", 9, "\xf0\x9f\x98\x80!"},
      {"", 0, ""},
      {"\xed\x9f\xbf\xee\x80\x80", 9, "\xed\x9f\xbf\xee\x80\x80"},
      {"\xed\xa0\x80", 9, "???"},       // half of a surrogate pair
      {"\xe0\x80\xaf", 9, "???"},       // overlong
      {"\xf0\x80\x80\xaf", 9, "????"},  // likewise
      {"\xf4\x90\x80\x80", 9, "????"},  // past the last character
  };
  for (const auto& [text, bytes_max, expected] : cases) {
    CHECK(Quotable(text, bytes_max) == expected);
    google::rpc::ErrorInfo info, read;
    info.set_reason(Quotable(text, bytes_max));
    CHECK(read.ParseFromString(info.SerializeAsString()));
    CHECK(IsUtf8(text) == (text.size() > bytes_max || Quotable(text, bytes_max) == text));
  }
}

}  // namespace
}  // namespace lorad::server
