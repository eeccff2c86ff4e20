// Which workers a job needs: one, several together, or such as may still come.
#include <set>

#include "planner/cost/memory.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kPlenty = int64_t{1} << 34;

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

TEST_CASE("GPUs of one host that go by NCCL alone need what that takes") {
  const auto bytes_of_first = [](bool nccl) {
    auto world = WorldOf(0, kPlenty);
    for (const char* name : {"w0", "w1"}) {
      worker::v1::Hello hello = HelloOf(name, kPlenty);
      hello.set_device("cuda:0");
      hello.set_multiprocessors(132);
      hello.set_value_bytes(2);
      hello.set_host("h");
      hello.set_nccl(nccl);
      world->Connect(hello);
    }
    world->AddModel("cut", 2);
    Job cut = World::NewJob();
    cut.set_base_model("cut");
    return EstimateOn(*world, cut).stages(0).bytes();
  };
  CHECK(bytes_of_first(true) - bytes_of_first(false) == planner::BytesOfNccl(1));
}

TEST_CASE("a model has at most as many stages as blocks, and they can be changed") {
  auto world = WorldOf(2, kPlenty);
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
  // Nor by when a name that its old process may still have is free again.
  world->Sleep((options.core.lease_ms + options.core.join_ms / 2) * 1000);
  CHECK(world->StateOf(job) == Job::VALIDATING);
  CHECK_THAT(world->Job(job).queue().why(), Catch::StartsWith("workers still join"));
  const bool comes = GENERATE(true, false);
  if (comes) world->Connect(HelloOf("large", 1LL << 30));
  world->RunUntilState(job, comes ? Job::QUEUED : Job::FAILED);
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

// Two alike workers that hold Large() together and a third that holds it alone, all of which live
// and do nothing else; but the third may train, slowly.
struct TwoAndOneLarge {
  explicit TwoAndOneLarge(bool trains = false) {
    int64_t memory_bytes = int64_t{1} << 30;
    while (ErrorOn(1, memory_bytes).empty()) memory_bytes -= memory_bytes / 32;
    WorldOptions options;
    options.workers = trains ? 1 : 0;
    world = MakeWorld(options);
    world->StartWorkers();
    if (trains) world->worker(0).mischief().slowness = 200;
    for (const auto& [name, bytes] : {std::pair("u", memory_bytes), std::pair("v", memory_bytes),
                                      std::pair("large", kPlenty)}) {
      if (trains && bytes == kPlenty) continue;
      connections.push_back(world->Connect(HelloOf(name, bytes)));
    }
  }

  void Live(int seconds) {
    worker::v1::WorkerMessage lives;
    lives.mutable_heartbeat();
    for (int second = 0; second < seconds; ++second) {
      world->Sleep(kSecond);
      for (const uint64_t connection : connections) world->Say(connection, lives);
    }
  }

  std::string Submit(const std::string& base_model) {
    Job job = Large();
    job.set_base_model(base_model);
    job.mutable_training()->set_epochs(1000);
    const std::string name = world->Submit(job);
    Live(5);
    return name;
  }

  // Of its group; 0: it waits.
  int Workers(const std::string& job) {
    if (world->StateOf(job) == Job::QUEUED) return 0;
    const std::string group = world->Job(job).group();
    const auto all = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
    return static_cast<int>(std::ranges::count(all.workers(), group, &v1::Worker::group));
  }

  std::unique_ptr<World> world;
  std::vector<uint64_t> connections;
};

TEST_CASE("no job waits for a drained worker that several others would hold") {
  const bool drained = GENERATE(false, true);
  TwoAndOneLarge site;
  site.world->AddModel("one", 1);
  if (drained) site.world->Get<v1::Worker>(Named<v1::DrainWorkerRequest>("large"));
  CHECK(site.Workers(site.Submit("m")) == (drained ? 2 : 1));
  // But where its model is to be on one.
  CHECK(site.Workers(site.Submit("one")) == 0);
}

TEST_CASE("nor for one whose group says nothing for a lease longer than it should") {
  TwoAndOneLarge site;
  REQUIRE(site.Workers(site.Submit("m")) == 1);
  const std::string job = site.Submit("m2");
  CHECK(site.Workers(job) == 0);
  site.Live(15);
  CHECK(site.Workers(job) == 0);
  site.Live(15);
  CHECK(site.Workers(job) == 2);
}

TEST_CASE("nor for one that was so lately, but in another process, or without a job") {
  TwoAndOneLarge site(/*trains=*/true);
  sim::WorkerProcess& large = site.world->worker(0);
  const std::string job = site.Submit("m");
  REQUIRE(site.Workers(job) == 1);
  const int64_t step = site.world->Job(job).step();
  large.Hang(true);
  site.Live(40);
  large.Hang(false);
  site.Live(10);
  REQUIRE(site.world->Job(job).step() > step);
  SECTION("lately") { CHECK(site.Workers(site.Submit("m2")) == 2); }
  SECTION("a while ago") {
    site.Live(60);
    CHECK(site.Workers(site.Submit("m2")) == 0);
  }
  SECTION("in another process") {
    site.world->Get<v1::Worker>(Named<v1::DrainWorkerRequest>("v"));  // the job comes back
    large.Kill();
    site.Live(20);
    REQUIRE(site.Workers(job) == 1);
    site.world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>("v"));
    CHECK(site.Workers(site.Submit("m2")) == 0);
  }
  SECTION("it has no job") {
    REQUIRE(site.world->Call(Named<v1::CancelJobRequest>(job)).ok());
    site.Live(5);
    REQUIRE(site.world->StateOf(job) == Job::CANCELLED);
    CHECK(site.Workers(site.Submit("m2")) == 1);
  }
}

// Of the group that the job is in.
std::string WorkerOf(World& world, const std::string& job) {
  const std::string group = world.Job(job).group();
  const auto all = world.Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  return std::ranges::find(all.workers(), group, &v1::Worker::group)->name();
}

TEST_CASE("a worker that is overdue again and again does not turn the plan of a job that waits") {
  WorldOptions options;
  options.workers = 3;
  auto world = MakeWorld(options);
  world->AddModel("m3");
  world->AddModel("cut", 2);
  world->StartWorkers();
  for (int i = 0; i < 3; ++i) world->worker(i).mischief().slowness = 200;
  const auto submit = [&](const std::string& base_model, int epochs) {
    Job job = World::NewJob();
    job.set_base_model(base_model);
    job.mutable_training()->set_epochs(epochs);
    return world->Submit(job);
  };
  const std::string first = submit("m", 200);  // to end
  world->RunUntilState(first, Job::RUNNING);
  const std::string second = submit("m2", 2000), third = submit("m3", 3000);
  world->RunUntilState(second, Job::RUNNING);
  world->RunUntilState(third, Job::RUNNING);
  const std::string waits = submit("cut", 1);
  const auto why_after = [&](int64_t seconds) {
    world->Sleep(seconds * kSecond);
    return world->Job(waits).queue().why();
  };
  CHECK_THAT(why_after(10), Catch::Contains(world->Job(first).group()));
  int slow = 0;
  while (world->worker(slow).hello().worker() != WorkerOf(*world, first)) ++slow;
  std::set<std::string> whys;
  for (int spell = 0; spell < 3; ++spell) {
    world->worker(slow).Hang(true);
    whys.insert(why_after(40));
    world->worker(slow).Hang(false);
    whys.insert(why_after(10));
  }
  REQUIRE(whys.size() == 1);
  CHECK_THAT(*whys.begin(), Catch::Contains(world->Job(second).group()));
  CHECK_THAT(*whys.begin(), Catch::Contains(world->Job(third).group()));
  // It kept its times for a while.
  CHECK_THAT(why_after(70), Catch::Contains(world->Job(first).group()));
}

}  // namespace
}  // namespace lorad::server
