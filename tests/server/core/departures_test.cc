// Jobs that leave their group alive, as stories: paused, resumed, from a worker that is drained, or
// was told to end.
#include <random>

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

// The world's worker that has it.
int NumberOf(World& world, const std::string& job, int workers) {
  const std::string group = world.Job(job).group();
  for (int i = 0; i < workers; ++i) {
    if (WorkerOf(world, world.worker(i).hello().worker()).group() == group) return i;
  }
  FAIL("no worker has " << group);
  return 0;
}

bool WasLost(World& world, const std::string& job) {
  return std::ranges::count(world.Events(job), "WORKER_LOST", &v1::Event::reason) > 0;
}

TEST_CASE("of a worker that is told to end jobs go elsewhere, saved, and it is let go") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  const std::string job = world->Submit(LongJob());
  world->StartWorkers();
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  sim::WorkerProcess& worker = world->worker(NumberOf(*world, job, 2));
  const std::string name = worker.hello().worker();
  const int64_t told_us = world->now_us();
  worker.Terminate();
  bool left = false;
  world->RunUntil([&] {
    left |= WorkerOf(*world, name).state() == v1::Worker::DRAINING;
    return !worker.running();
  });
  CHECK(left);
  CHECK(world->now_us() - told_us < 5'000'000);  // not at the end of its grace period
  CHECK(world->Job(job).last_checkpoint_step() == world->Job(job).step());
  CHECK(std::ranges::count(world->notes(), "worker '" + name + "' was told to end") == 1);
  world->RunUntil([&] { return WorkerOf(*world, name).state() == v1::Worker::IDLE; });  // again
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Metrics(job).size() == 30);
  CHECK_FALSE(WasLost(*world, job));
  world->CheckInvariants();
}

TEST_CASE("told to end amid long steps, a worker begins none more of those at hand") {
  WorldOptions options;
  options.truthful = true;
  options.token_ms = 50;  // 80 of them a step
  auto world = MakeWorld(options);
  const std::string job = world->Submit(LongJob());
  world->StartWorkers();
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  const int64_t step = world->Job(job).step();
  const int64_t told_us = world->now_us();
  world->worker(0).Terminate();
  world->RunUntil([&] { return !world->worker(0).running(); });
  CHECK(world->now_us() - told_us < 1'000'000);
  CHECK(world->Job(job).last_checkpoint_step() == step);
  CHECK_FALSE(WasLost(*world, job));
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("told to end while it has no jobs, or its group forms, a worker is let go at once") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  const std::string name = world->worker(0).hello().worker();
  const auto ends = [&] {
    const int64_t told_us = world->now_us();
    world->worker(0).Terminate();
    world->RunUntil([&] { return !world->worker(0).running(); });
    CHECK(world->now_us() - told_us < 1'000'000);
  };
  ends();
  // So often in a row that these would fail the job if they were losses.
  const std::string job = world->Submit(LongJob());
  for (int i = 0; i < 12; ++i) {
    world->RunUntil(
        [&] { return world->StateOf(job) == Job::PREPARING && world->worker(0).running(); });
    ends();
  }
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 13);
  CHECK_FALSE(WasLost(*world, job));
  // Its group is empty, and kept for who may come.
  world->RunUntil([&] { return WorkerOf(*world, name).state() == v1::Worker::IDLE; });
  CHECK_FALSE(WorkerOf(*world, name).group().empty());
  ends();
  world->CheckInvariants();
}

TEST_CASE("what a worker that was told to end could not save is nobody's doing") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  for (int i = 0; i < 12; ++i) {
    world->RunUntil([&] {
      const Job now = world->Job(job);
      return now.step() > now.last_checkpoint_step() && world->worker(0).running();
    });
    world->worker(0).mischief().hangs_uploads = true;
    world->worker(0).Terminate();
    world->RunUntil([&] { return !world->worker(0).running(); });
    CHECK(IsLive(world->StateOf(job)));
    world->worker(0).mischief().hangs_uploads = false;
  }
  CHECK(WasLost(*world, job));
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("jobs of the last worker that was told to end wait, and say so") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  sim::WorkerProcess& worker = world->worker(0);
  const std::string name = worker.hello().worker();
  worker.mischief().hangs_uploads = true;  // of this job, so that it stays
  const std::string waits = world->Submit([] {
    Job other = LongJob();
    other.set_base_model("m2");
    return other;
  }());
  worker.Terminate();
  world->RunUntil(
      [&] { return world->Job(waits).queue().why() == "worker '" + name + "' was told to end"; });
  CHECK(WorkerOf(*world, name).resting() == "was told to end");
  worker.mischief().hangs_uploads = false;
  for (const std::string& one : {job, waits}) world->RunUntilState(one, Job::SUCCEEDED);
  world->CheckInvariants();
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
