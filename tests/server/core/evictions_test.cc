// Jobs that make room for others, and when none do, as stories.
#include <random>

#include "planner/cost/memory.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

// 30 steps.
Job LargeJob(int priority) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(10);
  job.mutable_training()->set_checkpoint_every_steps(0);
  job.mutable_adapter()->set_rank(512);
  job.set_priority(priority);
  return job;
}

// GPUs with room for two jobs of that rank on each.
WorldOptions RoomForTwo() {
  WorldOptions options;
  options.gpu_memory_bytes = int64_t{8} << 30;
  options.core.microbatch_tokens = 1024;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const v1::MemoryEstimate memory =
      world->Get<v1::JobEstimate>(EstimateJob{.job = LargeJob(0)}).peak_memory_bytes();
  const int64_t slot = memory.adapters() + memory.optimizer();
  options.gpu_memory_bytes = static_cast<int64_t>(
      static_cast<double>(memory.total() + slot + slot / 2) * (1 + planner::kMemoryMargin));
  REQUIRE(planner::Fits(memory.total() + slot, options.gpu_memory_bytes));
  REQUIRE_FALSE(planner::Fits(memory.total() + 2 * slot, options.gpu_memory_bytes));
  return options;
}

TEST_CASE("a job of higher priority takes a place; the victim is saved first and goes on later") {
  auto world = MakeWorld(RoomForTwo());
  world->StartWorkers();
  const std::string first = world->Submit(LargeJob(0));
  const std::string second = world->Submit(LargeJob(0));
  world->RunUntil([&] { return world->Job(second).step() >= 3; });
  const std::string high = world->Submit(LargeJob(5));
  world->RunUntilState(high, Job::RUNNING);
  CHECK(HasEvent(*world, second, "EVICTED"));
  CHECK(world->StateOf(first) == Job::RUNNING);
  const Job victim = world->Job(second);
  CHECK(victim.state() == Job::QUEUED);
  CHECK(victim.step() >= 3);
  CHECK(victim.last_checkpoint_step() == victim.step());
  world->RunUntilState(high, Job::SUCCEEDED);
  world->RunUntilState(second, Job::SUCCEEDED);
  world->RunUntilState(first, Job::SUCCEEDED);
  CHECK(world->Job(first).attempts() == 1);
  CHECK(world->Job(second).attempts() == 2);
  CHECK(world->Job(high).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("nobody is evicted on a worker that says nothing while another one may make room") {
  WorldOptions options = RoomForTwo();
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  Job content = LargeJob(0);
  content.mutable_training()->set_epochs(100'000);
  std::vector<std::string> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(world->Submit(content));
  for (const std::string& job : jobs) {
    world->RunUntil([&] { return world->Job(job).step() >= 3; });
  }
  const int silent = GENERATE(0, 1);
  const bool is_known = GENERATE(true, false);  // when the job comes
  world->worker(silent).Stop(20'000'000);
  if (is_known) world->Sleep(6'000'000);
  content.set_priority(5);
  const int64_t asked_us = world->now_us();
  world->RunUntilState(world->Submit(content), Job::RUNNING);
  CHECK(world->now_us() - asked_us < (is_known ? 2'000'000 : 10'000'000));
  world->CheckInvariants();
}

TEST_CASE("a job goes to a worker that is heard of, or waits and says why") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  const int first = GENERATE(0, 1);
  world->worker(first).Stop(20'000'000);
  world->Sleep(6'000'000);
  const int64_t asked_us = world->now_us();
  const std::string placed = world->Submit(World::NewJob());
  world->RunUntilState(placed, Job::RUNNING);
  CHECK(world->now_us() - asked_us < 1'000'000);
  world->RunUntilState(placed, Job::SUCCEEDED);
  world->worker(1 - first).Stop(20'000'000);
  world->Sleep(6'000'000);
  const std::string waits = world->Submit(World::NewJob());
  world->Sleep(100'000);
  CHECK(world->StateOf(waits) == Job::QUEUED);
  CHECK_THAT(world->Job(waits).queue().why(),
             Catch::Contains("has said nothing for more than 5 s"));
  const auto estimate = world->Get<v1::JobEstimate>(EstimateJob{.job = World::NewJob()});
  CHECK_THAT(estimate.no_forecast(), Catch::Contains("has said nothing for more than 5 s"));
  world->RunUntilState(waits, Job::SUCCEEDED);  // when they go on
  CHECK(world->Job(waits).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("nobody is evicted for a job for which another worker is making room") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->AddModel("m3");
  world->StartWorkers();
  const auto submit = [&](const std::string& model, int priority) {
    Job content = World::NewJob();
    content.mutable_training()->set_epochs(500);
    content.set_base_model(model);
    content.set_priority(priority);
    return world->Submit(content);
  };
  const std::string first = submit("m", 0), second = submit("m2", 0);
  for (const std::string& job : {first, second}) {
    world->RunUntil([&] { return world->Job(job).step() >= 3; });
  }
  for (const int worker : {0, 1}) world->worker(worker).Stop(3'000'000);
  const std::string urgent = submit("m3", 9);
  const std::string equal = submit("m", 0);
  world->Sleep(1'000'000);
  CHECK_THAT(world->Job(urgent).queue().why(), Catch::EndsWith(" makes room for it"));
  world->RunUntilState(urgent, Job::RUNNING);
  CHECK(CountEvents(*world, first, "EVICTED") + CountEvents(*world, second, "EVICTED") == 1);
  world->CheckInvariants();
}

TEST_CASE("a worker is not kept idle for a job that comes into it late") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  const auto submit = [&](const std::string& model, int epochs) {
    Job content = World::NewJob();
    content.mutable_training()->set_epochs(epochs);
    content.set_base_model(model);
    return world->Submit(content);
  };
  // Two jobs of one base model on two workers; one moves to the other, for a third of another model.
  const std::string first = submit("m", 100'000), second = submit("m", 100'000);
  for (const std::string& job : {first, second}) {
    world->RunUntil([&] { return world->Job(job).step() >= 3; });
  }
  world->script().shards_held = {first, second};
  const std::string third = submit("m2", 1);
  world->RunUntil(
      [&] { return HasEvent(*world, first, "MOVED") || HasEvent(*world, second, "MOVED"); });
  const std::string moves = HasEvent(*world, first, "MOVED") ? first : second;
  const std::string stays = moves == first ? second : first;
  world->Get<Job>(Named<v1::CancelJobRequest>(stays));
  const int64_t idle_us = world->now_us();
  world->RunUntil([&] { return IsPlaced(world->StateOf(third)); });
  CHECK(world->now_us() - idle_us < 20'000'000);
  world->RunUntilState(third, Job::SUCCEEDED);
  world->script().shards_held.clear();
  for (const int worker : {0, 1}) world->worker(worker).ReleaseShards();
  world->RunUntil([&] { return world->StateOf(moves) == Job::RUNNING; });
  world->CheckInvariants();
}

TEST_CASE("jobs whose base models take longer to load than the minimum run still train by turns") {
  WorldOptions options;
  options.delay_us_max = 2'000'000;  // of each message: steps and loads take seconds
  options.core.policy.minimum_run_s = GENERATE(0, 1);
  options.core.policy.points_per_hour = 3600;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();
  const std::string first = world->Submit(content);
  content.set_base_model("m2");
  const std::string second = world->Submit(content);
  world->RunUntilState(first, Job::SUCCEEDED);
  world->RunUntilState(second, Job::SUCCEEDED);
  CHECK(CountEvents(*world, first, "EVICTED") + CountEvents(*world, second, "EVICTED") > 0);
  CHECK(CountEvents(*world, first, "EVICTED") <= world->Job(first).total_steps());
  CHECK(CountEvents(*world, second, "EVICTED") <= world->Job(second).total_steps());
  world->CheckInvariants();
}

TEST_CASE("what a job has waited counts on after a crash") {
  WorldOptions options = RoomForTwo();
  options.delay_us_max = 20'000;  // so that steps take time
  options.core.policy.minimum_run_s = 10;
  options.core.policy.points_per_hour = 150;  // a point in 24 s
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = LargeJob(0);
  content.mutable_training()->set_epochs(100'000);
  content.mutable_training()->set_checkpoint_every_steps(10);
  const std::string first = world->Submit(content);
  const std::string second = world->Submit(content);
  for (const std::string& job : {first, second}) {
    world->RunUntil([&] { return world->Job(job).last_checkpoint_step() > 0; });
  }
  const std::string third = world->Submit(content);
  world->Sleep(15'000'000);
  REQUIRE(world->StateOf(third) == Job::QUEUED);
  world->CrashCoordinator();
  world->Sleep(20'000'000);                     // 35 s since it came
  CHECK(world->StateOf(third) != Job::QUEUED);  // in the place of one that has run for 10 s
}

TEST_CASE(
    "one for whom others were evicted may be cancelled, paused, or lose its worker meanwhile") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    WorldOptions options = RoomForTwo();
    options.seed = seed;
    options.delay_us_max = 40'000;
    auto world = MakeWorld(options);
    std::mt19937_64 random(seed);
    world->StartWorkers();
    std::vector<std::string> jobs = {world->Submit(LargeJob(0)), world->Submit(LargeJob(1))};
    world->RunUntil([&] { return world->Job(jobs[1]).step() >= 3; });
    const std::string high = world->Submit(LargeJob(5));
    world->Sleep(static_cast<int64_t>(random() % 1'000'000));
    switch (random() % 4) {
      case 0:
        world->Call(Named<v1::CancelJobRequest>(high)).status().IgnoreError();
        break;
      case 1:
        world->Call(Named<v1::PauseJobRequest>(high)).status().IgnoreError();
        break;
      case 2:
        world->CrashCoordinator();
        jobs.push_back(high);
        break;
      default:
        world->Call(Named<v1::PauseJobRequest>(jobs[0])).status().IgnoreError();
        world->Sleep(static_cast<int64_t>(random() % 1'000'000));
        world->Call(Named<v1::ResumeJobRequest>(jobs[0])).status().IgnoreError();
        jobs.push_back(high);
    }
    for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
    world->CheckInvariants();
  }
}

}  // namespace
}  // namespace lorad::server
