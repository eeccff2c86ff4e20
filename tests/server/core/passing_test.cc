// What passes does not fail a job, as stories.
#include <algorithm>

#include "server/core/rules/failures.h"
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
       {Row{"NOT_FINITE", FailureKind::kUser}, Row{"MODEL_UNSUPPORTED", FailureKind::kUser},
        Row{"MODEL_CHANGED", FailureKind::kPassing}, Row{"DATASET_CHANGED", FailureKind::kPassing},
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
  world->StartWorkers();
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

absl::Status Because(const std::string& reason, const std::string& message) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload("lorad/reason", absl::Cord(reason));
  return status;
}

Job LongJob(const std::string& dataset) {
  Job job = World::NewJob();
  job.set_training_dataset(dataset);
  job.mutable_training()->set_epochs(100);
  return job;
}

TEST_CASE("one job's rows cannot be read: it waits and goes on, its neighbour never stops") {
  auto world = MakeWorld();
  world->AddDataset("other", 12);
  world->StartWorkers();
  const std::string neighbour = world->Submit(LongJob("train"));
  const std::string job = world->Submit(LongJob("other"));
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  world->FailRows("other", Because("DATASET_UNREADABLE", "d.jsonl: cannot open"));
  SECTION("every time that they are asked for") {}
  SECTION("nor can their tokens be made again") {
    world->FailRows("other", Because("ROWS_NOT_READY", "its tokens are made again"));
    world->FailChecks("other", Because("DATASET_UNREADABLE", "d.jsonl: cannot open"));
  }
  world->RunUntilState(job, Job::QUEUED);
  world->RunUntil([&] { return HasEvent(*world, job, "DATASET_UNREADABLE"); });
  CHECK(world->Job(job).queue().why().starts_with("DATASET_UNREADABLE: d.jsonl: cannot open"));
  const int64_t step = world->Job(neighbour).step();
  world->RunUntil([&] { return world->Job(neighbour).step() >= step + 3; });
  CHECK(world->StateOf(neighbour) == Job::RUNNING);
  world->FailRows("other", absl::OkStatus());
  world->FailChecks("other", absl::OkStatus());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK(world->Job(neighbour).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("hours without rows make few events and few tries") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob("train"));
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  SECTION("of a job that joins its group again and again") {
    world->FailRows("train", Because("DATASET_UNREADABLE", "cannot open"));
  }
  SECTION("of a job whose tokens are awaited") {
    world->FailRows("train", Because("ROWS_NOT_READY", "cannot open"));
    world->FailChecks("train", Because("DATASET_UNREADABLE", "cannot open"));
  }
  world->Sleep(int64_t{2} * 3600 * 1'000'000);
  const std::vector<v1::Event> events = EventsOf(*world, job, "DATASET_UNREADABLE");
  REQUIRE(events.size() == 1);
  CHECK(events[0].count() > 100);
  CHECK(events[0].count() < 140);
  CHECK(world->Events(job).size() < 30);
  world->FailRows("train", absl::OkStatus());
  world->FailChecks("train", absl::OkStatus());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("what does not pass fails the one job, by its kind") {
  struct Row {
    const char* reason;
    v1::JobError::Category category;
  };
  for (const Row& row : {Row{"MODEL_UNSUPPORTED", v1::JobError::USER},
                         Row{"CONTENT_INVALID", v1::JobError::SERVER}}) {
    CAPTURE(row.reason);
    auto world = MakeWorld();
    world->AddDataset("other", 12);
    world->StartWorkers();
    const std::string neighbour = world->Submit(LongJob("train"));
    const std::string running = world->Submit(LongJob("other"));
    world->RunUntil([&] { return world->Job(running).step() >= 3; });
    world->FailRows("other", Because(row.reason, "it is another"));
    world->FailChecks("valid", Because(row.reason, "it is another"));
    const std::string validating = world->Submit(LongJob("valid"));
    for (const std::string& job : {running, validating}) {
      world->RunUntilState(job, Job::FAILED);
      CHECK(world->Job(job).error().reason() == row.reason);
      CHECK(world->Job(job).error().category() == row.category);
    }
    world->RunUntilState(neighbour, Job::SUCCEEDED);
    CHECK(world->Job(neighbour).attempts() == 1);
  }
}

TEST_CASE("who only asks is told to ask again where the failure passes") {
  auto world = MakeWorld();
  CreateJob validate;
  validate.job = World::NewJob();
  validate.validate_only = true;
  EstimateJob estimate;
  estimate.job = World::NewJob();
  world->FailChecks("train", absl::ResourceExhaustedError("no space left"));
  for (const Request& request : {Request(validate), Request(estimate)}) {
    const absl::Status status = world->Call(request).status();
    CHECK(absl::IsUnavailable(status));
    CHECK(Reason(status) == "DISK_FULL");
    CHECK(status.GetPayload("type.googleapis.com/google.rpc.RetryInfo").has_value());
  }
  world->FailChecks("train", Because("MODEL_UNSUPPORTED", "it is another"));
  CHECK(absl::IsFailedPrecondition(world->Call(validate).status()));
  world->FailChecks("train", absl::OkStatus());
  CHECK(world->Get<Job>(validate).total_steps() == 6);
}

TEST_CASE("a check that nobody waits for any more is cancelled, and one that is awaited is not") {
  auto world = MakeWorld();
  world->AddDataset("big", 12);
  world->SlowChecks("big", 20'000'000);
  world->StartWorkers();
  const std::string first = world->Submit(LongJob("big"));
  const std::string second = world->Submit(LongJob("big"));
  world->Get<Job>(Named<v1::CancelJobRequest>(first));
  CHECK(world->cancelled_checks() == 0);
  world->Get<Job>(Named<v1::CancelJobRequest>(second));
  CHECK(world->cancelled_checks() == 1);
  // One that comes before the check has ended waits for another.
  const std::string third = world->Submit(LongJob("big"));
  CHECK(world->StateOf(third) == Job::VALIDATING);
  world->RunUntilState(third, Job::SUCCEEDED);
}

}  // namespace
}  // namespace lorad::server
