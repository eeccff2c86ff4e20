// The cluster by itself: who is connected, alive, at rest, and what is learned of workers.
// (cluster_test.cc tells of the whole core.)
#include <catch2/catch.hpp>

#include "server/core/catalog/model_shape.h"
#include "server/core/cluster/cluster.h"
#include "server/core/events/store_kinds.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

struct Fixture {
  CoreOptions options;
  Turn turn;
  Cluster cluster{options, turn};

  Fixture() { turn.Start({1'000'000, 1'000'000}, 0); }

  WorkerState& Connect(const std::string& name, uint64_t connection) {
    worker::v1::Hello hello;
    hello.set_worker(name);
    hello.set_memory_bytes(1 << 30);
    REQUIRE(cluster.MakeRoom());
    cluster.Connect(connection, hello);
    return cluster.At(name);
  }
  void Pass(int64_t ms) { turn.Begin({turn.now_us() + ms * 1000, 0}); }
};

TEST_CASE("a worker is found by its connection until it is lost, and comes again under its name") {
  Fixture house;
  WorkerState& worker = house.Connect("w", 7);
  CHECK(house.cluster.FindConnection(7) == &worker);
  CHECK(house.cluster.Connected().size() == 1);
  CHECK(house.cluster.CheckInvariants().ok());
  worker.group = "group-1";
  house.cluster.Lose(worker);
  CHECK_FALSE(house.cluster.FindConnection(7));
  CHECK_FALSE(house.cluster.FindConnection(0));
  CHECK(house.cluster.Connected().empty());
  CHECK(worker.group.empty());
  CHECK(house.cluster.CheckInvariants().ok());
  CHECK(house.Connect("w", 8).connections == 2);
  CHECK(house.cluster.all().size() == 1);
}

TEST_CASE("for five heartbeats a worker that is connected takes jobs, and its name is taken") {
  Fixture house;
  const WorkerState& worker = house.Connect("w", 7);
  const worker::v1::Hello hello = worker.hello;
  house.Pass(5 * house.options.heartbeat_ms);
  CHECK_FALSE(house.cluster.WhyTaken(hello).empty());
  CHECK(house.cluster.TakesJobs(worker));
  house.Pass(1);
  CHECK(house.cluster.WhyTaken(hello).empty());
  CHECK_FALSE(house.cluster.TakesJobs(worker));
  CHECK(house.cluster.WhyRest() == "worker 'w' has said nothing for more than 5 s");
  house.cluster.RenewLeases();
  CHECK_FALSE(house.cluster.WhyTaken(hello).empty());
  CHECK(house.cluster.TakesJobs(worker));
}

TEST_CASE("a worker that is not connected is awaited for a lease from when it was heard of") {
  Fixture house;
  WorkerState& worker = house.Connect("w", 7);
  CHECK_FALSE(house.cluster.IsAwaited(worker));
  house.Pass(house.options.lease_ms / 2);
  house.cluster.Lose(worker);
  CHECK(house.cluster.IsAwaited(worker));
  CHECK(house.cluster.WhyTaken(worker.hello).empty());
  house.cluster.RenewLeases();  // of those that are connected
  house.Pass(house.options.lease_ms / 2 - 1);
  CHECK(house.cluster.IsAwaited(worker));
  house.Pass(1);
  CHECK_FALSE(house.cluster.IsAwaited(worker));
}

TEST_CASE("one tick is due at a time, and says how late it comes") {
  Fixture house;
  house.Connect("w", 7);
  house.turn.End();
  house.Connect("v", 8);
  for (const Effect& effect : house.turn.End())
    CHECK_FALSE(std::holds_alternative<SetTimer>(effect));
  house.Pass(house.options.lease_ms / 8 + 3);
  CHECK(house.cluster.TakeTick() == 3000);
  CHECK_FALSE(house.cluster.CheckInvariants().ok());  // nobody looks after their leases
  house.cluster.SetTick();
  CHECK(house.cluster.CheckInvariants().ok());
}

TEST_CASE("rests grow, and end") {
  Fixture house;
  WorkerState& worker = house.Connect("w", 7);
  house.cluster.RestForMemory(worker, "others have it");
  CHECK_FALSE(house.cluster.TakesJobs(worker));
  CHECK(house.cluster.WhyRest().find("worker 'w' lacks memory") == 0);
  CHECK(house.cluster.TokensOf(worker) == planner::kMicrobatchTokens);
  house.Pass(house.options.rest_ms);
  CHECK(house.cluster.TakesJobs(worker));
  house.cluster.RestForMemory(worker, "others have it");
  house.Pass(house.options.rest_ms);
  CHECK_FALSE(house.cluster.TakesJobs(worker));
  house.cluster.Lose(worker);
  CHECK(house.cluster.TakesJobs(worker));
  house.cluster.RestAsLiar(worker, "nonsense");
  CHECK(house.cluster.WhyRests(worker).find("said what does not fit") == 0);
  CHECK(house.cluster.WhyRest().empty());  // it is lost
  CHECK(house.cluster.CheckInvariants().ok());
}

TEST_CASE("lost workers make room for new ones, connected ones do not") {
  Fixture house;
  for (int i = 0; i < kWorkersMax; ++i) house.Connect("w" + std::to_string(i), i + 1);
  CHECK_FALSE(house.cluster.MakeRoom());
  house.cluster.Lose(house.cluster.At("w3"));
  house.Pass(1);
  house.cluster.Lose(house.cluster.At("w2"));
  CHECK(house.cluster.MakeRoom());
  CHECK_FALSE(house.cluster.Find("w3"));  // it was lost first
  CHECK(house.cluster.Find("w2"));
}

TEST_CASE("a worker is remembered over a start of the coordinator, and for a day of its run") {
  constexpr int64_t kDayMs = 24LL * 3600 * 1000;
  Fixture before;
  before.Connect("w", 7);
  std::vector<std::pair<std::string, std::string>> stored;
  for (const Effect& effect : before.turn.End()) {
    const auto* persist = std::get_if<Persist>(&effect);
    if (!persist) continue;
    for (const storage::Mutation& mutation : persist->mutations) {
      if (mutation.kind == kWorkerKind) stored.emplace_back(mutation.key, mutation.value);
    }
  }
  REQUIRE(stored.size() == 1);

  Fixture house;
  REQUIRE(house.cluster.Load(stored).ok());
  house.cluster.Start();
  const WorkerState* worker = house.cluster.Find("w");
  REQUIRE(worker);
  CHECK(worker->connection == 0);
  CHECK(house.cluster.IsAwaited(*worker));
  CHECK(worker->hello.memory_bytes() == 1 << 30);
  CHECK(house.cluster.CheckInvariants().ok());

  SECTION("it comes again") {
    CHECK(house.Connect("w", 9).connections == 1);
    house.Pass(2 * kDayMs);
    house.cluster.ForgetLost();
    CHECK(house.cluster.Find("w"));
  }
  SECTION("it stays away") {
    house.Pass(kDayMs);
    house.cluster.ForgetLost();
    CHECK(house.cluster.Find("w"));
    house.turn.End();
    house.Pass(1);
    house.cluster.ForgetLost();
    CHECK(house.cluster.empty());
    CHECK(std::get<Persist>(house.turn.End().at(0)).mutations ==
          std::vector{storage::DeleteRecord(kWorkerKind, "w")});
  }
  SECTION("its record cannot be read") {
    stored[0].second = "\xff";
    CHECK(absl::IsDataLoss(Fixture().cluster.Load(stored)));
  }
}

TEST_CASE("what is learned of one device says nothing of another") {
  Fixture house;
  WorkerState& worker = house.Connect("w", 7);
  worker.hello.set_device_name("a GPU");
  Fits& fits = house.cluster.fits();
  const planner::TimeModel& gpu = fits.TimesOf("m", {}, &worker, 1024);
  CHECK(&fits.TimesOf("m", {}, nullptr, 1024) != &gpu);
  CHECK(&fits.TimesOf("m", {}, &worker, 1024) == &gpu);
  CHECK_FALSE(fits.MemoryOf("m", worker));
}

TEST_CASE("a worker of another version, numerics or transport is let in, and the log says so") {
  Fixture house;
  house.options.version = "2.0";
  const auto warnings_of = [&](const std::string& name, uint64_t connection,
                               const std::string& version, const std::string& numerics,
                               const std::string& transport) {
    house.turn.End();
    worker::v1::Hello hello;
    hello.set_worker(name);
    hello.set_version(version);
    hello.set_numerics_id(numerics);
    hello.set_transport(transport);
    house.cluster.Connect(connection, hello);
    std::vector<std::string> warnings;
    for (const Effect& effect : house.turn.End()) {
      const auto* note = std::get_if<Note>(&effect);
      if (note && note->level == Note::Level::kWarning) warnings.push_back(note->message);
    }
    CHECK(house.cluster.FindConnection(connection));
    return warnings;
  };
  using Warnings = std::vector<std::string>;
  CHECK(warnings_of("a", 7, "2.0", "x", "sockets") == Warnings{});
  CHECK(warnings_of("b", 8, "2.0", "x", "sockets") == Warnings{});
  CHECK(warnings_of("c", 9, "1.9", "x", "sockets") ==
        Warnings{"worker 'c' is of version 1.9, this lorad of 2.0: run both from one release"});
  CHECK(warnings_of("d", 10, "2.0", "y", "sockets") ==
        Warnings{"worker 'd' has numerics y, and worker 'a' x: a job's bits depend on which of "
                 "them trains it"});
  CHECK(warnings_of("e", 11, "2.0", "x", "mpi") ==
        Warnings{"worker 'e' reaches other stages by 'mpi', and worker 'a' by 'sockets': no group "
                 "has both (--transport)",
                 "worker 'e' has numerics x, and worker 'd' y: a job's bits depend on which of "
                 "them trains it"});
  // Of those that are gone it says nothing.
  for (const char* name : {"a", "b", "c", "e"}) house.cluster.Lose(house.cluster.At(name));
  CHECK(warnings_of("f", 12, "2.0", "y", "sockets") == Warnings{});
}

TEST_CASE("workers that share what they must not are noticed") {
  Fixture house;
  WorkerState& first = house.Connect("v", 7);
  WorkerState& second = house.Connect("w", 8);
  first.group = "group-1";
  REQUIRE(house.cluster.CheckInvariants().ok());
  SECTION("a connection") { second.connection = 7; }
  SECTION("a name") { second.hello.set_worker("v"); }
  SECTION("lost, with a group") { first.connection = 0; }
  SECTION("lost, at rest for its memory") {
    second.connection = 0;
    second.memory_was_taken = true;
  }
  CHECK_FALSE(house.cluster.CheckInvariants().ok());
}

}  // namespace
}  // namespace lorad::server
