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

TEST_CASE("a group whose model has changed fails its jobs; what is told of it is kept in bounds") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::PREPARING);
  world->Settle();
  world->worker(0).Lie(GroupFailed("MODEL_UNSUPPORTED", std::string(1 << 20, '\xfe')));
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().category() == v1::JobError::USER);
  CHECK(world->Job(job).error().message().size() <= 2000);
  world->CrashCoordinator();  // which reads all of it again
  CHECK(world->Job(job).error().reason() == "MODEL_UNSUPPORTED");
}

TEST_CASE(
    "a slot that cannot be loaded: its job waits where that passes, and fails where it is sure") {
  struct Row {
    const char* reason;
    Job::State state;
  };
  for (const Row& row :
       {Row{"SLOT_LOAD", Job::QUEUED}, Row{"DISK_FULL", Job::QUEUED},
        Row{"WHAT_NOBODY_KNOWS", Job::QUEUED}, Row{"CHECKPOINT_INVALID", Job::FAILED}}) {
    CAPTURE(row.reason);
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
    said.mutable_report()->mutable_slot_failed()->set_reason(row.reason);
    world->worker(0).Lie(said);
    world->RunUntilState(second, row.state);
    CHECK(world->StateOf(first) == Job::RUNNING);
    world->worker(0).Hang(false);
    world->RunUntilState(first, Job::SUCCEEDED);
    world->RunUntil([&] { return !IsLive(world->StateOf(second)); });
    CHECK(world->StateOf(second) == (row.state == Job::QUEUED ? Job::SUCCEEDED : Job::FAILED));
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
