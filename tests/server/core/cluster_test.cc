// Groups and workers, as stories.
#include <algorithm>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

v1::ClusterStatus Cluster(World& world) {
  return world.Get<v1::ClusterStatus>(v1::GetClusterRequest());
}

std::string SubmitLong(World& world, int epochs = 30) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(epochs);
  return world.Submit(job);
}

TEST_CASE("a worker that dies: the job goes on from its checkpoint, with the same numbers") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 7; });
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 6; });
  world->worker(0).Kill();
  world->RunUntilState(job, Job::QUEUED);
  const Job fallen = world->Job(job);
  CHECK(fallen.step() == fallen.last_checkpoint_step());
  CHECK(fallen.tokens() == fallen.step() * 80);  // 4 rows of 20 tokens a step
  CHECK(HasEvent(*world, job, "WORKER_LOST"));
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 2);
  CHECK_FALSE(HasEvent(*world, job, "NUMERICS_MISMATCH"));
  world->CheckInvariants();
}

TEST_CASE("a job that has lost steps is shown as it was at its checkpoint, loss and epoch too") {
  WorldOptions options;
  options.delay_us_max = 1000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();  // a batch is 4 of 12 rows
  content.mutable_training()->set_epochs(20);
  content.mutable_training()->set_checkpoint_every_steps(5);
  const std::string job = world->Submit(content);
  const auto lose = [&](int64_t last_step) {
    world->RunUntil([&] {
      const Job now = world->Job(job);
      return now.step() >= last_step && now.step() > now.last_checkpoint_step();
    });
    world->worker(0).Kill(/*restart=*/false);
    world->RunUntilState(job, Job::QUEUED);
    return world->Job(job);
  };
  const Job first = lose(3);
  CHECK(first.step() == 0);
  CHECK(first.epoch() == 0);
  CHECK_FALSE(first.has_loss());
  CHECK_FALSE(first.has_grad_norm());
  CHECK_FALSE(first.has_learning_rate());
  world->worker(0).Start();
  Job later = lose(8);
  world->Settle();
  later = world->Job(job);  // the checkpoint that was being written counts
  CHECK(later.step() >= 5);
  CHECK(later.step() == later.last_checkpoint_step());
  CHECK(later.epoch() == Approx(static_cast<double>(later.step()) / 3));
  const auto check_row = [&] {
    const Job now = world->Job(job);
    for (const v1::StepMetrics& row : world->Metrics(job)) {
      if (row.step() != now.step()) continue;
      CHECK(now.loss() == row.loss());
      CHECK(now.grad_norm() == row.grad_norm());
      CHECK(now.learning_rate() == row.learning_rate());
    }
    CHECK(now.has_loss());
  };
  check_row();
  world->worker(0).Start();
  world->RunUntil([&] { return world->Job(job).step() > later.step() + 2; });
  world->CrashCoordinator();
  CHECK(world->Job(job).step() == world->Job(job).last_checkpoint_step());
  check_row();
}

TEST_CASE("a job whose last checkpoint is being written says so in the queue") {
  WorldOptions options;
  options.delay_us_max = 1000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100);
  content.mutable_training()->set_checkpoint_every_steps(1);
  const std::string job = world->Submit(content);
  const std::string why = "the checkpoint that it goes on from is being written";
  bool seen = false;
  for (int step = 1; step < 100 && !seen; ++step) {
    world->RunUntil([&] { return world->Job(job).step() >= step; });
    int events = 0;  // some later, it is being written
    world->RunUntil([&] { return ++events > step % 20; });
    world->worker(0).Kill(/*restart=*/false);
    world->RunUntilState(job, Job::QUEUED);
    seen = world->Job(job).queue().why() == why;
    world->worker(0).Start();
  }
  CHECK(seen);
  world->RunUntilState(job, Job::SUCCEEDED);
}

TEST_CASE("a worker that falls silent is lost after its lease") {
  WorldOptions options;
  options.core.lease_ms = 4000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 4; });
  world->worker(0).Silence();
  world->RunUntil([&] { return HasEvent(*world, job, "WORKER_LOST"); });
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a group has no speed while its worker is silent, and its jobs are stalled") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100'000);
  const std::string job = world->Submit(content);
  world->RunUntil([&] { return world->Job(job).step() >= 100; });
  const auto speed = [&] {
    const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
    REQUIRE(cluster.groups_size() == 1);
    return cluster.groups(0).tokens_per_second();
  };
  CHECK(speed() > 0);
  CHECK(world->Job(job).stalled().empty());
  world->worker(0).Stop(20'000'000);
  world->Sleep(10'000'000);
  CHECK(world->Job(job).state() == Job::RUNNING);
  CHECK(speed() == 0);
  const auto announced = [&] {
    for (auto news = world->announced().rbegin(); news != world->announced().rend(); ++news) {
      if (news->job().name() == job) return news->job();
    }
    return Job();
  };
  for (const Job& shown : {world->Job(job), announced()}) {
    CHECK(shown.stalled() == "worker 'worker-0' says nothing for now");
    CHECK(shown.tokens_per_second() == 0);
    CHECK_FALSE(shown.has_seconds_left());
  }
  world->RunUntil([&] { return world->Job(job).stalled().empty(); });
  CHECK(announced().stalled().empty());
  CHECK(world->Job(job).tokens_per_second() == 0);  // nothing was measured since
  world->RunUntil([&] { return speed() > 0 && world->Job(job).tokens_per_second() > 0; });
  CHECK(world->Job(job).attempts() == 1);
}

TEST_CASE("of a stream that ends after its worker was silent, that is what is said") {
  for (const bool silent : {true, false}) {
    auto world = MakeWorld();
    world->StartWorkers();
    Job content = World::NewJob();
    content.mutable_training()->set_epochs(100'000);
    const std::string job = world->Submit(content);
    world->RunUntil([&] { return world->Job(job).step() >= 1; });
    if (silent) world->worker(0).Silence();
    world->Sleep(10'000'000);
    world->worker(0).EndStream(absl::UnavailableError("it is over"));
    world->RunUntil([&] { return HasEvent(*world, job, "WORKER_LOST"); });
    for (const v1::Event& event : world->Events(job)) {
      if (event.reason() != "WORKER_LOST") continue;
      CHECK_THAT(event.message(),
                 Catch::Contains(silent ? "had said nothing for 10 s" : "it is over"));
    }
  }
}

TEST_CASE("the cluster says how windows were packed, and how much of planning was hidden") {
  WorldOptions options;
  options.delay_us_max = 2000;
  options.plan_us = 200;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 20; });
  const v1::Group group = Cluster(*world).groups(0);
  CHECK(group.bound_microbatches() >= group.windows());
  CHECK(group.packings().at("greedy met the bound") > 0);
  CHECK(group.packings().at("cancelled") > 0);  // the first: the worker had nothing to do
  CHECK(group.planning_seconds() > 0);
  CHECK(group.planning_hidden_seconds() > 0);
  CHECK(group.planning_hidden_seconds() <= group.planning_seconds());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("peaks that heartbeats tell of are fitted, one a group") {
  WorldOptions options;
  options.core.group_idle_ms = 3 * options.core.heartbeat_ms;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const auto peaks = [&] { return CountNotes(*world, ": its worker's peak was "); };
  for (int64_t i = 1; i <= 6; ++i) {
    const std::string job = SubmitLong(*world);
    world->RunUntilState(job, Job::RUNNING);
    if (i <= 5) world->script().peak_resident_bytes = 50'000'000 + 1000 * i;
    const v1::Group group = Cluster(*world).groups(0);
    CHECK(group.memory_peaks() == i - 1);
    CHECK(group.memory_prediction_error() >= 0);
    CHECK(group.memory_prediction_error() < 1e-3);
    if (i == 6) CHECK(group.memory_prediction_error() > 0);
    world->RunUntilState(job, Job::SUCCEEDED);
    world->RunUntil([&] { return Cluster(*world).groups_size() == 0; });
    CHECK(peaks() == std::min<int64_t>(i, 5));  // the sixth group raised no peak
  }
  const auto last = std::ranges::find_if(world->notes(), [](const std::string& note) {
    return note.find("memory of 'm': counted + ") != std::string::npos &&
           note.find("(5 peaks, mean error of predictions 0.00") != std::string::npos;
  });
  CHECK(last != world->notes().end());
  world->CheckInvariants();
}

TEST_CASE("a plan that takes longer than the window before it is hurried, and holds up nothing") {
  WorldOptions options;
  options.delay_us_max = 2000;
  options.plan_us = 3'600'000'000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  const int64_t start = world->now_us();
  world->RunUntil([&] { return world->Job(job).step() >= 20; });
  CHECK(world->hurries() > 0);
  CHECK(world->now_us() - start < options.plan_us);
  const v1::Group group = Cluster(*world).groups(0);
  CHECK(group.planning_hidden_seconds() > 0);
  CHECK(group.planning_hidden_seconds() < group.planning_seconds());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a job with longer rows has the group formed again, nobody loses a saved step") {
  auto world = MakeWorld();
  world->SetLongest("long", 2000);
  world->AddDataset("long", 6);
  world->StartWorkers();
  const std::string first = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(first).step() >= 5; });
  Job longer = World::NewJob();
  longer.set_training_dataset("long");
  const std::string second = world->Submit(longer);
  world->RunUntilState(second, Job::SUCCEEDED);
  world->RunUntilState(first, Job::SUCCEEDED);
  CHECK(world->Job(first).attempts() == 2);
  CHECK_FALSE(HasEvent(*world, first, "WORKER_LOST"));
  // Cut and saved first: no step was executed twice.
  int64_t last = 0;
  for (const PlanInput& plan : world->plans()) {
    for (const SaveUnit& save : plan.saves) last = save.step;
  }
  for (const PlanInput& plan : world->plans()) {
    for (const LoadUnit& load : plan.loads) {
      if (load.slot.job() == first && load.step > 0) CHECK(load.step >= last);
    }
  }
  world->CheckInvariants();
}

TEST_CASE("another base model waits until the group has drained, and newcomers behind it wait") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string first = SubmitLong(*world, 10);
  world->RunUntilState(first, Job::RUNNING);
  Job other = World::NewJob();
  other.set_base_model("m2");
  const std::string second = world->Submit(other);
  world->RunUntilState(second, Job::QUEUED);
  const std::string third = world->Submit(World::NewJob());
  world->RunUntilState(first, Job::SUCCEEDED);
  CHECK(world->StateOf(third) == Job::QUEUED);
  world->RunUntilState(second, Job::SUCCEEDED);
  world->RunUntilState(third, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("two workers run two groups side by side") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job other = World::NewJob();
  other.set_base_model("m2");
  const std::string first = world->Submit(World::NewJob());
  const std::string second = world->Submit(other);
  world->RunUntil([&] {
    return world->StateOf(first) == Job::RUNNING && world->StateOf(second) == Job::RUNNING;
  });
  CHECK(Cluster(*world).groups_size() == 2);
  world->RunUntilState(first, Job::SUCCEEDED);
  world->RunUntilState(second, Job::SUCCEEDED);
}

TEST_CASE("a clean stop cuts, saves and lets workers go; the next start goes on from there") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 9; });
  REQUIRE(world->Call(StopRequested{}).ok());
  const int64_t saved = world->Job(job).last_checkpoint_step();
  CHECK(saved >= 9);
  CHECK(world->StateOf(job) == Job::QUEUED);
  CreateJob late;
  late.job = World::NewJob();
  CHECK(Reason(world->Call(late).status()) == "SHUTTING_DOWN");
  world->CrashCoordinator();
  CHECK(world->Job(job).step() == saved);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(static_cast<int64_t>(world->Metrics(job).size()) == world->Job(job).total_steps());
  world->CheckInvariants();
}

TEST_CASE("after a crash every live job goes on, and what ended stays as it was") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string done = world->Submit(World::NewJob());
  world->RunUntilState(done, Job::SUCCEEDED);
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 5; });
  const std::string before = world->Job(done).SerializeAsString();
  world->CrashCoordinator();
  CHECK(world->Job(done).SerializeAsString() == before);
  CHECK(world->StateOf(job) != Job::RUNNING);
  CHECK(world->Job(job).step() == world->Job(job).last_checkpoint_step());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a window that cannot be planned fails the jobs of its group, and the next one runs") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::RUNNING);
  world->FailPlans(absl::InternalError("the cache cannot be read"));
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "WINDOW_NOT_PLANNED");
  world->FailPlans(absl::OkStatus());
  const std::string next = world->Submit(World::NewJob());
  world->RunUntilState(next, Job::SUCCEEDED);
}

TEST_CASE("memory that others have taken: the jobs wait, are told, and go on when it is back") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->script().memory_taken = true;
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::PREPARING);
  world->RunUntilState(job, Job::QUEUED);
  world->Settle();
  CHECK(world->Job(job).queue().why() ==
        "worker 'worker-0' lacks memory that it offered and tries again: no memory is left");
  // Each try comes after a longer pause, so ten minutes are not many.
  const int64_t until = world->now_us() + 600'000'000;
  while (world->now_us() < until) {
    world->Sleep(1'000'000);
    world->Settle();
  }
  CHECK(world->Job(job).attempts() > 5);
  CHECK(world->Job(job).attempts() < 20);
  CHECK(world->StateOf(job) == Job::QUEUED);
  world->script().memory_taken = false;
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK_FALSE(world->Job(job).has_error());
  world->CheckInvariants();
}

TEST_CASE("a slot that finds its memory taken: its job waits, its neighbours go on") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string first = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(first).step() >= 3; });
  world->script().memory_taken = true;
  const std::string second = world->Submit(World::NewJob());
  world->RunUntilState(second, Job::PREPARING);
  world->RunUntilState(second, Job::QUEUED);
  const int64_t step = world->Job(first).step();
  world->RunUntil([&] { return world->Job(first).step() >= step + 3; });
  CHECK(world->StateOf(first) == Job::RUNNING);
  CHECK(world->StateOf(second) == Job::QUEUED);
  world->script().memory_taken = false;
  world->RunUntilState(second, Job::SUCCEEDED);
  world->RunUntilState(first, Job::SUCCEEDED);
  CHECK(world->Job(first).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("a group without jobs is dissolved after a while") {
  WorldOptions options;
  options.core.group_idle_ms = 60'000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Sleep(10'000'000);
  CHECK(Cluster(*world).groups_size() == 1);
  world->Sleep(80'000'000);
  CHECK(Cluster(*world).groups_size() == 0);
  const std::string next = world->Submit(World::NewJob());
  world->RunUntilState(next, Job::SUCCEEDED);
}

TEST_CASE("workers as others see them") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  auto workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  REQUIRE(workers.workers_size() == 1);
  CHECK(workers.workers(0).name() == "worker-0");
  CHECK(workers.workers(0).state() == v1::Worker::IDLE);
  const std::string job = SubmitLong(*world);
  world->RunUntilState(job, Job::RUNNING);
  workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  CHECK(workers.workers(0).state() == v1::Worker::BUSY);
  CHECK(workers.workers(0).group() == world->Job(job).group());
  CHECK(Cluster(*world).workers() == 1);
  CHECK(Cluster(*world).jobs_by_state().at("RUNNING") == 1);
  CHECK(Cluster(*world).groups(0).jobs(0) == job);
  world->worker(0).Kill(/*restart=*/false);
  world->RunUntilState(job, Job::QUEUED);
  workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  CHECK(workers.workers(0).state() == v1::Worker::AWAITED);
  CHECK(Cluster(*world).workers() == 0);
  world->Sleep(31'000'000);
  workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  CHECK(workers.workers(0).state() == v1::Worker::LOST);
}

}  // namespace
}  // namespace lorad::server
