// What passes does not fail a job, as stories.
#include <algorithm>

#include "server/core/failures.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

std::vector<v1::Event> EventsOf(World& world, const std::string& job, const std::string& reason) {
  std::vector<v1::Event> events = world.Events(job);
  std::erase_if(events, [&](const v1::Event& event) { return event.reason() != reason; });
  return events;
}

TEST_CASE("failures by kind: what nobody is sure of passes") {
  struct Row {
    const char* reason;
    FailureKind kind;
  };
  for (const Row& row :
       {Row{"NOT_FINITE", FailureKind::kUser}, Row{"MODEL_CHANGED", FailureKind::kUser},
        Row{"MODEL_NOT_FOUND", FailureKind::kPassing}, Row{"DISK_FULL", FailureKind::kPassing},
        Row{"WHAT_NOBODY_KNOWS", FailureKind::kPassing},
        Row{"CHECKPOINT_INVALID", FailureKind::kServer},
        Row{"WINDOW_NOT_PLANNED", FailureKind::kServer}}) {
    CAPTURE(row.reason);
    CHECK(KindOf(row.reason) == row.kind);
  }
  CHECK(ReasonOf(absl::ResourceExhaustedError("no space left"), "X") == "DISK_FULL");
  CHECK(ReasonOf(absl::InternalError("too many open files"), "X") == "X");
}

TEST_CASE("a disk that is full while rows are checked: the job waits, is told, and goes on") {
  auto world = MakeWorld();
  world->ConnectWorkers();
  world->FailChecks("train", absl::ResourceExhaustedError("cannot write: no space left"));
  const std::string job = world->Submit(World::NewJob());
  world->Settle();
  CHECK(world->StateOf(job) == Job::VALIDATING);
  const std::string why = world->Job(job).queue().why();
  CHECK(why.starts_with("DISK_FULL: cannot write: no space left; tried again at "));
  // Tried after 1, 2, 4, .. and then 60 seconds, told of in one event.
  world->Sleep(600'000'000);
  const std::vector<v1::Event> events = EventsOf(*world, job, "DISK_FULL");
  REQUIRE(events.size() == 1);
  CHECK(events[0].count() > 10);
  CHECK(events[0].count() < 20);
  CHECK(world->StateOf(job) == Job::VALIDATING);
  world->FailChecks("train", absl::OkStatus());
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK_FALSE(world->Job(job).has_error());
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
