// Groups on GPUs that are formed again to make room, as stories.
#include <algorithm>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

Job LongJob(int rank = 8) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(200);
  job.mutable_adapter()->set_rank(rank);
  return job;
}

// GPUs with room for the longest microbatches and two jobs of that rank, and little more.
WorldOptions ShortOfMemory(int rank = 8) {
  WorldOptions options;
  options.gpu_memory_bytes = int64_t{8} << 30;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const v1::MemoryEstimate memory =
      world->Get<v1::JobEstimate>(EstimateJob{.job = LongJob(rank)}).peak_memory_bytes();
  options.gpu_memory_bytes = (memory.total() + memory.adapters() + memory.optimizer()) * 103 / 100;
  return options;
}
constexpr int kLarge = 128;  // rank

const char kAgain[] = "formed again with shorter microbatches to make room";

v1::ClusterStatus Cluster(World& world) {
  return world.Get<v1::ClusterStatus>(v1::GetClusterRequest());
}

TEST_CASE("a group without room for a job is formed again with shorter microbatches") {
  auto world = MakeWorld(ShortOfMemory());
  world->StartWorkers();
  const std::string first = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(first).step() >= 5; });
  CHECK(world->plans().back().capacity_tokens == 8192);
  Job large = World::NewJob();
  large.mutable_adapter()->set_rank(kLarge);
  const std::string second = world->Submit(large);
  world->RunUntilState(second, Job::RUNNING);
  CHECK(world->StateOf(first) == Job::RUNNING);
  CHECK(CountNotes(*world, kAgain) == 1);
  CHECK(world->plans().back().capacity_tokens == 4096);
  world->RunUntilState(second, Job::SUCCEEDED);
  world->RunUntilState(first, Job::SUCCEEDED);
  CHECK(world->Job(first).attempts() == 2);
  world->CheckInvariants();
}

TEST_CASE("one job has one group formed again, and no worker idle") {
  constexpr int kRank = 512;
  WorldOptions options = ShortOfMemory(kRank);
  options.workers = 3;
  options.delay_us_max = 30'000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  std::vector<std::string> jobs;
  const auto running = [&] {
    return std::ranges::all_of(
        jobs, [&](const std::string& job) { return world->StateOf(job) == Job::RUNNING; });
  };
  // Until all workers are full.
  while (Cluster(*world).groups_size() < 3 || CountNotes(*world, kAgain) == 0) {
    REQUIRE(jobs.size() < 40);
    jobs.push_back(world->Submit(LongJob(kRank)));
    world->RunUntil([&] { return running(); });
  }
  CHECK(CountNotes(*world, kAgain) == 1);
  const v1::ClusterStatus cluster = Cluster(*world);
  CHECK(cluster.groups_size() == 3);
  for (const v1::Group& group : cluster.groups()) CHECK(group.jobs_size() > 0);
  world->CheckInvariants();
}

TEST_CASE("however many wait, those who trained are in the group that is formed again") {
  WorldOptions options = ShortOfMemory();
  options.core.policy.evict = false;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string first = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(first).step() >= 5; });
  Job important = LongJob(kLarge);
  important.set_priority(1);
  std::vector<std::string> others;
  for (int i = 0; i < 300; ++i) {
    others.push_back(world->Submit(important));
  }
  world->RunUntil([&] { return CountNotes(*world, kAgain) > 0; });
  world->RunUntil([&] { return world->Job(first).attempts() >= 2; });
  world->RunUntilState(first, Job::RUNNING);
  CHECK(std::ranges::any_of(
      others, [&](const std::string& job) { return world->StateOf(job) == Job::RUNNING; }));
  // Once they are in, they are jobs like others.
  world->worker(0).Kill();
  world->RunUntilState(first, Job::QUEUED);
  world->RunUntil([&] {
    return std::ranges::any_of(
        others, [&](const std::string& job) { return world->Job(job).attempts() >= 2; });
  });
  CHECK(world->StateOf(first) == Job::QUEUED);
}

TEST_CASE("where others have taken memory groups are formed with short microbatches") {
  WorldOptions options;
  options.gpu_memory_bytes = int64_t{8} << 30;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const auto activations = [&] {
    return world->Get<v1::JobEstimate>(EstimateJob{.job = LongJob()})
        .peak_memory_bytes()
        .activations();
  };
  const int64_t long_ones = activations();
  SECTION("that of groups") {
    world->script().group_tokens_most = 1024;
    const std::string first = world->Submit(LongJob());
    world->RunUntilState(first, Job::RUNNING);
    const int64_t rests = CountNotes(*world, "rests for");
    CHECK(rests == 1);
    // And so they stay, when there is memory for slots again.
    const std::string second = world->Submit(LongJob(kLarge));
    world->RunUntilState(second, Job::RUNNING);
    CHECK(world->Job(first).attempts() == 3);
    CHECK(CountNotes(*world, "in another shape to make room") == 1);
    CHECK(CountNotes(*world, "rests for") == rests);
  }
  SECTION("that of slots") {
    world->script().slot_tokens_most = 1024;
    const std::string job = world->Submit(LongJob());
    world->RunUntilState(job, Job::RUNNING);
    CHECK(CountNotes(*world, "rests for") == 1);
  }
  CHECK(world->plans().back().capacity_tokens == 1024);
  CHECK(activations() < long_ones / 4);
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
