// Workers that come back under their old name as other machines, and jobs that only a worker which
// is away could hold.
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

constexpr int64_t kTooLittleBytes = 1 << 10;

Job LongJob() {
  Job job = World::NewJob();
  job.mutable_training()->set_max_steps(40);
  return job;
}

// Worker 0 has died on the way of that job, and stays away.
struct Left {
  std::unique_ptr<World> world;
  std::string job;
};

Left MakeLeft() {
  Left left{MakeWorld(), ""};
  left.world->StartWorkers();
  left.job = left.world->Submit(LongJob());
  left.world->RunUntil([&] { return left.world->Job(left.job).step() >= 3; });
  left.world->worker(0).Kill(/*restart=*/false);
  left.world->RunUntilState(left.job, Job::QUEUED);
  return left;
}

// The machine itself comes again, and the job goes on to its end.
void ComeBack(World& world, const std::string& job) {
  world.worker(0).Start();
  world.RunUntilState(job, Job::SUCCEEDED);
  world.CheckInvariants();
}

TEST_CASE("a worker comes back with less memory: its job waits, says why, and goes on later") {
  const auto [world, job] = MakeLeft();
  worker::v1::Hello hello = world->worker(0).hello();
  hello.set_memory_bytes(kTooLittleBytes);
  const uint64_t connection = world->Connect(hello);
  world->Settle();
  CHECK(world->IsConnected(connection));
  const Job waits = world->Job(job);
  CHECK(waits.state() == Job::QUEUED);
  CHECK_THAT(waits.queue().why(), Catch::EndsWith(" MiB; the largest worker offers 1 KiB"));
  ComeBack(*world, job);
}

TEST_CASE("a worker comes back as another device: its job starts over there from its checkpoint") {
  const auto [world, job] = MakeLeft();
  const int64_t saved = world->Job(job).last_checkpoint_step();
  worker::v1::Hello hello = world->worker(0).hello();
  hello.set_device("cuda:0");
  hello.set_multiprocessors(132);
  hello.set_value_bytes(2);
  hello.set_numerics_id("another");
  world->Connect(hello);
  world->RunUntilState(job, Job::PREPARING);
  CHECK(world->Job(job).step() == saved);
  const auto workers = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest());
  REQUIRE(workers.workers_size() == 1);
  CHECK(workers.workers(0).device() == "cuda:0");
  ComeBack(*world, job);
  CHECK_FALSE(HasEvent(*world, job, "NUMERICS_CHANGED"));  // it has done no step there
}

TEST_CASE("a job that fits only a worker that is away waits for it and says why") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Kill(/*restart=*/false);
  worker::v1::Hello small = world->worker(0).hello();
  small.set_worker("small");
  small.set_memory_bytes(kTooLittleBytes);
  world->Connect(small);
  const std::string job = world->Submit(LongJob());
  world->RunUntilState(job, Job::QUEUED);
  CHECK_THAT(world->Job(job).queue().why(), Catch::EndsWith(" MiB and is away"));
  // A drained one would not take it, until somebody takes that back.
  v1::DrainWorkerRequest drain;
  drain.set_name("worker-0");
  drain.set_reason("repair");
  world->Get<v1::Worker>(drain);
  world->Settle();
  CHECK_THAT(world->Job(job).queue().why(), Catch::EndsWith(" MiB, is away and drained"));
  world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>("worker-0"));
  ComeBack(*world, job);
}

TEST_CASE("a worker that reaches others over MPI is taken where the site has a server for that") {
  for (const bool has_one : {false, true}) {
    WorldOptions options;
    options.core.mpi = has_one;
    auto world = MakeWorld(options);
    world->StartWorkers();
    world->Settle();
    worker::v1::Hello hello = world->worker(0).hello();
    hello.set_worker("other");
    hello.set_transport("mpi");
    const uint64_t connection = world->Connect(hello);
    world->Settle();
    CHECK(world->IsConnected(connection) == has_one);
    CHECK((CountNotes(*world, "worker 'other' is refused: it reaches other stages over MPI") ==
           0) == has_one);
    CHECK((CountNotes(*world, "no group has both (--transport)") > 0) == has_one);
  }
}

TEST_CASE("workers of before a start are said to be awaited") {
  WorldOptions options;
  options.workers_outlive = true;
  const auto world = MakeWorld(options);
  world->StartWorkers();
  v1::Job content = World::NewJob();
  content.mutable_training()->set_epochs(10);
  const std::string job = world->Submit(content);
  world->RunUntilState(job, v1::Job::RUNNING);
  const auto worker = [&] {
    return world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0);
  };
  const auto resting = [&] { return worker().resting(); };
  CHECK(resting().empty());
  world->CrashCoordinator();
  CHECK(resting().starts_with("is awaited since the coordinator was started, 0 s ago: it may "));
  CHECK(worker().state() == v1::Worker::AWAITED);
  CHECK_FALSE(worker().group().empty());
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(resting().empty());
  world->worker(0).Kill(/*restart=*/false);
  world->Settle();
  CHECK(resting().empty());  // it is lost, and nobody knows of what
  world->CrashCoordinator();
  CHECK(resting().starts_with("has not come back since the coordinator was started, 0 s ago"));
  CHECK(worker().state() == v1::Worker::AWAITED);
  world->Sleep(29'000'000);
  CHECK(worker().state() == v1::Worker::AWAITED);
  world->Sleep(2'000'000);
  CHECK(worker().state() == v1::Worker::LOST);
}

TEST_CASE("the name of a worker that was told to end is anybody's after the next start") {
  for (const bool told : {false, true}) {
    WorldOptions options;
    options.workers = 0;
    const auto world = MakeWorld(options);
    worker::v1::Hello hello = HelloOf("w", int64_t{1} << 30);
    hello.set_outlives_coordinator(true);
    hello.set_pid(1);
    world->Connect(hello);
    world->Settle();
    if (told) REQUIRE(world->Call(StopRequested{}).ok());
    world->CrashCoordinator();
    hello.set_pid(2);
    const uint64_t another = world->Connect(hello);
    world->Settle();
    CHECK(world->IsConnected(another) == told);
  }
}

TEST_CASE("a lost worker is awaited until it was silent for a lease, however it was lost") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  const auto state = [&] {
    return world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0).state();
  };
  SECTION("its stream breaks, and it comes back") {
    world->worker(0).Kill(/*restart=*/false);
    world->Settle();
    CHECK(state() == v1::Worker::AWAITED);
    world->worker(0).Start();
    world->Settle();
    CHECK(state() == v1::Worker::IDLE);
  }
  SECTION("it is closed for its silence") {
    world->worker(0).Silence();
    world->RunUntil([&] { return CountNotes(*world, "is gone: it was silent") == 1; });
    CHECK(state() == v1::Worker::LOST);
  }
  SECTION("the coordinator stands still later") {
    world->worker(0).Kill(/*restart=*/false);
    world->Sleep(31'000'000);
    worker::v1::Hello other = world->worker(0).hello();
    other.set_worker("x");
    world->Connect(other);  // so that there is a tick
    world->Settle();
    world->StandStill(60'000'000);
    world->Sleep(10'000'000);
    CHECK(CountNotes(*world, "the coordinator stood still") == 1);
    CHECK(state() == v1::Worker::LOST);
  }
}

}  // namespace
}  // namespace lorad::server
