// What a worker reports that it cannot do, by the table of failures, as stories.
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

worker::v1::WorkerMessage GroupFailed(const std::string& reason, const std::string& message) {
  worker::v1::WorkerMessage said;
  said.mutable_report()->mutable_group_failed()->set_reason(reason);
  said.mutable_report()->mutable_group_failed()->set_message(message);
  return said;
}

TEST_CASE("a group whose model is not there yet: its jobs wait, are told, and go on") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  const std::string job = world->Submit(World::NewJob());
  const std::string neighbour = world->Submit(World::NewJob());
  world->RunUntilState(neighbour, Job::PREPARING);
  world->Settle();
  world->worker(0).Lie(GroupFailed("MODEL_NOT_FOUND", "there is no config.json in /share/m"));
  world->RunUntilState(job, Job::QUEUED);
  CHECK(world->StateOf(neighbour) == Job::QUEUED);
  CHECK(world->Job(job).queue().why().starts_with(
      "MODEL_NOT_FOUND: there is no config.json in /share/m; tried again at "));
  world->worker(0).Hang(false);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK_FALSE(HasEvent(*world, job, "WORKER_LOST"));
  world->CheckInvariants();
}

TEST_CASE("a worker whose host lacks a model's files rests, and its jobs go to another") {
  for (const char* reason : {"MODEL_DIFFERS", "MODEL_NOT_FOUND"}) {
    INFO(reason);
    WorldOptions options;
    options.workers = 2;
    auto world = MakeWorld(options);
    world->StartWorkers();
    world->Settle();
    world->worker(0).Hang(true);
    world->worker(1).Hang(true);
    const std::string job = world->Submit(World::NewJob());
    world->RunUntilState(job, Job::PREPARING);
    world->Settle();
    const int at = world->worker(0).epoch() != 0 ? 0 : 1;
    world->worker(1 - at).Hang(false);
    world->worker(at).Lie(GroupFailed(reason, "\"lm_head.weight\" differs"));
    world->RunUntilState(job, Job::SUCCEEDED);  // while the first one hangs still
    CHECK(HasEvent(*world, job, reason));
    CHECK_FALSE(HasEvent(*world, job, "WORKER_LOST"));
    world->CheckInvariants();
  }
}

TEST_CASE("no word of one worker fails a job; what is told of it is kept in bounds") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::PREPARING);
  world->Settle();
  world->worker(0).Lie(GroupFailed("MODEL_UNSUPPORTED", std::string(1 << 20, '\xfe')));
  world->RunUntilState(job, Job::QUEUED);
  CHECK(world->Job(job).queue().why().starts_with("MODEL_UNSUPPORTED: "));
  CHECK(world->Job(job).queue().why().size() <= 2100);
  world->CrashCoordinator();  // which reads all of it again
  CHECK(HasEvent(*world, job, "MODEL_UNSUPPORTED"));
  world->RunUntilState(job, Job::SUCCEEDED);
}

TEST_CASE("reasons that no worker can have are lies, of a group and of a slot") {
  for (const char* reason : {"INVALID_ROWS", "DATASET_INVALID", "DATASET_LIMIT",
                             "MEMORY_NEVER_FITS", "NOT_FINITE", "WINDOW_NOT_PLANNED"}) {
    for (const bool of_a_slot : {false, true}) {
      CAPTURE(reason, of_a_slot);
      auto world = MakeWorld();
      world->StartWorkers();
      const std::string job = world->Submit(World::NewJob());
      const auto loads = [&] {
        return !world->plans().empty() && !world->plans()[0].loads.empty();
      };
      world->RunUntil([&] { return of_a_slot ? loads() : world->worker(0).epoch() > 0; });
      world->worker(0).Hang(true);
      worker::v1::WorkerMessage said = GroupFailed(reason, "it says");
      if (of_a_slot) {
        said.mutable_report()->mutable_slot_failed()->set_job(job);
        said.mutable_report()->mutable_slot_failed()->set_reason(reason);
      }
      world->worker(0).Lie(said);
      world->Settle();
      CHECK(IsLive(world->StateOf(job)));
      CHECK(HasEvent(*world, job, "WORKER_LIED"));
      world->worker(0).Kill();
      world->RunUntilState(job, Job::SUCCEEDED);
      world->CheckInvariants();
    }
  }
}

TEST_CASE("a slot that cannot be loaded: its job waits, whatever one worker says of it") {
  for (const char* reason :
       {"SLOT_LOAD", "DISK_FULL", "WHAT_NOBODY_KNOWS", "BAD_WINDOW", "CHECKPOINT_INVALID"}) {
    CAPTURE(reason);
    auto world = MakeWorld();
    world->StartWorkers();
    Job longer = World::NewJob();
    longer.mutable_training()->set_epochs(20);
    const std::string first = world->Submit(longer);
    world->RunUntil([&] { return world->Job(first).step() >= 3; });
    const std::string second = world->Submit(World::NewJob());
    world->RunUntilState(second, Job::PREPARING);
    world->RunUntil(
        [&] { return !world->plans().empty() && !world->plans().back().loads.empty(); });
    world->worker(0).Hang(true);
    world->Settle();
    REQUIRE(world->StateOf(second) == Job::PREPARING);
    worker::v1::WorkerMessage said;
    said.mutable_report()->mutable_slot_failed()->set_job(second);
    said.mutable_report()->mutable_slot_failed()->set_reason(reason);
    world->worker(0).Lie(said);
    world->RunUntilState(second, Job::QUEUED);
    CHECK(world->StateOf(first) == Job::RUNNING);
    world->worker(0).Hang(false);
    world->RunUntilState(first, Job::SUCCEEDED);
    world->RunUntilState(second, Job::SUCCEEDED);
  }
}

// Its worker says of the group that it is about to form that its memory does not do.
void SayTooLarge(World& world, int worker) {
  world.worker(worker).Hang(true);
  world.RunUntil([&] { return world.worker(worker).epoch() > 0; });
  world.worker(worker).Lie(GroupFailed("MEMORY", "the group needs 9 bytes, 8 are there"));
}

TEST_CASE("one worker's word that a job has no room fails no job, however often it says so") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  const std::string job = world->Submit(World::NewJob());
  for (int i = 0; i < 12; ++i) {
    SayTooLarge(*world, 0);
    world->RunUntilState(job, Job::QUEUED);
    CHECK(world->Job(job).queue().why().starts_with("MEMORY: the group needs 9 bytes"));
    world->worker(0).Kill();
  }
  world->worker(0).Hang(false);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a job that has no room alone on two workers fails, and its company goes on") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->AddDataset("long", 12);
  world->SetLongest("long", 200);
  world->script().longest_most = 100;
  std::vector<std::string> company;
  for (int i = 0; i < 5; ++i) {
    Job content = World::NewJob();
    if (i == 3) content.set_training_dataset("long");
    company.push_back(world->Submit(content));
  }
  const std::string job = company[3];
  world->Settle();
  world->StartWorkers();
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "MEMORY");
  CHECK(world->Job(job).error().category() == v1::JobError::SERVER);
  for (const std::string& other : company) {
    if (other != job) world->RunUntilState(other, Job::SUCCEEDED);
  }
}

}  // namespace
}  // namespace lorad::server
