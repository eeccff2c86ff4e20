#include "client/calls/error.h"

#include <grpcpp/support/status.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lorad::client {
namespace {

std::string Printed(const absl::Status& status) {
  std::ostringstream out;
  PrintError(status, out);
  return out.str();
}

TEST_CASE("a rich error is printed with its reason and a line for each violation") {
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_JOB");
  google::rpc::BadRequest bad;
  auto* rank = bad.add_field_violations();
  rank->set_field("adapter.rank");
  rank->set_description("must be between 1 and 512, got 0");
  auto* epochs = bad.add_field_violations();
  epochs->set_field("training.epochs");
  epochs->set_description("must be at least 1, got -1");
  google::rpc::Status rich;
  rich.add_details()->PackFrom(info);
  rich.add_details()->PackFrom(bad);
  const grpc::Status answer(grpc::StatusCode::INVALID_ARGUMENT, "2 fields are\nwrong",
                            rich.SerializeAsString());
  CHECK(Printed(FromRpc(answer, "h:1")) ==
        "error: INVALID_JOB: 2 fields are wrong\n"
        "  adapter.rank: must be between 1 and 512, got 0\n"
        "  training.epochs: must be at least 1, got -1\n");
}

TEST_CASE("an error without details is printed with its code") {
  const grpc::Status answer(grpc::StatusCode::NOT_FOUND, "no job job-1");
  CHECK(Printed(FromRpc(answer, "h:1")) == "error: NOT_FOUND: no job job-1\n");
}

TEST_CASE("what a terminal would obey is not printed") {
  const grpc::Status answer(grpc::StatusCode::NOT_FOUND, "no job 'a\x1b[31m\a\tb'");
  CHECK(Printed(FromRpc(answer, "h:1")) == "error: NOT_FOUND: no job 'a?[31m??b'\n");
}

TEST_CASE("a daemon that is not there is named, and how to start one") {
  const grpc::Status answer(grpc::StatusCode::UNAVAILABLE,
                            "failed to connect to all addresses; Connection refused");
  const absl::Status status = FromRpc(answer, "127.0.0.1:7070");
  CHECK(ReasonOf(status) == "UNREACHABLE");
  CHECK(Printed(status).find("no lorad answers at 127.0.0.1:7070 (connection refused)") !=
        std::string::npos);
}

TEST_CASE("of a port that closes the connection is said what it may be") {
  for (const std::string how : {"Socket closed", "recvmsg:Connection reset by peer"}) {
    const grpc::Status answer(grpc::StatusCode::UNAVAILABLE,
                              "failed to connect to all addresses; last error: " + how);
    const std::string said = Printed(FromRpc(answer, "127.0.0.1:7071"));
    CHECK(said.find("a port for workers does (--worker-listen)") != std::string::npos);
    CHECK(said.find("lorad serve") == std::string::npos);
  }
  const grpc::Status broken(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  CHECK(Printed(FromRpc(broken, "h:1")).find("lorad serve") != std::string::npos);
}

TEST_CASE("a good answer is no error") { CHECK(FromRpc(grpc::Status::OK, "h:1").ok()); }

}  // namespace
}  // namespace lorad::client
