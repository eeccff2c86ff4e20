// Two workers of one kind of which one is slower than the other, as stories.
#include <algorithm>
#include <map>
#include <string>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int kJobs = 8;

constexpr int64_t kUsual = 100;  // times as slow as workers are in other stories

v1::Job Endless(int seed) {
  v1::Job job = World::NewJob();
  job.mutable_training()->set_epochs(100'000);
  job.mutable_training()->set_checkpoint_every_steps(0);
  job.mutable_adapter()->set_seed(seed);
  return job;
}

double EstimateOf(World& world, const std::string& model) {
  v1::Job job = Endless(9);
  job.set_base_model(model);
  return world.Get<v1::JobEstimate>(EstimateJob{.job = job}).seconds();
}

v1::Worker Look(World& world, int worker) {
  return world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(worker);
}

int JobsOn(World& world, int worker) {
  const std::string group = Look(world, worker).group();
  const auto cluster = world.Get<v1::ClusterStatus>(v1::GetClusterRequest());
  for (const v1::Group& one : cluster.groups()) {
    if (one.name() == group) return one.jobs_size();
  }
  return 0;
}

struct House {
  std::unique_ptr<World> world;
  std::vector<std::string> jobs;

  explicit House(WorldOptions options = {}) {
    options.workers = 2;
    options.token_ms = 0.1;
    options.core.policy.minimum_run_s = 60;
    world = MakeWorld(options);
    world->AddModel("of-two", 2);
    world->worker(0).mischief().slowness = kUsual;
    world->worker(1).mischief().slowness = kUsual;
    world->StartWorkers();
    world->Settle();
    for (int i = 0; i < kJobs; ++i) jobs.push_back(world->Submit(Endless(i)));
  }

  void Run(int64_t seconds) {
    const int64_t until_us = world->now_us() + seconds * kSecond;
    world->RunUntil([&] { return world->now_us() >= until_us; }, 10'000'000);
  }

  int64_t Moves() {
    int64_t moves = 0;
    for (const std::string& job : jobs) {
      const auto events = world->Events(job);
      moves += std::ranges::count(events, "MOVED", &v1::Event::reason);
    }
    return moves;
  }
};

void SetLabels(World& world, const std::string& job, const std::map<std::string, std::string>& to) {
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(job);
  request.mutable_job()->mutable_labels()->insert(to.begin(), to.end());
  request.mutable_update_mask()->add_paths("labels");
  world.Get<v1::Job>(request);
}

void SetQuota(World& world, const std::string& label, int64_t running_jobs) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_label(label);
  request.mutable_quota()->set_running_jobs(running_jobs);
  world.Get<v1::Quota>(request);
}

TEST_CASE("jobs of which more run than their quota has stay where they are, however slow that is") {
  House house;
  World& world = *house.world;
  house.Run(120);
  for (const std::string& job : house.jobs) SetLabels(world, job, {{"team", "math"}});
  SetQuota(world, "team=math", kJobs / 2);
  world.worker(0).mischief().slowness = 3 * kUsual;
  house.Run(120);
  CHECK(Look(world, 0).relative_speed() < 0.5);
  CHECK(house.Moves() == 0);
  for (const std::string& job : house.jobs) CHECK(world.StateOf(job) == v1::Job::RUNNING);
  // Once as many may run they go where all end earlier.
  SetQuota(world, "team=math", kJobs);
  house.Run(120);
  CHECK(house.Moves() == 2);
}

TEST_CASE("a job on its way to another worker keeps its share of a full quota") {
  House house;
  World& world = *house.world;
  for (const std::string& job : house.jobs) SetLabels(world, job, {{"team", "math"}});
  // The first has lost its worker, may not run, and would go on before all others.
  const std::string& first = house.jobs[0];
  SetLabels(world, first, {{"team", "math"}, {"user", "first"}});
  house.Run(120);
  SetQuota(world, "user=first", 0);
  const std::string group = world.Job(first).group();
  const std::string worker = Look(world, Look(world, 0).group() == group ? 0 : 1).name();
  v1::DrainWorkerRequest drain;
  drain.set_name(worker);
  world.Get<v1::Worker>(drain);
  house.Run(120);
  REQUIRE(world.StateOf(first) == v1::Job::QUEUED);
  world.Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(worker));
  house.Run(120);
  SetQuota(world, "team=math", kJobs - 1);
  SetQuota(world, "user=first", 1);
  const int64_t moves = house.Moves();
  world.worker(0).mischief().slowness = 3 * kUsual;
  house.Run(120);
  CHECK(house.Moves() > moves);
  for (const std::string& job : house.jobs) {
    CHECK(world.StateOf(job) == (job == first ? v1::Job::QUEUED : v1::Job::RUNNING));
  }
}

TEST_CASE("jobs leave a worker that becomes slow, and come back when it recovers") {
  House house;
  World& world = *house.world;
  house.Run(120);
  CHECK(JobsOn(world, 0) == kJobs / 2);
  CHECK(JobsOn(world, 1) == kJobs / 2);
  CHECK(Look(world, 1).relative_speed() == 1);
  CHECK(Look(world, 0).relative_speed() == 1);
  CHECK(house.Moves() == 0);
  const double before_s = EstimateOf(world, "m"), of_two_s = EstimateOf(world, "of-two");

  world.worker(0).mischief().slowness = 3 * kUsual;
  house.Run(120);
  CHECK(Look(world, 1).relative_speed() == 1);
  CHECK(Look(world, 0).relative_speed() == Approx(1.0 / 3).epsilon(0.1));
  CHECK(JobsOn(world, 1) == kJobs - 2);
  CHECK(JobsOn(world, 0) == 2);
  CHECK(house.Moves() == 2);
  const auto moved = [&](const std::string& job) {
    const auto events = world.Events(job);
    return std::ranges::any_of(events, [](const v1::Event& event) {
      return event.reason() == "MOVED" &&
             event.message().find("x the speed of its kind") != std::string::npos;
    });
  };
  CHECK(std::ranges::count_if(house.jobs, moved) == 2);
  // Of one worker it is the other, of two no one has trained, the slower one.
  CHECK(EstimateOf(world, "m") == Approx(before_s).epsilon(0.15));
  CHECK(EstimateOf(world, "of-two") == Approx(of_two_s / Look(world, 0).relative_speed()));
  house.Run(300);
  CHECK(house.Moves() == 2);

  world.worker(0).mischief().slowness = kUsual;
  house.Run(120);
  CHECK(Look(world, 0).relative_speed() == 1);
  CHECK(JobsOn(world, 0) == kJobs / 2);
  CHECK(JobsOn(world, 1) == kJobs / 2);
  CHECK(house.Moves() == 4);
}

TEST_CASE("who is slow is learned anew after a start of the coordinator") {
  House house;
  World& world = *house.world;
  world.worker(0).mischief().slowness = 3 * kUsual;
  house.Run(120);
  REQUIRE(Look(world, 0).relative_speed() < 0.5);
  world.CrashCoordinator();
  CHECK(Look(world, 0).relative_speed() == 1);
  house.Run(120);
  CHECK(Look(world, 0).relative_speed() < 0.5);
}

// How many seconds a worker that says nothing any more is waited for, of two that have as many jobs
// and of which the first is three times as slow; -1: it is not lost.
int64_t WaitedFor(int worker) {
  WorldOptions options;
  options.core.policy.rebalance = false;
  options.core.patience_floor_ms = 1000;
  House house(options);
  World& world = *house.world;
  world.worker(0).mischief().slowness = 3 * kUsual;
  house.Run(600);
  CHECK(Look(world, 0).relative_speed() == Approx(1.0 / 3).epsilon(0.1));
  world.worker(worker).Hang(true);
  house.Run(600);
  constexpr char kFor[] = " for ";
  for (const std::string& note : world.notes()) {
    const size_t at = note.find(" is gone: it reports nothing of window ");
    if (at == std::string::npos) continue;
    return std::stoll(note.substr(note.find(kFor, at) + sizeof(kFor) - 1));
  }
  return -1;
}

TEST_CASE("a worker that is known to be slow is waited for longer") {
  const auto usual_s = static_cast<double>(WaitedFor(1));
  CHECK(usual_s > 10);
  CHECK(static_cast<double>(WaitedFor(0)) == Approx(3 * usual_s).epsilon(0.25));
}

}  // namespace
}  // namespace lorad::server
