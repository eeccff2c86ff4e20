// A checkpoint that is not what was committed any more, as stories.
#include <algorithm>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

// The job's worker dies, and finds the newest checkpoint damaged when it loads the slot again.
void Damage(World& world, const std::string& job) {
  const size_t plans = world.plans().size();
  world.KillWorker(0);
  world.RunUntil([&] {
    return std::any_of(world.plans().begin() + static_cast<int64_t>(plans), world.plans().end(),
                       [](const PlanInput& plan) { return !plan.loads.empty(); });
  });
  world.HangWorker(0, true);
  world.Settle();
  worker::v1::WorkerMessage message;
  worker::v1::SlotFailed& failed = *message.mutable_report()->mutable_slot_failed();
  failed.set_job(job);
  failed.set_reason("CHECKPOINT_CORRUPT");
  failed.set_message("adapter_model.safetensors: its sha256 is not the manifest's");
  world.Lie(0, message);
  world.RunUntilState(job, Job::QUEUED);
  world.KillWorker(0);  // the simulated one would load it all the same
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
  world->ConnectWorkers();
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
  CHECK(messages[0].find("the checkpoint of step 4 is damaged") == 0);
  CHECK(messages[0].find("the job goes on from step 2") != std::string::npos);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).tokens() == world->Job(undisturbed).tokens());
  CHECK(world->Job(job).last_checkpoint_step() == 6);
  // Each step and evaluation once, with the right numbers; all checkpoints are there again.
  world->CheckInvariants();
  CHECK_FALSE(HasEvent(*world, job, "NUMERICS_MISMATCH"));
}

TEST_CASE("all checkpoints are damaged, one after the other: the job begins anew") {
  auto world = MakeWorld();
  world->ConnectWorkers();
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
  world->ConnectWorkers();
  const std::string first = world->Submit(World::NewJob());
  world->RunUntilState(first, Job::SUCCEEDED);
  Job content = World::NewJob();
  content.mutable_adapter()->set_init_from(first + "/6");
  const size_t plans = world->plans().size();
  const std::string job = world->Submit(content);
  world->RunUntil(
      [&] { return world->plans().size() > plans && !world->plans().back().loads.empty(); });
  world->HangWorker(0, true);
  world->Settle();
  worker::v1::WorkerMessage message;
  message.mutable_report()->mutable_slot_failed()->set_job(job);
  message.mutable_report()->mutable_slot_failed()->set_reason("CHECKPOINT_CORRUPT");
  world->Lie(0, message);
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "CHECKPOINT_CORRUPT");
  CHECK(world->Job(job).error().category() == v1::JobError::SERVER);
}

}  // namespace
}  // namespace lorad::server
