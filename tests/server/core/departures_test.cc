// Jobs that leave their group alive, as stories: paused, resumed, from a worker that is drained.
#include <random>

#include "planner/cost/memory.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

Job Pause(World& world, const std::string& job) {
  return world.Get<Job>(Named<v1::PauseJobRequest>(job));
}
Job Resume(World& world, const std::string& job) {
  return world.Get<Job>(Named<v1::ResumeJobRequest>(job));
}
v1::Worker Drain(World& world, const std::string& worker) {
  v1::DrainWorkerRequest request;
  request.set_name(worker);
  request.set_reason("a new driver");
  return world.Get<v1::Worker>(request);
}
std::vector<v1::Worker> WorkersOf(World& world) {
  const auto response = world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  return {response.workers().begin(), response.workers().end()};
}
v1::Worker WorkerOf(World& world, const std::string& name) {
  for (const v1::Worker& worker : WorkersOf(world)) {
    if (worker.name() == name) return worker;
  }
  FAIL("no worker " << name);
  return {};
}

// 30 steps.
Job LongJob() {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(10);
  job.mutable_training()->set_checkpoint_every_steps(0);
  return job;
}

Job LargeJob(int priority) {
  Job job = LongJob();
  job.mutable_adapter()->set_rank(512);
  job.set_priority(priority);
  return job;
}

TEST_CASE("a paused job is saved at its last step, holds no slot, and goes on from there") {
  auto world = MakeWorld();
  const std::string paused = world->Submit(LongJob());
  const std::string neighbour = world->Submit(LongJob());
  world->StartWorkers();
  world->RunUntil([&] { return world->Job(paused).step() >= 5; });
  CHECK(Pause(*world, paused).state() == Job::PAUSING);
  CHECK(Pause(*world, paused).state() == Job::PAUSING);  // idempotent
  world->RunUntilState(paused, Job::PAUSED);
  const Job then = world->Job(paused);
  CHECK(then.step() >= 5);
  CHECK(then.step() < 30);
  CHECK(then.last_checkpoint_step() == then.step());
  CHECK(then.group().empty());
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK(world->Job(neighbour).attempts() == 1);
  CHECK(world->StateOf(paused) == Job::PAUSED);
  CHECK(Resume(*world, paused).state() == Job::QUEUED);
  world->RunUntilState(paused, Job::SUCCEEDED);
  CHECK(StatesOf(*world, paused) == std::vector<State>{Job::QUEUED, Job::PREPARING, Job::RUNNING,
                                                       Job::PAUSING, Job::PAUSED, Job::QUEUED,
                                                       Job::PREPARING, Job::RUNNING,
                                                       Job::FINALIZING, Job::SUCCEEDED});
  CHECK(world->Metrics(paused).size() == 30);
  world->CheckInvariants();
}

TEST_CASE("a job that waits is paused at once") {
  auto world = MakeWorld();
  const std::string queued = world->Submit(World::NewJob());
  world->RunUntilState(queued, Job::QUEUED);
  CHECK(Pause(*world, queued).state() == Job::PAUSED);
  world->StartWorkers();
  world->Settle();
  CHECK(world->StateOf(queued) == Job::PAUSED);
  CHECK(Resume(*world, queued).state() != Job::PAUSED);
  world->RunUntilState(queued, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("one that is paused before its rows are known has them checked when it is resumed") {
  auto world = MakeWorld();
  world->SlowChecks("train", 1'000'000);
  const std::string job = world->Submit(World::NewJob());
  CHECK(world->StateOf(job) == Job::VALIDATING);
  CHECK(Pause(*world, job).state() == Job::PAUSED);
  world->StartWorkers();
  world->Sleep(5'000'000);
  CHECK(world->StateOf(job) == Job::PAUSED);
  Resume(*world, job);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("one whose group is being formed leaves it at once") {
  auto world = MakeWorld();
  const std::string job = world->Submit(World::NewJob());
  world->StartWorkers();
  world->RunUntilState(job, Job::PREPARING);
  Pause(*world, job);
  world->RunUntilState(job, Job::PAUSED);
  Resume(*world, job);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("one that is resumed before it has left stays") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  Pause(*world, job);
  CHECK(Resume(*world, job).state() == Job::RUNNING);
  CHECK(Resume(*world, job).state() == Job::RUNNING);  // idempotent
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("what cannot be paused or resumed says why") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::FINALIZING);
  CHECK(Reason(world->Call(Named<v1::PauseJobRequest>(job)).status()) == "JOB_FINALIZING");
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(Reason(world->Call(Named<v1::PauseJobRequest>(job)).status()) == "JOB_ENDED");
  CHECK(Reason(world->Call(Named<v1::ResumeJobRequest>(job)).status()) == "JOB_ENDED");
  CHECK(Reason(world->Call(Named<v1::PauseJobRequest>("job-none")).status()) == "JOB_NOT_FOUND");
}

TEST_CASE("a drained worker's jobs go on elsewhere, and it says when it is empty") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(world->Submit(LongJob()));
  world->StartWorkers();
  world->RunUntil([&] { return world->Job(jobs[0]).step() >= 3; });
  const std::string group = world->Job(jobs[0]).group();
  std::string drained;
  for (const v1::Worker& worker : WorkersOf(*world)) {
    if (worker.group() == group) drained = worker.name();
  }
  CHECK(Drain(*world, drained).state() == v1::Worker::DRAINING);
  world->RunUntil([&] { return WorkerOf(*world, drained).state() == v1::Worker::DRAINED; });
  CHECK(WorkerOf(*world, drained).drain_reason() == "a new driver");
  for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(WorkerOf(*world, drained).group().empty());
  world->CheckInvariants();
}

TEST_CASE("a job of a drained worker waits by its priority, before its equals, after a crash too") {
  WorldOptions options;
  options.core.policy.evict = false;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const auto submit = [&](const std::string& model, int priority) {
    Job content = LongJob();
    content.set_base_model(model);
    content.set_priority(priority);
    content.mutable_training()->set_epochs(500);
    const std::string job = world->Submit(content);
    world->Sleep(1'000'000);
    return job;
  };
  const std::string low = submit("m", -100);
  world->RunUntil([&] { return world->Job(low).step() >= 3; });
  const std::string name = WorkersOf(*world)[0].name();
  Drain(*world, name);
  world->RunUntilState(low, Job::QUEUED);
  const std::string equal = submit("m2", -100), urgent = submit("m2", 100);
  for (const bool crashes : {true, false}) {
    CHECK(world->Job(urgent).queue().place() == 1);
    CHECK(world->Job(low).queue().place() == 2);
    CHECK(world->Job(equal).queue().place() == 3);
    if (crashes) world->CrashCoordinator();
    world->Sleep(60'000'000);
  }
  world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(name));
  world->RunUntilState(urgent, Job::RUNNING);
  CHECK(world->StateOf(low) == Job::QUEUED);
  for (const std::string& job : {urgent, low, equal}) world->RunUntilState(job, Job::SUCCEEDED);
}

TEST_CASE("jobs of the last worker wait while it is drained, and say so; also after a crash") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  const std::string name = WorkersOf(*world).at(0).name();
  Drain(*world, name);
  world->RunUntilState(job, Job::QUEUED);
  CHECK(world->Job(job).queue().why() == "worker '" + name + "' is drained (a new driver)");
  CHECK(world->Job(job).last_checkpoint_step() == world->Job(job).step());
  world->CrashCoordinator();
  world->Sleep(60'000'000);
  CHECK(WorkerOf(*world, name).state() == v1::Worker::DRAINED);
  CHECK(world->StateOf(job) == Job::QUEUED);
  // Its machine is away for a weekend.
  world->worker(0).Kill(/*restart=*/false);
  world->Sleep(int64_t{3} * 24 * 3600 * 1'000'000);
  CHECK(WorkerOf(*world, name).drained());
  world->StartWorkers();
  world->Sleep(60'000'000);
  CHECK(WorkerOf(*world, name).state() == v1::Worker::DRAINED);
  CHECK_FALSE(world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(name)).drained());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a job's priority moves it in the queue") {
  auto world = MakeWorld();
  const std::string first = world->Submit(World::NewJob());
  const std::string second = world->Submit(World::NewJob());
  world->RunUntilState(second, Job::QUEUED);
  CHECK(world->Job(second).queue().place() == 2);
  v1::UpdateJobRequest update;
  update.mutable_job()->set_name(second);
  update.mutable_job()->set_priority(5);
  update.mutable_job()->set_etag("1");
  update.mutable_update_mask()->add_paths("priority");
  CHECK(Reason(world->Call(update).status()) == "ETAG_MISMATCH");
  update.mutable_job()->set_etag(world->Job(second).etag());
  CHECK(world->Get<Job>(update).priority() == 5);
  CHECK(world->Job(second).queue().place() == 1);
  CHECK(HasEvent(*world, second, "UPDATED"));
  world->CheckInvariants();
}

TEST_CASE("an etag outlives steps, checkpoints, evaluations and a start, not a change") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.set_validation_dataset("valid");
  content.mutable_training()->set_eval_every_steps(2);
  content.mutable_training()->set_checkpoint_every_steps(2);
  const std::string job = world->Submit(content);
  world->RunUntil([&] { return world->Job(job).step() >= 1; }, 10'000);
  const Job before = world->Job(job);
  world->RunUntil(
      [&] {
        const Job now = world->Job(job);
        return now.last_checkpoint_step() > before.last_checkpoint_step() &&
               now.step() >= before.step() + 3;  // an evaluation lies between
      },
      10'000);
  REQUIRE(world->StateOf(job) == Job::RUNNING);
  CHECK(world->Job(job).revision() > before.revision());
  v1::UpdateJobRequest update;
  *update.mutable_job() = before;
  (*update.mutable_job()->mutable_labels())["team"] = "math";
  update.mutable_update_mask()->add_paths("labels");
  const Job changed = world->Get<Job>(update);
  CHECK(changed.etag() != before.etag());
  CHECK(Reason(world->Call(update).status()) == "ETAG_MISMATCH");
  world->CrashCoordinator();
  CHECK(world->Job(job).labels().at("team") == "math");
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
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
    Job content = LongJob();
    content.set_base_model(model);
    content.set_priority(priority);
    content.mutable_training()->set_epochs(500);
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

// Whatever is asked for at whatever moment, every job ends with each of its steps once.
TEST_CASE("pausing, resuming, draining and crashing at random moments") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    WorldOptions options;
    options.seed = seed;
    options.workers = 2;
    options.delay_us_max = 50'000;
    auto world = MakeWorld(options);
    std::mt19937_64 random(seed);
    std::vector<std::string> jobs;
    Job content = LongJob();
    content.set_validation_dataset("valid");
    for (int i = 0; i < 4; ++i) jobs.push_back(world->Submit(content));
    world->StartWorkers();
    for (int act = 0; act < 25; ++act) {
      world->Sleep(static_cast<int64_t>(random() % 400'000));
      const std::string& job = jobs[random() % jobs.size()];
      const std::vector<v1::Worker> workers = WorkersOf(*world);
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
          world->Ask(Named<v1::PauseJobRequest>(job), [](const auto&) {});
          break;
        case 3:
        case 4:
          world->Ask(Named<v1::ResumeJobRequest>(job), [](const auto&) {});
          break;
        case 5:
          if (!workers.empty()) Drain(*world, workers[0].name());
          break;
        case 6:
          if (!workers.empty()) {
            world->Call(Named<v1::UndrainWorkerRequest>(workers[0].name())).status().IgnoreError();
          }
          break;
        default:
          if (random() % 4 == 0) world->CrashCoordinator();
      }
    }
    for (const v1::Worker& worker : WorkersOf(*world)) {
      world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(worker.name()));
    }
    for (const std::string& job : jobs) {
      world->Call(Named<v1::ResumeJobRequest>(job))
          .status()
          .IgnoreError();  // of one that has ended
      world->RunUntilState(job, Job::SUCCEEDED);
    }
    world->CheckInvariants();
  }
}

}  // namespace
}  // namespace lorad::server
