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
  CHECK(failed.step() == 2);
  CHECK(world->Job(good).attempts() == 1);
  world->CheckInvariants();
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

worker::v1::Hello HelloOf(const std::string& name, int64_t memory_bytes) {
  worker::v1::Hello hello;
  hello.set_protocol_version(1);
  hello.set_worker(name);
  hello.set_device("cpu");
  hello.set_threads(2);
  hello.set_numerics_id("cpu");
  hello.set_memory_bytes(memory_bytes);
  return hello;
}

// A world of so many alike workers.
std::unique_ptr<World> WorldOf(int workers, int64_t memory_bytes) {
  WorldOptions options;
  options.workers = 0;
  auto world = MakeWorld(options);
  for (int i = 0; i < workers; ++i) {
    world->Connect(HelloOf(absl::StrCat("w", i), memory_bytes));
  }
  return world;
}

// Its slot, which stages share, is most of what it takes.
Job Large() {
  Job large = World::NewJob();
  large.mutable_adapter()->set_rank(512);
  large.mutable_adapter()->clear_target_modules();
  for (const char* target : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    large.mutable_adapter()->add_target_modules(target);
  }
  return large;
}

// The job's error where so many workers with that memory are connected, and no other has come for a
// while; empty where it is QUEUED.
std::string ErrorOn(int workers, int64_t memory_bytes, int stages = 0) {
  auto world = WorldOf(workers, memory_bytes);
  world->AddModel("cut", stages);
  Job large = Large();
  large.set_base_model("cut");
  const std::string job = world->Submit(large);
  world->RunUntil([&] { return world->StateOf(job) != Job::VALIDATING; });
  return world->Job(job).error().reason();
}

v1::JobEstimate EstimateOn(World& world, const Job& job) {
  EstimateJob request;
  request.job = job;
  return world.Get<v1::JobEstimate>(request);
}

TEST_CASE("a job that fits no worker alone is accepted where it fits several together") {
  int64_t memory_bytes = int64_t{1} << 30;
  while (ErrorOn(1, memory_bytes).empty()) memory_bytes -= memory_bytes / 32;
  CHECK(ErrorOn(1, memory_bytes) == "MEMORY_NEVER_FITS");
  CHECK(ErrorOn(2, memory_bytes).empty());
  CHECK(ErrorOn(2, 1 << 10) == "MEMORY_NEVER_FITS");
  // Its model may forbid that, and then that is what it is told.
  CHECK(ErrorOn(2, memory_bytes, 1) == "MEMORY_NEVER_FITS");

  auto world = WorldOf(2, memory_bytes);
  const v1::JobEstimate estimate = EstimateOn(*world, Large());
  CHECK(estimate.fits());
  REQUIRE(estimate.stages_size() == 2);
  CHECK(estimate.stages(0).first_block() == 0);
  CHECK(estimate.stages(0).end_block() == estimate.stages(1).first_block());
  for (const auto& stage : estimate.stages()) {
    CHECK(stage.budget_bytes() == memory_bytes);
    CHECK(stage.bytes() > 0);
    CHECK(stage.bytes() <= stage.budget_bytes());
  }
  CHECK(EstimateOn(*world, World::NewJob()).stages_size() == 0);
}

TEST_CASE("a job that fits nowhere waits for workers that may still come") {
  constexpr int64_t kJoinUs = 10'000'000;
  WorldOptions options;
  options.workers = 0;
  auto world = MakeWorld(options);
  world->Connect(HelloOf("small", 1 << 10));
  const std::string job = world->Submit(World::NewJob());
  const std::string other = world->Submit(World::NewJob());
  world->Sleep(kJoinUs - 1'000'000);
  CHECK(world->StateOf(job) == Job::VALIDATING);
  world->Connect(HelloOf("smaller", 1 << 9));
  world->Sleep(kJoinUs - 1'000'000);
  CHECK(world->StateOf(job) == Job::VALIDATING);
  REQUIRE(world->Call(Named<v1::CancelJobRequest>(other)).ok());
  SECTION("and one comes") {
    world->Connect(HelloOf("large", int64_t{1} << 34));
    world->Sleep(2'000'000);
    CHECK(world->StateOf(job) != Job::VALIDATING);
    CHECK(IsLive(world->StateOf(job)));
  }
  SECTION("one that comes later and whose rows are known waits like it") {
    CHECK(world->StateOf(world->Submit(World::NewJob())) == Job::VALIDATING);
    CreateJob asks;
    asks.job = World::NewJob();
    asks.validate_only = true;
    CHECK(Reason(world->Call(asks).status()) == "MEMORY_NEVER_FITS");
  }
  SECTION("and none does") {
    world->Sleep(2'000'000);
    CHECK(world->Job(job).error().reason() == "MEMORY_NEVER_FITS");
    CreateJob late;
    late.job = World::NewJob();
    CHECK(Reason(world->Call(late).status()) == "MEMORY_NEVER_FITS");
  }
}

TEST_CASE("a model that is registered for several stages has no job on fewer") {
  constexpr int64_t kPlenty = int64_t{1} << 34;
  auto world = WorldOf(1, kPlenty);
  world->AddModel("cut", 2);
  Job cut = World::NewJob();
  cut.set_base_model("cut");
  const v1::JobEstimate lacking = EstimateOn(*world, cut);
  CHECK_FALSE(lacking.fits());
  REQUIRE(lacking.warnings_size() == 1);
  CHECK_THAT(lacking.warnings(0), Catch::Contains("registered for 2 stages, and no 2 workers"));
  const std::string job = world->Submit(cut);
  world->Settle();
  CHECK(world->Job(job).state() == Job::QUEUED);
  CHECK_THAT(world->Job(job).queue().why(),
             Catch::Contains("registered for 2 stages, and no 2 workers of one numerics id"));
  CHECK(ErrorOn(2, kPlenty, 2).empty());
  CHECK(ErrorOn(2, 1 << 10, 2) == "MEMORY_NEVER_FITS");
  CHECK(ErrorOn(1, 1 << 10, 2).empty());

  auto two = WorldOf(2, kPlenty);
  two->AddModel("cut", 2);
  const v1::JobEstimate estimate = EstimateOn(*two, cut);
  CHECK(estimate.fits());
  CHECK(estimate.warnings_size() == 0);
  CHECK(estimate.stages_size() == 2);
  // A microbatch a step: its stages work one after the other, the slowest at most as long as both.
  const double alone_s = EstimateOn(*two, World::NewJob()).seconds();
  CHECK(estimate.seconds() > 0.99 * alone_s);
  CHECK(estimate.seconds() < 2 * alone_s);
  CHECK_FALSE(estimate.workers(0).fits_alone());
}

TEST_CASE("a model has at most as many stages as blocks, and they can be changed") {
  auto world = WorldOf(2, int64_t{1} << 34);
  v1::UpdateModelRequest update;
  update.mutable_model()->set_name("m");
  for (const int stages : {-1, 5, 1 << 30}) {
    INFO(stages << " stages");
    CHECK(Reason(world->Call(World::NewModel("cut", stages)).status()) == "INVALID_FIELDS");
    update.mutable_model()->set_stages(stages);
    CHECK(Reason(world->Call(update).status()) == "INVALID_FIELDS");
  }
  update.mutable_model()->set_name("nobody");
  CHECK(Reason(world->Call(update).status()) == "MODEL_NOT_FOUND");
  const auto first_stages = [&] { return EstimateOn(*world, World::NewJob()).stages_size(); };
  CHECK(first_stages() == 0);
  world->AddDataset("large", 2048);
  Job large = World::NewJob();
  large.set_training_dataset("large");
  large.mutable_training()->set_batch_size(1024);
  const double alone_s = EstimateOn(*world, World::NewJob()).seconds();
  const double large_alone_s = EstimateOn(*world, large).seconds();
  update.mutable_model()->set_name("m");
  update.mutable_model()->set_stages(2);
  CHECK(world->Get<v1::Model>(update).stages() == 2);
  CHECK(first_stages() == 2);
  // Its steps are of one microbatch: one stage works after the other.
  CHECK(EstimateOn(*world, World::NewJob()).seconds() >= 0.99 * alone_s);
  CHECK(EstimateOn(*world, World::NewJob()).seconds() < 1.6 * alone_s);
  // Of many: the stages work at once, as long as the slower one takes.
  CHECK(EstimateOn(*world, large).seconds() >= 0.5 * large_alone_s);
  CHECK(EstimateOn(*world, large).seconds() < 0.8 * large_alone_s);
  // It is kept.
  world->CrashCoordinator();
  CHECK(world->Get<v1::Model>(Named<v1::GetModelRequest>("m")).stages() == 2);
}

TEST_CASE("an idle group is on as many workers as its model is to be, jobs in one go on") {
  auto world = MakeWorld();
  world->StartWorkers();
  const auto update_to = [&](int stages) {
    v1::UpdateModelRequest update;
    update.mutable_model()->set_name("m");
    update.mutable_model()->set_stages(stages);
    REQUIRE(world->Call(update).ok());
    world->Sleep(1000);
    return world->Get<v1::ClusterStatus>(v1::GetClusterRequest()).groups_size();
  };
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::RUNNING);
  CHECK(update_to(2) == 1);
  CHECK(update_to(1) == 1);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Sleep(1'000'000);  // its slot is freed
  CHECK(update_to(1) == 1);
  CHECK(update_to(0) == 1);  // on as many as it needs
  CHECK(update_to(2) == 0);
}

TEST_CASE("after a restart no job is judged by the workers that came back first") {
  WorldOptions options;
  options.workers = 0;
  auto world = MakeWorld(options);
  const worker::v1::Hello small = HelloOf("small", 1 << 10);
  world->SlowChecks("train", 1'000'000);
  const std::string job = world->Submit(World::NewJob());
  world->CrashCoordinator();
  world->Connect(small);
  world->RunUntilState(job, Job::QUEUED);
  // Nor later, by those that are away.
  auto known = MakeWorld(options);
  known->Connect(HelloOf("large", 1LL << 30));
  known->Settle();
  known->CrashCoordinator();
  known->Connect(small);
  known->Sleep(2 * options.core.lease_ms * 1000);
  known->RunUntilState(known->Submit(World::NewJob()), Job::QUEUED);
  // At a first start there is no other to wait for.
  auto fresh = MakeWorld(options);
  fresh->Connect(small);
  fresh->RunUntilState(fresh->Submit(World::NewJob()), Job::FAILED);
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
  CHECK(world->Call(Named<v1::DeleteJobRequest>(first)).ok());
  CHECK_FALSE(world->disk().contains("checkpoints/" + first + "/6"));
  CHECK(absl::IsNotFound(world->Call(Named<v1::GetJobRequest>(first)).status()));
}

}  // namespace
}  // namespace lorad::server
