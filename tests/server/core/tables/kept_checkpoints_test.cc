#include "server/core/rules/kept_checkpoints.h"

#include <catch2/catch.hpp>

#include "server/errors/errors.h"

namespace lorad::server {
namespace {

std::string Said(const records::JobRecord& record, int64_t step) {
  const absl::Status status = NoCheckpoint(record, step);
  CHECK(Reason(status) == "CHECKPOINT_NOT_FOUND");
  return std::string(status.message());
}

TEST_CASE("who asks for a checkpoint that is not there learns which are") {
  records::JobRecord record;
  record.mutable_job()->set_name("a");
  record.mutable_job()->set_state(v1::Job::RUNNING);
  CHECK(Said(record, 0) == "job 'a' has no checkpoint yet");
  CHECK(Said(record, 7) == "job 'a' has no checkpoint of step 7; it has none yet");
  record.mutable_job()->set_state(v1::Job::SUCCEEDED);
  CHECK(Said(record, 0) == "job 'a' has no checkpoint");
  CHECK(Said(record, 7) == "job 'a' has no checkpoint of step 7; it has none");
  for (const int64_t step : {2, 4, 6, 8, 10}) record.add_checkpoint_steps(step);
  CHECK(Said(record, 7) == "job 'a' has no checkpoint of step 7; it has steps 2, 4, 6, 8, 10");
  for (const int64_t step : {12, 14}) record.add_checkpoint_steps(step);
  CHECK(Said(record, 7) ==
        "job 'a' has no checkpoint of step 7; it has steps 6, 8, 10, 12, 14 and 2 older ones");
}

}  // namespace
}  // namespace lorad::server
