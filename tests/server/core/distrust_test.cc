// A worker that lies costs its jobs nothing but time, and others are given the work.
#include <algorithm>
#include <memory>

#include "server/core/rules/job_states.h"
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

// With so many workers, all of which are connected.
std::unique_ptr<World> WorldOf(int workers, bool evict = true) {
  WorldOptions options;
  options.workers = workers;
  options.core.policy.evict = evict;
  std::unique_ptr<World> world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  return world;
}

std::string NameOf(World& world) {
  return world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0).name();
}

TEST_CASE("a worker that lies again and again fails no job, however often") {
  const auto world = WorldOf(1);
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
  const auto world = WorldOf(1);
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
  const auto world = WorldOf(2);
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
  const auto world = WorldOf(1);
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

TEST_CASE("what one worker says is not finite another one is asked, and two are believed") {
  const auto world = WorldOf(2);
  const std::string job = world->Submit(LongJob());
  const std::string neighbour = world->Submit(LongJob());
  world->script().bad_steps[job] = 5;
  world->RunUntilState(job, Job::FAILED);
  CHECK(world->Job(job).error().reason() == "NOT_FINITE");
  CHECK(world->Job(job).attempts() == 2);
  const auto asked = [](const v1::Event& event) {
    return event.to_state() == Job::QUEUED &&
           event.message().ends_with(
               "says that the loss of step 5 is not finite: another worker "
               "is asked");
  };
  CHECK(std::ranges::count_if(world->Events(job), asked) == 1);
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK(world->Job(neighbour).attempts() == 1);
  for (const char* worker : {"worker-0", "worker-1"})
    CHECK(WorkerNamed(*world, worker).lies() == 0);
  world->CheckInvariants();
}

TEST_CASE("one that said so of what is finite elsewhere is closed as a liar") {
  const auto world = WorldOf(2);
  world->worker(0).mischief().broken = true;
  std::vector<std::string> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(world->Submit(LongJob()));
  for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(WorkerNamed(*world, "worker-0").lies() > 0);
  CHECK(WorkerNamed(*world, "worker-1").lies() == 0);
  world->CheckInvariants();
}

TEST_CASE("a job of which that was said may be paused, resumed and cancelled before it leaves") {
  for (const char* what : {"pause", "resume", "cancel"}) {
    const auto world = WorldOf(2);
    const std::string job = world->Submit(LongJob());
    const std::string worker = [&] {
      world->RunUntil([&] { return world->Job(job).step() >= 3; });
      const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
      return cluster.groups(0).workers(0);
    }();
    world->worker(worker == "worker-0" ? 0 : 1).mischief().broken = true;
    world->RunUntil([&] { return CountNotes(*world, "another worker is asked") > 0; });
    INFO(what);
    if (std::string(what) == "cancel") {
      world->Get<Job>(Named<v1::CancelJobRequest>(job));
      world->RunUntilState(job, Job::CANCELLED);
    } else {
      world->Get<Job>(Named<v1::PauseJobRequest>(job));
      if (std::string(what) == "pause") world->RunUntilState(job, Job::PAUSED);
      world->Get<Job>(Named<v1::ResumeJobRequest>(job));
      world->RunUntilState(job, Job::SUCCEEDED);
    }
    world->CheckInvariants();
  }
}

TEST_CASE("a group was formed in no longer than it was waited for, whatever its worker says") {
  const auto world = WorldOf(1);
  const std::string job = world->Submit(LongJob());
  world->RunUntilState(job, Job::PREPARING);
  world->worker(0).Hang(true);
  worker::v1::WorkerMessage lie;
  lie.mutable_report()->mutable_group_formed()->set_load_seconds(1e9);
  world->worker(0).Lie(lie);
  world->RunUntil([&] { return CountNotes(*world, "formed on 'worker-0'") == 1; });
  const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  for (const auto& times : cluster.times()) CHECK(times.load_seconds() < 60);
  world->worker(0).Hang(false);
  world->RunUntilState(job, Job::SUCCEEDED);
}

TEST_CASE("a group whose worker had the weights teaches no time to form") {
  for (const bool kept : {false, true}) {
    INFO("kept: " << kept);
    const auto world = WorldOf(1);
    const std::string job = world->Submit(LongJob());
    world->RunUntilState(job, Job::PREPARING);
    world->worker(0).Hang(true);
    world->Sleep(5 * kSecond);
    worker::v1::WorkerMessage formed;
    formed.mutable_report()->mutable_group_formed()->set_load_seconds(4);
    formed.mutable_report()->mutable_group_formed()->set_weights_kept(kept);
    world->worker(0).Lie(formed);
    world->RunUntil([&] { return CountNotes(*world, "formed on 'worker-0' in 4 s") == 1; });
    CHECK(CountNotes(*world, "in 4 s, with the weights that it had") == (kept ? 1 : 0));
    const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
    const bool learned = std::ranges::any_of(
        cluster.times(), [](const v1::TrainingTimes& times) { return times.load_seconds() == 4; });
    CHECK(learned == !kept);
  }
}

// Of two workers one has a long job of another base model, and the other has failed this one: it
// waits for the first, however long that takes.
struct OneSound {
  std::unique_ptr<World> world;
  std::string busy, job;
  std::string sick;  // the worker that is free
  int number = 0;    // its

  explicit OneSound(int epochs = 1000, bool evict = true) : world(WorldOf(2, evict)) {
    Job other = LongJob();
    other.set_base_model("m2");
    other.mutable_training()->set_epochs(epochs);
    busy = world->Submit(other);
    world->RunUntilState(busy, Job::RUNNING);
    sick = WorkerNamed(*world, "worker-0").group().empty() ? "worker-0" : "worker-1";
    number = sick == "worker-0" ? 0 : 1;
  }

  std::string WhyWaits() { return world->Job(job).queue().why(); }
  bool WaitsForAnother() {
    return world->StateOf(job) == Job::QUEUED &&
           WhyWaits().find("another worker is to try it than '" + sick + "', on which it failed") !=
               std::string::npos;
  }

  void EndsElsewhere() {
    CHECK(world->StateOf(busy) == Job::RUNNING);
    const int attempts = world->Job(job).attempts();
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(world->Job(job).attempts() == attempts + 1);
    world->CheckInvariants();
  }
};

TEST_CASE("a job that one worker says is not finite waits for another, though that is busy") {
  OneSound house;
  house.world->worker(house.number).mischief().broken = true;
  house.job = house.world->Submit(LongJob());
  house.world->RunUntil([&] { return house.WaitsForAnother(); });
  // Others are not kept from it.
  house.world->worker(house.number).mischief().broken = false;
  const std::string next = house.world->Submit(LongJob());
  house.world->RunUntilState(next, Job::SUCCEEDED);
  CHECK(house.WaitsForAnother());
  house.EndsElsewhere();
}

TEST_CASE("a worker that is lost with everybody fails no job that another could try") {
  OneSound house;
  house.job = house.world->Submit(LongJob());
  World& world = *house.world;
  int lost = 0;
  world.RunUntil([&] {
    if (IsPlaced(world.StateOf(house.job)) && ++lost < 100) {
      world.worker(house.number).Kill();
      world.RunUntilState(house.job, Job::QUEUED);
    }
    return house.WaitsForAnother();
  });
  CHECK(lost == 2);
  house.EndsElsewhere();
}

TEST_CASE("nor while the other one is awaited") {
  OneSound house;
  house.world->worker(house.number).mischief().broken = true;
  house.job = house.world->Submit(LongJob());
  house.world->RunUntil([&] { return house.WaitsForAnother(); });
  house.world->worker(1 - house.number).Kill(false);
  house.world->Sleep(5 * kSecond);
  CHECK(house.world->StateOf(house.job) == Job::QUEUED);
  house.world->worker(1 - house.number).Start();
  house.world->RunUntilState(house.job, Job::SUCCEEDED);
  house.world->CheckInvariants();
}

TEST_CASE("nor while the other one is drained, or started again with its host") {
  OneSound house;
  World& world = *house.world;
  const std::string sound = absl::StrCat("worker-", 1 - house.number);
  world.worker(house.number).mischief().broken = true;
  house.job = world.Submit(LongJob());
  world.RunUntil([&] { return house.WaitsForAnother(); });
  SECTION("drained: it waits for that one, whenever that is") {
    world.Get<v1::Worker>(Named<v1::DrainWorkerRequest>(sound));
    const std::string later = world.Submit(LongJob());  // one word fails none that comes then
    world.Sleep(3600 * kSecond);
    for (const std::string& job : {house.job, later}) {
      CHECK(world.StateOf(job) == Job::QUEUED);
      CHECK(world.Job(job).attempts() <= 7);  // every ten minutes
    }
    world.Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(sound));
    for (const std::string& job : {house.job, later}) world.RunUntilState(job, Job::SUCCEEDED);
  }
  SECTION("gone for minutes") {
    world.worker(1 - house.number).Kill(false);
    world.Sleep(300 * kSecond);
    CHECK(world.StateOf(house.job) == Job::QUEUED);
    world.worker(1 - house.number).Start();
    world.RunUntilState(house.job, Job::SUCCEEDED);
  }
  SECTION("gone for good: the word of the one that is left counts") {
    world.worker(1 - house.number).Kill(false);
    world.Sleep(590 * kSecond);
    CHECK(world.StateOf(house.job) == Job::QUEUED);
    world.RunUntilState(house.job, Job::FAILED);
    CHECK(world.Job(house.job).error().reason() == "NOT_FINITE");
  }
  world.CheckInvariants();
}

TEST_CASE("a worker that ends with everybody fails no job while the other one is drained") {
  OneSound house;
  World& world = *house.world;
  const std::string sound = absl::StrCat("worker-", 1 - house.number);
  world.Get<Job>(Named<v1::CancelJobRequest>(house.busy));
  world.Get<v1::Worker>(Named<v1::DrainWorkerRequest>(sound));
  house.job = world.Submit(LongJob());
  for (int lost = 0; lost < 30; ++lost) {
    world.RunUntil([&] { return IsPlaced(world.StateOf(house.job)); });
    world.worker(house.number).Kill();
    world.RunUntilState(house.job, Job::QUEUED);
  }
  world.Get<v1::Worker>(Named<v1::UndrainWorkerRequest>(sound));
  world.RunUntilState(house.job, Job::SUCCEEDED);
  world.CheckInvariants();
}

TEST_CASE("ten minutes later a worker that failed a job may try it again") {
  OneSound house(100'000, false);
  World& world = *house.world;
  house.job = world.Submit(LongJob());
  for (int lost = 0; lost < 2; ++lost) {
    world.RunUntil([&] { return IsPlaced(world.StateOf(house.job)); });
    world.worker(house.number).Kill();
    world.RunUntilState(house.job, Job::QUEUED);
  }
  world.RunUntil([&] { return house.WaitsForAnother(); });
  world.Sleep(590 * kSecond);
  CHECK(house.WaitsForAnother());
  world.Sleep(20 * kSecond);
  CHECK(world.Job(house.job).attempts() == 3);
  CHECK(world.StateOf(house.busy) == Job::RUNNING);
  world.RunUntilState(house.job, Job::SUCCEEDED);
  world.CheckInvariants();
}

TEST_CASE("where no other worker holds it, a job is tried where it failed") {
  const auto world = WorldOf(1);
  const std::string job = world->Submit(LongJob());
  for (int lost = 1; lost <= 2; ++lost) {
    world->RunUntilState(job, Job::PREPARING);
    world->worker(0).Kill();
    world->RunUntilState(job, Job::QUEUED);
  }
  world->RunUntilState(job, Job::SUCCEEDED);
}

}  // namespace
}  // namespace lorad::server
