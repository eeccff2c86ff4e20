// A checkpoint that is not what was committed any more, as stories.
#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

std::string NewestOf(World& world, const std::string& job) {
  return absl::StrCat("checkpoint:checkpoints/", job, "/", world.Job(job).last_checkpoint_step());
}

// The worker that is about to load the job's slot says that it cannot.
void SaySlotFailed(World& world, const std::string& job, const std::string& reason) {
  worker::v1::WorkerMessage message;
  worker::v1::SlotFailed& failed = *message.mutable_report()->mutable_slot_failed();
  failed.set_job(job);
  failed.set_reason(reason);
  failed.set_message("adapter_model.safetensors: its sha256 is not the manifest's");
  world.worker(0).Lie(message);
  world.RunUntilState(job, Job::QUEUED);
}

// The job's slot is to be loaded, and its worker does nothing that it is told.
void HangAtLoad(World& world, size_t plans) {
  world.RunUntil([&] {
    return std::any_of(world.plans().begin() + static_cast<int64_t>(plans), world.plans().end(),
                       [](const PlanInput& plan) { return !plan.loads.empty(); });
  });
  world.worker(0).Hang(true);
  world.Settle();
}

// The job's worker dies, and finds the newest checkpoint damaged when it loads the slot again.
void Damage(World& world, const std::string& job) {
  world.FailContent(NewestOf(world, job), absl::DataLossError("its sha256 is not the manifest's"));
  const size_t plans = world.plans().size();
  world.worker(0).Kill();
  HangAtLoad(world, plans);
  SaySlotFailed(world, job, "CHECKPOINT_CORRUPT");
  world.Settle();          // the coordinator has looked
  world.worker(0).Kill();  // which else would load it all the same
}

std::vector<std::string> MessagesOf(World& world, const std::string& job) {
  std::vector<std::string> messages;
  for (const v1::Event& event : world.Events(job)) {
    if (event.reason() == "CHECKPOINT_CORRUPT") messages.push_back(event.message());
  }
  return messages;
}

TEST_CASE("a damaged checkpoint: the job goes on from the one before it, and ends as if whole") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.set_validation_dataset("valid");
  content.mutable_training()->set_eval_every_steps(2);
  const std::string undisturbed = world->Submit(content);
  world->RunUntilState(undisturbed, Job::SUCCEEDED);
  const std::string job = world->Submit(content);
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() == 4; });
  Damage(*world, job);
  CHECK(world->Job(job).last_checkpoint_step() == 2);
  CHECK(world->Job(job).step() == 2);
  const std::vector<std::string> messages = MessagesOf(*world, job);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].find("the checkpoint of step 4 is given up") == 0);
  CHECK(messages[0].find("the job goes on from step 2") != std::string::npos);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).tokens() == world->Job(undisturbed).tokens());
  CHECK(world->Job(job).last_checkpoint_step() == 6);
  // Each step and evaluation once, with the right numbers; all checkpoints are there again.
  world->CheckInvariants();
  CHECK_FALSE(HasEvent(*world, job, "NUMERICS_MISMATCH"));
}

TEST_CASE("all checkpoints are damaged, one after the other: the job starts over") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() == 4; });
  Damage(*world, job);
  Damage(*world, job);
  CHECK(world->Job(job).step() == 0);
  CHECK(world->Job(job).tokens() == 0);
  CHECK(MessagesOf(*world, job).size() == 2);
  world->CrashCoordinator();  // and what was kept says the same
  CHECK(world->Job(job).last_checkpoint_step() == 0);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("what a job begins from is damaged and it has nothing of its own: it fails") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string first = world->Submit(World::NewJob());
  world->RunUntilState(first, Job::SUCCEEDED);
  Job content = World::NewJob();
  content.mutable_adapter()->set_init_from(first + "/6");
  const size_t plans = world->plans().size();
  const std::string job = world->Submit(content);
  world->RunUntil(
      [&] { return world->plans().size() > plans && !world->plans().back().loads.empty(); });
  world->worker(0).Hang(true);
  world->Settle();
  worker::v1::WorkerMessage message;
  message.mutable_report()->mutable_slot_failed()->set_job(job);
  message.mutable_report()->mutable_slot_failed()->set_reason("CHECKPOINT_CORRUPT");
  absl::Status damage = absl::DataLossError("its sha256 is not the manifest's");
  damage.SetPayload("lorad/reason", absl::Cord("CHECKPOINT_CORRUPT"));
  world->FailContent("weights:checkpoints/" + first + "/6", damage);
  world->worker(0).Lie(message);
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "CHECKPOINT_CORRUPT");
  CHECK(world->Job(job).error().category() == v1::JobError::SERVER);
}

TEST_CASE("a worker that calls whole checkpoints damaged costs no step and no job, and rests") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string first = world->Submit(World::NewJob());
  world->RunUntilState(first, Job::SUCCEEDED);
  Job heir = World::NewJob();
  heir.mutable_adapter()->set_init_from(first + "/6");
  for (const bool own : {true, false}) {
    for (const char* reason : {"CHECKPOINT_CORRUPT", "CONTENT_INVALID", "CHECKPOINT_INVALID"}) {
      CAPTURE(own, reason);
      size_t plans = world->plans().size();
      const std::string job = world->Submit(own ? World::NewJob() : heir);
      if (own) {
        world->RunUntil([&] { return world->Job(job).last_checkpoint_step() == 4; });
        plans = world->plans().size();
        world->worker(0).Kill();
      }
      HangAtLoad(*world, plans);
      SaySlotFailed(*world, job, reason);
      world->Settle();
      CHECK(world->Job(job).last_checkpoint_step() == (own ? 4 : 0));
      CHECK(world->Job(job).queue().why().find(", which is whole: ") != std::string::npos);
      const auto workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
      CHECK(workers.workers(0).lies() > 0);
      world->worker(0).Kill();
      world->RunUntilState(job, Job::SUCCEEDED);
      CHECK(MessagesOf(*world, job).empty());
    }
  }
  world->CheckInvariants();
}

TEST_CASE("a checkpoint that cannot be read for good: the job goes on from the one before it") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() == 4; });
  world->FailContent(NewestOf(*world, job), absl::InternalError("read: Input/output error"));
  const int64_t began_us = world->now_us();
  for (int tries = 0; world->Job(job).last_checkpoint_step() == 4; ++tries) {
    REQUIRE(tries < 10);
    const size_t plans = world->plans().size();
    world->worker(0).Kill();
    HangAtLoad(*world, plans);
    SaySlotFailed(*world, job, "CONTENT_UNAVAILABLE");
    world->Settle();
  }
  // It was given time to pass.
  CHECK(world->now_us() - began_us > 30'000'000);
  CHECK(world->Job(job).step() == 2);
  CHECK(HasEvent(*world, job, "CHECKPOINT_UNREADABLE"));
  world->worker(0).Kill();
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a job that is cancelled or deleted while its checkpoint is read is gone") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() == 4; });
  world->FailContent(NewestOf(*world, job), absl::DataLossError("damaged"));
  const size_t plans = world->plans().size();
  world->worker(0).Kill();
  HangAtLoad(*world, plans);
  SaySlotFailed(*world, job, "CHECKPOINT_CORRUPT");
  world->Get<Job>(Named<v1::CancelJobRequest>(job));
  world->Settle();
  CHECK(world->StateOf(job) == Job::CANCELLED);
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
