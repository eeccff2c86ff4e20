// Workers that are silent, hang or have a namesake, and a coordinator that stood still, as stories.
#include <algorithm>
#include <memory>

#include "server/core/cluster/patience.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

constexpr int64_t kSecond = 1'000'000;

v1::Worker WorkerOf(World& world) {
  return world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0);
}

std::string SubmitLong(World& world) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(30);
  return world.Submit(job);
}

// A world with a worker whose patience ends after a minute, and a long job that has done five steps.
struct Impatient {
  std::unique_ptr<World> world;
  std::string job;

  Impatient() {
    WorldOptions options;
    options.core.patience_floor_ms = 60'000;
    world = MakeWorld(options);
    world->StartWorkers();
    job = SubmitLong(*world);
    world->RunUntil([&] { return world->Job(job).step() >= 5; });
  }
};

// ---- patience ----

TEST_CASE("patience is a multiple of what is expected, and never less than its floor") {
  CoreOptions options;
  CHECK(PatienceToForm(options, 0).limit_us == 600 * kSecond);
  const Patience model = PatienceToForm(options, int64_t{14'000'000'000});  // 280 s at 50 MB/s
  CHECK(model.expected_s == 280);
  CHECK(model.limit_us == 2800 * kSecond);
  const planner::TimeModel fast({{0, 0.001, 0}, {0, 0.001, 0}});
  const planner::TimeModel slow({{0, 10, 0}, {0, 10, 0}});
  const WindowWork work{.sum = {8192, 1e6}, .microbatches = 1};
  CHECK(PatienceFor(options, work, fast, 1, fast).limit_us == 600 * kSecond);
  // 8192 tokens, 10 ms each, forward and backward: 163.84 s, whoever says so.
  CHECK(PatienceFor(options, work, slow, 1, fast).limit_us == 1'638'400'000);
  CHECK(PatienceFor(options, work, fast, 1, slow).limit_us == 1'638'400'000);
  CHECK(PatienceFor(options, work, slow, 3, fast).limit_us == 4'915'200'000);
  CHECK(PatienceFor(options, work, fast, 3, slow).limit_us == 1'638'400'000);
  options.patience = 1e300;
  CHECK(PatienceToForm(options, 1).limit_us == 30 * 24 * 3600 * kSecond);
}

TEST_CASE("a worker is overdue a lease after what it was asked should have been done") {
  CoreOptions options;  // a lease is 30 s
  const Asked forms{{.expected_s = 280, .limit_us = 2800 * kSecond}, "it does not form group-1"};
  struct Case {
    std::optional<Asked> asked;
    int64_t quiet_us;
    bool is_lost, is_overdue;
  };
  const Case cases[] = {
      {std::nullopt, 3600 * kSecond, false, false}, {forms, 310 * kSecond, false, false},
      {forms, 311 * kSecond, false, true},          {forms, 2801 * kSecond, true, true},
      {Asked{}, 30 * kSecond, false, false},  // of no known time, and asked for again if it is lost
      {Asked{}, 31 * kSecond, false, true},
  };
  for (const Case& one : cases) {
    CAPTURE(one.quiet_us);
    CHECK(WhyImpatient(one.asked, one.quiet_us).empty() == !one.is_lost);
    CHECK(IsOverdue(options, one.asked, one.quiet_us) == one.is_overdue);
  }
}

TEST_CASE("a worker that is alive and never forms its group is lost") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::PREPARING);
  const int64_t start = world->now_us();
  world->Sleep(590 * kSecond);
  CHECK(world->StateOf(job) == Job::PREPARING);
  world->RunUntilState(job, Job::QUEUED);
  CHECK(world->now_us() - start < 620 * kSecond);
  CHECK(CountNotes(*world, "it does not form group-1 for 6") == 1);
  CHECK(HasEvent(*world, job, "WORKER_LOST"));
  world->worker(0).Hang(false);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a worker that is alive and reports nothing of its window is lost, patience as set") {
  Impatient house;
  const std::unique_ptr<World>& world = house.world;
  const std::string& job = house.job;
  world->worker(0).Hang(true);
  const int64_t start = world->now_us();
  SECTION("in a window") {
    world->RunUntilState(job, Job::QUEUED);
    CHECK(CountNotes(*world, "it reports nothing of window") == 1);
    CHECK(world->now_us() - start > 60 * kSecond);
    CHECK(world->now_us() - start < 80 * kSecond);
    world->worker(0).Hang(false);
    world->RunUntilState(job, Job::SUCCEEDED);
  }
  SECTION("in a cut: what is cancelled is so when the worker is lost") {
    world->Get<Job>(Named<v1::CancelJobRequest>(job));
    world->RunUntilState(job, Job::CANCELLED);
    CHECK(world->now_us() - start < 80 * kSecond);
  }
  SECTION("one that goes on in time is kept") {
    world->Sleep(50 * kSecond);
    world->worker(0).Hang(false);
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(world->Job(job).attempts() == 1);
  }
  world->CheckInvariants();
}

TEST_CASE("a worker that is alive and saves nothing of what it was told to is lost, too") {
  Impatient house;
  const std::unique_ptr<World>& world = house.world;
  const std::string& job = house.job;
  const bool tells = GENERATE(false, true);  // that it could not, and tries again
  if (tells) {
    world->script().shards_held = {job};
  } else {
    world->worker(0).mischief().hangs_uploads = true;
  }
  world->Get<Job>(Named<v1::PauseJobRequest>(job));
  world->Sleep(50 * kSecond);
  CHECK(world->StateOf(job) == Job::PAUSING);
  if (tells) {
    CHECK_FALSE(world->Job(job).unsaved().empty());
    world->Sleep(1800 * kSecond);
    CHECK(world->StateOf(job) == Job::PAUSING);
    CHECK(CountNotes(*world, "is gone") == 0);
    world->script().shards_held.clear();
    world->worker(0).ReleaseShards();
    world->RunUntilState(job, Job::PAUSED);
  } else {
    world->Sleep(30 * kSecond);
    CHECK(world->StateOf(job) == Job::PAUSED);
    CHECK(CountNotes(*world, "'worker-0' is gone: it does not save job ") == 1);
    world->worker(0).mischief().hangs_uploads = false;
  }
  world->Get<Job>(Named<v1::ResumeJobRequest>(job));
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a worker with nothing to do is never lost for it") {
  WorldOptions options;
  options.core.patience_floor_ms = 60'000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Sleep(3600 * kSecond);
  CHECK(CountNotes(*world, "is gone") == 0);
  CHECK(WorkerOf(*world).restarts() == 0);
}

// ---- a coordinator that stood still ----

TEST_CASE("a coordinator that stood still loses no living worker, whatever is due first") {
  for (int64_t offset_ms = 0; offset_ms < 8000; offset_ms += 250) {
    CAPTURE(offset_ms);
    auto world = MakeWorld();
    world->StartWorkers();
    const std::string job = SubmitLong(*world);
    world->RunUntil([&] { return world->Job(job).step() >= 5; });
    world->worker(0).Hang(true);
    world->Sleep(offset_ms * 1000);
    world->StandStill(3600 * kSecond);
    world->Sleep(20 * kSecond);
    CHECK(CountNotes(*world, "is gone") == 0);
    CHECK(CountNotes(*world, "the coordinator stood still for 3") == 1);
    CHECK(world->StateOf(job) == Job::RUNNING);
    world->worker(0).Hang(false);
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(world->Job(job).attempts() == 1);
  }
}

TEST_CASE("nobody knows how fast jobs are that trained while the coordinator stood still") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).tokens_per_second() > 0; });
  world->StandStill(3600 * kSecond);
  world->RunUntil([&] { return CountNotes(*world, "the coordinator stood still for 3") == 1; });
  CHECK(world->Job(job).tokens_per_second() == 0);
  CHECK(world->Job(job).seconds_left() == 0);
  world->RunUntil([&] { return world->Job(job).tokens_per_second() > 0; });
}

TEST_CASE("a worker that is silent after a stand-still is lost a lease later") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 5; });
  world->worker(0).Silence();
  world->StandStill(60 * kSecond);
  world->Sleep(25 * kSecond);
  CHECK_FALSE(HasEvent(*world, job, "WORKER_LOST"));
  world->Sleep(20 * kSecond);
  CHECK(HasEvent(*world, job, "WORKER_LOST"));
}

// ---- two of one name ----

TEST_CASE("of two workers of one name the living one stays, and the other may try again") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 5; });
  const uint64_t second = world->Connect(world->worker(0).hello());
  world->Settle();
  REQUIRE_FALSE(world->IsConnected(second));
  CHECK(Reason(world->closed(second)) == "WORKER_NAME_TAKEN");
  CHECK(absl::IsUnavailable(world->closed(second)));
  CHECK(WorkerOf(*world).restarts() == 0);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 1);
}

TEST_CASE("one that has been silent for a few heartbeats gives its name away") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = SubmitLong(*world);
  world->RunUntil([&] { return world->Job(job).step() >= 5; });
  world->worker(0).Silence();
  world->Sleep(4 * kSecond);
  const uint64_t early = world->Connect(world->worker(0).hello());
  world->Settle();
  CHECK_FALSE(world->IsConnected(early));
  world->Sleep(2 * kSecond);
  const uint64_t late = world->Connect(world->worker(0).hello());
  world->RunUntil([&] { return HasEvent(*world, job, "WORKER_LOST"); });
  CHECK(world->IsConnected(late));
}

TEST_CASE("a worker that is started again before its end was heard of gets its name back") {
  WorldOptions options;
  options.delay_us_max = 200'000;  // longer than a restart takes
  for (options.seed = 1; options.seed <= 20; ++options.seed) {
    CAPTURE(options.seed);
    auto world = MakeWorld(options);
    world->StartWorkers();
    const std::string job = world->Submit(World::NewJob());
    world->RunUntil([&] { return world->Job(job).step() >= 3; });
    world->worker(0).Kill();
    world->RunUntilState(job, Job::SUCCEEDED);
    world->CheckInvariants();
  }
}

}  // namespace
}  // namespace lorad::server
