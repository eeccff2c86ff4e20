// Jobs that leave their group alive, paused by their users or from a drained worker, as stories.
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

Job LongJob(int epochs = 20) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(epochs);
  return job;
}

Job Pause(World& world, const std::string& job) {
  return world.Get<Job>(Named<v1::PauseJobRequest>(job));
}

Job Resume(World& world, const std::string& job) {
  return world.Get<Job>(Named<v1::ResumeJobRequest>(job));
}

v1::Worker Drain(World& world, const std::string& worker) {
  v1::DrainWorkerRequest request;
  request.set_name(worker);
  request.set_reason("a new disk");
  return world.Get<v1::Worker>(request);
}

v1::Worker WorkerOf(World& world, int i) {
  return world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(i);
}

TEST_CASE("a running job is paused and goes on; its neighbour does not notice") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  const std::string neighbour = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  CHECK(Pause(*world, job).state() == Job::PAUSING);
  CHECK(Pause(*world, job).state() == Job::PAUSING);
  world->RunUntilState(job, Job::PAUSED);
  const Job paused = world->Job(job);
  CHECK(paused.last_checkpoint_step() == paused.step());
  CHECK(paused.group().empty());
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK(world->Job(neighbour).attempts() == 1);
  CHECK(world->StateOf(job) == Job::PAUSED);
  CHECK(Resume(*world, job).state() == Job::QUEUED);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 2);
  CHECK(Reason(world->Call(Named<v1::PauseJobRequest>(job)).status()) == "JOB_ENDED");
  CHECK(Reason(world->Call(Named<v1::ResumeJobRequest>(job)).status()) == "JOB_ENDED");
  world->CheckInvariants();
}

TEST_CASE("a paused job stays so over a restart, one that is PAUSING is PAUSED by it") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  world->worker(0).Hang(true);
  Pause(*world, job);
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::PAUSED);
  world->worker(0).Hang(false);
  world->CrashCoordinator();
  world->Settle();
  CHECK(world->StateOf(job) == Job::PAUSED);
  Resume(*world, job);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a drained worker is empty, and stays so until it is undrained, over a restart too") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  CHECK(Drain(*world, "worker-0").state() == v1::Worker::DRAINING);
  world->RunUntilState(job, Job::QUEUED);
  world->Settle();
  CHECK(WorkerOf(*world, 0).state() == v1::Worker::DRAINED);
  CHECK(world->Job(job).step() >= 3);  // saved before it left
  CHECK(world->Job(job).queue().why() == "worker 'worker-0' is drained (a new disk)");
  world->CrashCoordinator();
  world->Settle();
  CHECK(WorkerOf(*world, 0).state() == v1::Worker::DRAINED);
  CHECK(WorkerOf(*world, 0).drain_reason() == "a new disk");
  CHECK(world->StateOf(job) == Job::QUEUED);
  world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>("worker-0"));
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a job that is resumed on a worker which is drained meanwhile leaves it all the same") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob(200));
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  const bool drained_first = GENERATE(false, true);
  if (drained_first) Drain(*world, "worker-0");
  CHECK(Pause(*world, job).state() == Job::PAUSING);
  if (!drained_first) Drain(*world, "worker-0");
  Resume(*world, job);
  world->RunUntilState(job, Job::QUEUED);
  world->Settle();
  CHECK(WorkerOf(*world, 0).state() == v1::Worker::DRAINED);
  world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>("worker-0"));
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("its checkpoint is committed when it is paused already: it goes on from there") {
  // The worker dies between the shard and its commit, while the job is PAUSING or QUEUED.
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    WorldOptions options;
    options.seed = seed;
    options.delay_us_max = 30'000;
    auto world = MakeWorld(options);
    world->StartWorkers();
    Job content = LongJob(3);
    content.mutable_training()->set_checkpoint_every_steps(1);
    const std::string job = world->Submit(content);
    world->RunUntil([&] { return world->Job(job).step() >= static_cast<int64_t>(1 + seed % 5); });
    world->Sleep(static_cast<int64_t>(seed * 1777 % 20'000));
    if (!IsLive(world->StateOf(job)) || world->StateOf(job) == Job::FINALIZING) continue;
    if (seed % 2 == 0) world->Call(Named<v1::PauseJobRequest>(job)).status().IgnoreError();
    world->worker(0).Kill();
    if (seed % 2 == 1) world->RunUntilState(job, Job::QUEUED);
    if (seed % 2 == 1) world->Call(Named<v1::PauseJobRequest>(job)).status().IgnoreError();
    world->Sleep(200'000);
    if (world->StateOf(job) == Job::PAUSED) {
      CHECK(world->Job(job).step() == world->Job(job).last_checkpoint_step());
      Resume(*world, job);
    }
    world->RunUntilState(job, Job::SUCCEEDED);
    world->CheckInvariants();
  }
}

// Its user, its operator and its worker do anything, at random.
void RunHistory(uint64_t seed) {
  INFO("departures_test: seed " << seed);
  std::mt19937_64 random(seed);
  WorldOptions options;
  options.seed = seed;
  options.workers = 1 + static_cast<int>(seed % 2);
  options.delay_us_max = seed % 2 ? 3000 : 30'000;
  options.core.losses_without_progress_max = 1'000'000;
  options.core.lease_ms = 5000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  std::vector<std::string> jobs;
  for (int i = 0; i < 4; ++i) {
    Job content = LongJob(1 + static_cast<int>(random() % 4));
    content.mutable_training()->set_checkpoint_every_steps(random() % 3);
    if (random() % 2) content.set_validation_dataset("valid");
    jobs.push_back(world->Submit(content));
  }
  for (int i = 0; i < 30; ++i) {
    world->Sleep(static_cast<int64_t>(random() % 60'000));
    const std::string& job = jobs[random() % jobs.size()];
    const int worker = static_cast<int>(random() % options.workers);
    const auto ask = [&](Request request) {
      world->Ask(std::move(request), [](const absl::StatusOr<ReplyValue>&) {});
    };
    v1::DrainWorkerRequest drain;
    drain.set_name(absl::StrCat("worker-", worker));
    drain.set_reason("a new disk");
    switch (random() % 8) {
      case 0:
      case 1:
        ask(Named<v1::PauseJobRequest>(job));
        break;
      case 2:
      case 3:
        ask(Named<v1::ResumeJobRequest>(job));
        break;
      case 4:
        ask(drain);
        break;
      case 5:
        ask(Named<v1::UndrainWorkerRequest>(drain.name()));
        break;
      case 6:
        world->worker(worker).Kill();
        break;
      default:
        if (random() % 4 == 0) world->CrashCoordinator();
    }
  }
  const auto workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  for (const v1::Worker& worker : workers.workers()) {
    world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(worker.name()));
  }
  for (const std::string& job : jobs) {
    world->RunUntil([&] {
      const Job::State state = world->StateOf(job);
      if (state == Job::PAUSED) Resume(*world, job);
      return !IsLive(state);
    });
    INFO(job << " " << world->Describe());
    CHECK(world->StateOf(job) == Job::SUCCEEDED);
    CHECK_FALSE(HasEvent(*world, job, "NUMERICS_MISMATCH"));
  }
  world->CheckInvariants();
}

TEST_CASE("whatever users, operators and workers do, jobs end as if nothing had been") {
  for (uint64_t seed = 1; seed <= 300; ++seed) RunHistory(seed);
}

Job Finish(World& world, const std::string& job) {
  return world.Get<Job>(Named<v1::FinishJobRequest>(job));
}

// It is saved and evaluated after so many steps each; 0: at its end alone.
Job EvaluatedJob(int save_every, int evaluate_every) {
  Job job = LongJob();
  job.mutable_training()->set_checkpoint_every_steps(save_every);
  job.set_validation_dataset("valid");
  job.mutable_training()->set_eval_every_steps(evaluate_every);
  return job;
}

std::string WhyNotFinished(World& world, const std::string& job) {
  return Reason(world.Call(Named<v1::FinishJobRequest>(job)).status());
}

TEST_CASE("a running job finishes with the steps at hand; its neighbour does not notice") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(EvaluatedJob(0, 1));
  const std::string neighbour = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  const Job asked = Finish(*world, job);
  CHECK(IsLive(asked.state()));
  CHECK(asked.finish_step() >= 3);
  CHECK(Finish(*world, job).finish_step() == asked.finish_step());
  CHECK(Reason(world->Call(Named<v1::PauseJobRequest>(job)).status()) == "JOB_FINALIZING");
  world->RunUntilState(job, Job::SUCCEEDED);
  const Job done = world->Job(job);
  CHECK(done.step() == asked.finish_step());
  CHECK(done.step() < done.total_steps());
  CHECK(done.last_checkpoint_step() == done.step());
  CHECK(HasEvent(*world, job, "FINISHING"));
  CHECK(world->Events(job).back().message().find(absl::StrCat(
            "of step ", done.step(), ", of ", done.total_steps(), " that were planned")) !=
        std::string::npos);
  CHECK(Finish(*world, job).state() == Job::SUCCEEDED);  // a call that is repeated
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK(world->Job(neighbour).attempts() == 1);
  CHECK(WhyNotFinished(*world, neighbour) == "JOB_ENDED");
  world->CheckInvariants();
}

TEST_CASE("a job without a step cannot finish, nor one that is cancelled") {
  auto world = MakeWorld();
  const std::string job = world->Submit(LongJob());
  CHECK(WhyNotFinished(*world, job) == "NOTHING_TRAINED");
  CHECK(WhyNotFinished(*world, "job-none") == "JOB_NOT_FOUND");
  world->StartWorkers();
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  world->Get<Job>(Named<v1::CancelJobRequest>(job));
  REQUIRE(world->StateOf(job) == Job::CANCELLING);
  CHECK(WhyNotFinished(*world, job) == "JOB_CANCELLING");
  CHECK(Reason(world->Call(Named<v1::PauseJobRequest>(job)).status()) == "JOB_CANCELLING");
  CHECK(Reason(world->Call(Named<v1::ResumeJobRequest>(job)).status()) == "JOB_CANCELLING");
  world->RunUntilState(job, Job::CANCELLED);
  CHECK(WhyNotFinished(*world, job) == "JOB_ENDED");
}

TEST_CASE("a job that waits finishes at once, at its checkpoint") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  Pause(*world, job);
  SECTION("paused") {
    world->RunUntilState(job, Job::PAUSED);
    CHECK(Finish(*world, job).state() == Job::SUCCEEDED);
  }
  SECTION("on its way there") {
    Finish(*world, job);
    world->RunUntilState(job, Job::SUCCEEDED);
  }
  SECTION("resumed, and nobody has room") {
    world->RunUntilState(job, Job::PAUSED);
    world->worker(0).Kill(/*restart=*/false);
    world->Settle();
    Resume(*world, job);
    CHECK(Finish(*world, job).state() == Job::SUCCEEDED);
  }
  SECTION("about to be loaded") {
    world->RunUntilState(job, Job::PAUSED);
    Resume(*world, job);
    world->RunUntilState(job, Job::PREPARING);
    Finish(*world, job);
    world->RunUntilState(job, Job::SUCCEEDED);
    const std::string next = world->Submit(World::NewJob());
    world->RunUntilState(next, Job::SUCCEEDED);
  }
  const Job done = world->Job(job);
  CHECK(done.step() >= 3);
  CHECK(done.finish_step() == done.step());
  world->CheckInvariants();
}

TEST_CASE("a job that waits and had been further has no rows beyond its end") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(EvaluatedJob(10, 3));
  world->RunUntil([&] { return world->Job(job).step() >= 17; });
  world->worker(0).Kill(/*restart=*/false);
  world->RunUntilState(job, Job::QUEUED);
  REQUIRE(world->Metrics(job).size() >= 17);
  REQUIRE(world->Evaluations(job).back().step() == 15);
  CHECK(Finish(*world, job).state() == Job::SUCCEEDED);
  REQUIRE(world->Job(job).step() == 10);
  CHECK(world->Metrics(job).size() == 10);
  CHECK(world->Evaluations(job).back().step() == 9);
  world->CheckInvariants();
}

TEST_CASE("a job whose steps were all lost says so where it is to finish") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job longer = LongJob();
  longer.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(longer);
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  world->worker(0).Kill(/*restart=*/false);
  world->RunUntilState(job, Job::QUEUED);
  const absl::Status refused = world->Call(Named<v1::FinishJobRequest>(job)).status();
  CHECK(Reason(refused) == "NOTHING_TRAINED");
  CHECK(std::string(refused.message()).find("lost before one was saved") != std::string::npos);
}

TEST_CASE("a job that waits for its end is said to finish") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job longer = LongJob();
  longer.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(longer);
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  world->worker(0).Hang(true);
  Finish(*world, job);
  world->worker(0).Kill(/*restart=*/false);
  world->RunUntilState(job, Job::QUEUED);
  const absl::Status refused = world->Call(Named<v1::PauseJobRequest>(job)).status();
  CHECK(Reason(refused) == "JOB_FINISHING");
  CHECK(std::string(refused.message()).find("is QUEUED: it was asked to finish") !=
        std::string::npos);
  // It is cancelled as any other.
  CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(job)).state() == Job::CANCELLED);
}

TEST_CASE("a job that finishes survives the deaths of its worker and of the coordinator") {
  const auto kills_worker = GENERATE(true, false);
  const auto every = GENERATE(0, 2);
  auto world = MakeWorld();
  world->StartWorkers();
  Job longer = LongJob();
  longer.mutable_training()->set_checkpoint_every_steps(every);
  const std::string job = world->Submit(longer);
  world->RunUntil([&] {
    return world->Job(job).last_checkpoint_step() >= every && world->Job(job).step() >= 3;
  });
  world->worker(0).Hang(true);
  const int64_t end = Finish(*world, job).finish_step();
  if (kills_worker) {
    world->worker(0).Kill(/*restart=*/true);
  } else {
    world->CrashCoordinator();
  }
  world->worker(0).Hang(false);
  world->RunUntilState(job, Job::SUCCEEDED);
  const Job done = world->Job(job);
  // It is trained again up to where it was to end; workers that a coordinator finds again may have
  // had more at hand than it knew.
  CHECK((kills_worker ? done.step() == end : done.step() >= end));
  CHECK(done.step() == done.finish_step());
  world->CheckInvariants();
}

std::string WhyUnsaved(World& world, const std::string& job) {
  for (const v1::Event& event : world.Events(job)) {
    if (event.reason() == "LAST_STEP_NOT_SAVED") return event.message();
  }
  return "";
}

TEST_CASE("a job that is cancelled is saved first") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job longer = LongJob();
  longer.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(longer);
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  SECTION("its last step") {
    CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(job)).state() == Job::CANCELLING);
    world->RunUntilState(job, Job::CANCELLED);
    const Job done = world->Job(job);
    CHECK(done.step() >= 3);
    CHECK(done.last_checkpoint_step() == done.step());
    CHECK(!HasEvent(*world, job, "LAST_STEP_NOT_SAVED"));
  }
  SECTION("if that is quick: a disk that takes nothing holds it up for ten seconds") {
    world->FailSaves(absl::ResourceExhaustedError("disk full"));
    const int64_t asked_us = world->now_us();
    world->Get<Job>(Named<v1::CancelJobRequest>(job));
    world->RunUntilState(job, Job::CANCELLED);
    CHECK(world->Job(job).last_checkpoint_step() == 0);
    CHECK(world->now_us() - asked_us >= 9'000'000);
    CHECK(world->now_us() - asked_us <= 11'000'000);
    world->FailSaves(absl::OkStatus());
    CHECK(WhyUnsaved(*world, job).find("saving took too long") != std::string::npos);
  }
  SECTION("unless its worker is gone") {
    world->worker(0).Kill(/*restart=*/false);
    world->Get<Job>(Named<v1::CancelJobRequest>(job));
    world->RunUntilState(job, Job::CANCELLED);
    CHECK(world->Job(job).last_checkpoint_step() == 0);
    CHECK(WhyUnsaved(*world, job).find("step ") == 0);
  }
  SECTION("unless the disk is full") {
    world->SetRoom(0, 1000);
    world->Get<Job>(Named<v1::CancelJobRequest>(job));
    world->RunUntilState(job, Job::CANCELLED);
    CHECK(WhyUnsaved(*world, job).find("/data") != std::string::npos);
    world->SetRoom(2000, 1000);
  }
  SECTION("unless the coordinator is killed") {
    world->worker(0).Hang(true);
    CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(job)).state() == Job::CANCELLING);
    world->CrashCoordinator();
    world->RunUntilState(job, Job::CANCELLED);
    CHECK(WhyUnsaved(*world, job).find("was started again") != std::string::npos);
    world->worker(0).Hang(false);
  }
  world->Settle();
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
