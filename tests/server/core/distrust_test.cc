// A worker that lies costs its jobs nothing but time, and others are given the work.
#include <algorithm>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;
constexpr int64_t kSecond = 1'000'000;

// It ends the stream of worker 0, whatever state that is in.
worker::v1::WorkerMessage ALie() { return {}; }

v1::Worker WorkerNamed(World& world, const std::string& name) {
  const auto workers = world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  const auto found = std::ranges::find(workers.workers(), name, &v1::Worker::name);
  REQUIRE(found != workers.workers().end());
  return *found;
}

Job LongJob() {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(100);
  job.mutable_training()->set_checkpoint_every_steps(0);
  return job;
}

std::string NameOf(World& world) {
  return world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0).name();
}

TEST_CASE("a worker that lies again and again fails no job, however often") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  const std::string liar = NameOf(*world);
  const std::string job = world->Submit(LongJob());
  for (int lie = 1; lie <= 12; ++lie) {
    world->RunUntilState(job, Job::PREPARING);
    world->worker(0).Lie(ALie());
    world->RunUntilState(job, Job::QUEUED);
    CHECK(WorkerNamed(*world, liar).lies() == lie);
  }
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK_FALSE(world->Job(job).has_error());
  CHECK_FALSE(HasEvent(*world, job, "WORKER_LOST"));
  // Told once, and counted.
  std::vector<v1::Event> events = world->Events(job);
  std::erase_if(events, [](const v1::Event& event) { return event.reason() != "WORKER_LIED"; });
  REQUIRE(events.size() == 1);
  CHECK(events[0].count() == 12);
  world->CheckInvariants();
}

TEST_CASE("it rests for a second, then for twice as long each time, for a minute at most") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  const std::string liar = NameOf(*world);
  const std::string job = world->Submit(LongJob());
  for (const int64_t seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    world->RunUntilState(job, Job::PREPARING);
    world->worker(0).Lie(ALie());
    world->RunUntilState(job, Job::QUEUED);
    const int64_t lied_us = world->now_us();
    world->RunUntil([&] { return WorkerNamed(*world, liar).state() == v1::Worker::IDLE; });
    CHECK(WorkerNamed(*world, liar).resting().starts_with("said what does not fit"));
    CHECK(world->Job(job).queue().why().find("said what does not fit") != std::string::npos);
    world->RunUntilState(job, Job::PREPARING);
    CHECK(world->now_us() - lied_us >= seconds * kSecond);
    CHECK(world->now_us() - lied_us < (seconds + 2) * kSecond);
    CHECK(WorkerNamed(*world, liar).resting().empty());
  }
  // Honest for long, and then again: that was a mishap.
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Sleep(3600 * kSecond);
  world->worker(0).Lie(ALie());
  world->Settle();
  CHECK(CountNotes(*world, "rests for 1000 ms") == 2);
}

TEST_CASE("while it rests, another worker does the work") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  world->worker(0).Lie(ALie());
  world->RunUntil([&] { return world->Job(job).attempts() == 2; });
  const std::string group = world->Job(job).group();
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 2);
  const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  REQUIRE(cluster.groups_size() == 1);
  CHECK(cluster.groups(0).name() == group);
  CHECK(WorkerNamed(*world, cluster.groups(0).workers(0)).lies() == 0);
  world->CheckInvariants();
}

TEST_CASE("a checkpoint that a job has not got cannot be damaged") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return !world->plans().empty() && !world->plans().back().loads.empty(); });
  world->worker(0).Hang(true);
  world->Settle();
  worker::v1::WorkerMessage lie;
  worker::v1::SlotFailed& failed = *lie.mutable_report()->mutable_slot_failed();
  failed.set_job(job);
  failed.set_reason("CHECKPOINT_CORRUPT");
  world->worker(0).Lie(lie);
  world->RunUntil([&] { return HasEvent(*world, job, "WORKER_LIED"); });
  world->worker(0).Hang(false);
  world->RunUntilState(job, Job::SUCCEEDED);
}

}  // namespace
}  // namespace lorad::server
