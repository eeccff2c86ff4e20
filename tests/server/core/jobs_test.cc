// The way of a job, as stories.
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

TEST_CASE("a job goes its way and succeeds") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(StatesOf(*world, job) == std::vector<State>{Job::QUEUED, Job::PREPARING, Job::RUNNING,
                                                    Job::FINALIZING, Job::SUCCEEDED});
  const Job done = world->Job(job);
  CHECK(done.total_steps() == 6);  // 12 rows, batches of 4, 2 epochs
  CHECK(done.step() == 6);
  CHECK(done.epoch() == 2);
  CHECK(done.total_tokens() == 480);
  CHECK(done.tokens() == 480);
  CHECK(done.attempts() == 1);
  CHECK(done.loss() == sim::TrainLoss(job, 6));
  CHECK(done.last_checkpoint_step() == 6);
  CHECK(done.has_start_time());
  CHECK(done.has_end_time());
  CHECK(world->disk().contains("checkpoints/" + job + "/2"));
  CHECK(world->disk().contains("checkpoints/" + job + "/4"));
  CHECK(world->disk().contains("checkpoints/" + job + "/6"));
  world->CheckInvariants();
}

TEST_CASE("evaluations stand at the start, every so many steps, and at the end") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.set_validation_dataset("valid");
  content.mutable_training()->set_eval_every_steps(4);
  const std::string job = world->Submit(content);
  world->RunUntilState(job, Job::SUCCEEDED);
  std::vector<int64_t> steps;
  for (const v1::EvaluationMetrics& row : world->Evaluations(job)) steps.push_back(row.step());
  CHECK(steps == std::vector<int64_t>{0, 4, 6});
  world->CheckInvariants();
}

TEST_CASE("a long evaluation comes in parts, its sequences each once") {
  WorldOptions options;
  options.core.evaluate_sequences = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();
  content.set_validation_dataset("valid");
  const std::string job = world->Submit(content);
  world->RunUntilState(job, Job::SUCCEEDED);
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const PlanInput& plan : world->plans()) {
    for (const EvaluateUnit& unit : plan.evaluates) {
      if (unit.step == 0) parts.emplace_back(unit.first_sequence, unit.sequences);
    }
  }
  CHECK(parts == std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 2}, {4, 1}});
  world->CheckInvariants();
}

TEST_CASE("jobs on one model are packed into the same microbatches") {
  auto world = MakeWorld();
  std::vector<std::string> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(world->Submit(World::NewJob()));
  world->StartWorkers();
  for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
  for (const std::string& job : jobs) {
    CHECK(world->Job(job).adapters_per_microbatch() >= 2);
    CHECK(world->Job(job).attempts() == 1);
  }
  world->CheckInvariants();
}

TEST_CASE("one that comes later joins at a window border, and leaves the others alone") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job longer = World::NewJob();
  longer.mutable_training()->set_epochs(20);
  const std::string first = world->Submit(longer);
  world->RunUntil([&] { return world->Job(first).step() >= 5; });
  const std::string second = world->Submit(World::NewJob());
  world->RunUntilState(second, Job::SUCCEEDED);
  CHECK(world->StateOf(first) == Job::RUNNING);
  world->RunUntilState(first, Job::SUCCEEDED);
  CHECK(world->Job(first).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("cancelled, wherever it stands") {
  auto world = MakeWorld();
  SECTION("in the queue") {
    const std::string job = world->Submit(World::NewJob());
    world->Settle();
    CHECK(world->StateOf(job) == Job::QUEUED);
    CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(job)).state() == Job::CANCELLED);
    CHECK(StatesOf(*world, job) ==
          std::vector<State>{Job::QUEUED, Job::CANCELLING, Job::CANCELLED});
  }
  SECTION("while it runs; its neighbour goes on") {
    world->StartWorkers();
    Job longer = World::NewJob();
    longer.mutable_training()->set_epochs(20);
    const std::string job = world->Submit(longer);
    const std::string neighbour = world->Submit(longer);
    world->RunUntil([&] { return world->Job(job).step() >= 3; });
    CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(job)).state() == Job::CANCELLING);
    // Again is no error.
    world->Get<Job>(Named<v1::CancelJobRequest>(job));
    world->RunUntilState(job, Job::CANCELLED);
    world->RunUntilState(neighbour, Job::SUCCEEDED);
    CHECK(world->Job(neighbour).attempts() == 1);
    CHECK(world->Job(job).step() < world->Job(job).total_steps());
    CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(job)).state() == Job::CANCELLED);
    world->CheckInvariants();
  }
  SECTION("while its group is being formed") {
    world->StartWorkers();
    const std::string job = world->Submit(World::NewJob());
    world->RunUntilState(job, Job::PREPARING);
    world->Get<Job>(Named<v1::CancelJobRequest>(job));
    world->RunUntilState(job, Job::CANCELLED);
    const std::string next = world->Submit(World::NewJob());
    world->RunUntilState(next, Job::SUCCEEDED);
  }
}

TEST_CASE("a loss that is not finite fails its job alone") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string bad = world->Submit(World::NewJob());
  const std::string good = world->Submit(World::NewJob());
  world->script().bad_steps[bad] = 3;
  world->RunUntilState(bad, Job::FAILED);
  world->RunUntilState(good, Job::SUCCEEDED);
  const Job failed = world->Job(bad);
  CHECK(failed.error().category() == v1::JobError::USER);
  CHECK(failed.error().reason() == "NOT_FINITE");
  CHECK(failed.error().message().find("step 3") != std::string::npos);
  // Of 12 rows in batches of 4, the third batch; no sequence's loss is to blame.
  CHECK(failed.error().message().find("its batch is of lines 9, 10, 11, 12 of dataset 'train'") !=
        std::string::npos);
  CHECK_THAT(failed.error().message(),
             Catch::Matchers::EndsWith("lower training.learning_rate, or look at those rows"));
  CHECK(failed.step() == 2);
  CHECK(world->Job(good).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("a loss that is not finite before anything is trained is not the learning rate's") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string bad = world->Submit(World::NewJob());
  world->script().bad_steps[bad] = 1;
  world->RunUntilState(bad, Job::FAILED);
  CHECK_THAT(world->Job(bad).error().message(),
             Catch::Matchers::EndsWith(
                 "nothing is trained yet, so look at those rows, and at the weights of base "
                 "model 'm'"));
}

TEST_CASE("a loss that is not finite while the next window is planned closes no worker") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.delay_us_max = 2000;
    options.plan_us = 2000;
    auto world = MakeWorld(options);
    world->StartWorkers();
    const std::string bad = world->Submit(World::NewJob());
    const std::string good = world->Submit(World::NewJob());
    world->script().bad_steps[bad] = 3;
    world->RunUntilState(bad, Job::FAILED);
    world->RunUntilState(good, Job::SUCCEEDED);
    INFO("seed " << seed);
    CHECK(world->Job(bad).error().reason() == "NOT_FINITE");
    CHECK(world->Job(good).attempts() == 1);
  }
}

TEST_CASE("bad rows fail a job with the line; where they are known they refuse it") {
  auto world = MakeWorld();
  world->SpoilRows("train", 7);
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "INVALID_ROWS");
  CHECK(world->Job(job).error().category() == v1::JobError::USER);
  CHECK(world->Job(job).error().field() == "training_dataset");
  CHECK(world->Job(job).error().line() == 7);
  CHECK(StatesOf(*world, job) == std::vector<State>{Job::FAILED});
  CreateJob again;
  again.job = World::NewJob();
  const absl::Status status = world->Call(again).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Reason(status) == "INVALID_ROWS");
}

TEST_CASE("a job that can never fit is refused where workers are known, and fails where not") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  Job huge = World::NewJob();
  huge.mutable_adapter()->set_rank(512);
  huge.mutable_adapter()->clear_target_modules();
  for (const char* target : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    huge.mutable_adapter()->add_target_modules(target);
  }
  world->SetLongest("train", 1 << 20);
  huge.mutable_training()->set_max_length(1 << 20);
  const std::string job = world->Submit(huge);
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "MEMORY_NEVER_FITS");
}

TEST_CASE("validate_only stores nothing and waits for the rows") {
  auto world = MakeWorld();
  CreateJob request;
  request.job = World::NewJob();
  request.validate_only = true;
  const Job job = world->Get<Job>(request);
  CHECK(job.total_steps() == 6);
  CHECK(job.name().empty());
  CHECK(world->Get<JobSnapshot>(SnapshotJobs{}).jobs.empty());
  world->SpoilRows("valid", 2);
  request.job.set_validation_dataset("valid");
  CHECK(Reason(world->Call(request).status()) == "INVALID_ROWS");
}

TEST_CASE("in the queue a job says its place and why") {
  auto world = MakeWorld();
  const std::string first = world->Submit(World::NewJob());
  const std::string second = world->Submit(World::NewJob());
  Job urgent = World::NewJob();
  urgent.set_priority(5);
  const std::string third = world->Submit(urgent);
  world->Settle();
  CHECK(world->Job(third).queue().place() == 1);
  CHECK(world->Job(first).queue().place() == 2);
  CHECK(world->Job(second).queue().place() == 3);
  CHECK_FALSE(world->Job(first).queue().why().empty());
}

TEST_CASE("an adapter that went on from another job's checkpoint keeps that in use") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string first = world->Submit(World::NewJob());
  world->RunUntilState(first, Job::SUCCEEDED);
  Job next = World::NewJob();
  next.mutable_adapter()->set_init_from(first + "/4");
  next.mutable_training()->set_epochs(10);
  const std::string second = world->Submit(next);
  world->RunUntilState(second, Job::RUNNING);
  v1::DeleteCheckpointRequest checkpoint;
  checkpoint.set_job(first);
  checkpoint.set_step(4);
  CHECK(Reason(world->Call(checkpoint).status()) == "IN_USE");
  CHECK(Reason(world->Call(Named<v1::DeleteJobRequest>(first)).status()) == "IN_USE");
  CHECK(world->plans()[world->plans().size() - 1].loads.empty());
  world->RunUntilState(second, Job::SUCCEEDED);
  CHECK(world->Call(checkpoint).ok());
  CHECK_FALSE(world->disk().contains("checkpoints/" + first + "/4"));
  const absl::Status again = world->Call(checkpoint).status();
  CHECK(Reason(again) == "CHECKPOINT_NOT_FOUND");
  CHECK(again.message() == "job '" + first + "' has no checkpoint of step 4; it has steps 2, 6");
  CHECK(world->Call(Named<v1::DeleteJobRequest>(first)).ok());
  CHECK_FALSE(world->disk().contains("checkpoints/" + first + "/6"));
  CHECK(absl::IsNotFound(world->Call(Named<v1::GetJobRequest>(first)).status()));
}

}  // namespace
}  // namespace lorad::server
