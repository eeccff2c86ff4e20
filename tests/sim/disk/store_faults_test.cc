// The job store on a disk that is full, read-only or broken for a while.
#include <catch2/catch.hpp>
#include <cerrno>
#include <random>
#include <string>

#include "storage/files/errors.h"
#include "storage/job_store.h"
#include "tests/sim/disk/sim_disk.h"
#include "tests/sim/disk/sim_vfs.h"

namespace lorad::sim {
namespace {

using storage::JobStore;
using Call = SimDisk::Call;

std::vector<storage::Mutation> Turn(int i) {
  return {storage::PutEntry("turns", "x", i, std::string(2000, 'v'))};
}

struct House {
  explicit House(uint64_t seed = 1) : disk(seed), vfs(disk) {
    REQUIRE(disk.MakeDirectory("/data") == 0);
    disk.SyncAll();
  }
  absl::StatusOr<std::unique_ptr<JobStore>> Open() {
    auto store = JobStore::Open("/data", {}, vfs.name());
    disk.SyncDirectory("/data");
    return store;
  }
  void Fail(Call call, const std::string& ending, int error) {
    disk.set_fault([=](Call is, const std::string& path) {
      return is == call && path.ends_with(ending) ? error : 0;
    });
  }

  SimDisk disk;
  SimVfs vfs;
};

int64_t Newest(JobStore& store) {
  const auto entries = store.ReadSeries("turns", "x", 0, 1 << 20);
  REQUIRE(entries.ok());
  for (size_t i = 0; i < entries->size(); ++i) {
    REQUIRE((*entries)[i].number == static_cast<int64_t>(i) + 1);
  }
  return static_cast<int64_t>(entries->size());
}

TEST_CASE("while its disk is full nothing changes, and then it goes on") {
  House house;
  auto store = house.Open();
  REQUIRE(store.ok());
  REQUIRE((*store)->Apply(Turn(1)).ok());
  SECTION("without room") { house.disk.set_capacity_bytes(house.disk.used_bytes() + 600); }
  SECTION("beyond a quota") { house.Fail(Call::kWrite, "-wal", EDQUOT); }
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = (*store)->Apply(Turn(2));
    CHECK(absl::IsResourceExhausted(status));
    CHECK(storage::ReasonOf(status) == "DISK_FULL");
    CHECK(Newest(**store) == 1);
  }
  house.disk.set_capacity_bytes(UINT64_MAX);
  house.disk.set_fault(nullptr);
  CHECK((*store)->Apply(Turn(2)).ok());
  CHECK(Newest(**store) == 2);
}

TEST_CASE("a file system that is read-only for a while is told apart, at start and later") {
  House house;
  { REQUIRE(house.Open().ok()); }
  house.disk.set_read_only(true);
  const absl::Status refused = house.Open().status();
  CHECK(absl::IsUnavailable(refused));
  CHECK(storage::ReasonOf(refused) == "STORE_READ_ONLY");
  house.disk.set_read_only(false);
  auto store = house.Open();
  REQUIRE(store.ok());
  house.disk.set_read_only(true);
  const absl::Status status = (*store)->Apply(Turn(1));
  CHECK(absl::IsUnavailable(status));
  CHECK(storage::ReasonOf(status) == "STORE_READ_ONLY");
  house.disk.set_read_only(false);
  CHECK((*store)->Apply(Turn(1)).ok());
  CHECK(Newest(**store) == 1);
}

TEST_CASE("after a sync that failed the store takes nothing more") {
  House house;
  auto store = house.Open();
  REQUIRE(store.ok());
  REQUIRE((*store)->Apply(Turn(1)).ok());
  // Also where the disk says that it is full: what was dropped is not known.
  const int error = GENERATE(EIO, ENOSPC);
  house.Fail(Call::kSync, "-wal", error);
  const absl::Status status = (*store)->Apply(Turn(2));
  CHECK(absl::IsInternal(status));
  CHECK(storage::ReasonOf(status) == "STORE_SYNC_FAILED");
  house.disk.set_fault(nullptr);
  CHECK((*store)->Apply(Turn(2)) == status);
  // The next start tells what is there.
  store->reset();
  house.disk.PowerLoss();
  store = house.Open();
  REQUIRE(store.ok());
  CHECK(Newest(**store) >= 1);
}

TEST_CASE("turns behind one whose sync failed are durable after a new start") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    House house(seed);
    auto store = house.Open();
    REQUIRE(store.ok());
    REQUIRE((*store)->Apply(Turn(1)).ok());
    house.Fail(Call::kSync, "-wal", EIO);
    REQUIRE_FALSE((*store)->Apply(Turn(2)).ok());
    // The process ends; what it failed to sync still lies in the kernel's memory.
    house.disk.StopAfter(0);
    store->reset();
    house.disk.Restart();
    house.disk.set_fault(nullptr);
    store = house.Open();
    REQUIRE(store.ok());
    const int64_t next = Newest(**store) + 1;
    REQUIRE((*store)->Apply(Turn(static_cast<int>(next))).ok());
    house.disk.StopAfter(0);
    store->reset();
    house.disk.PowerLoss();
    store = house.Open();
    INFO("seed " << seed);
    REQUIRE(store.ok());
    CHECK(Newest(**store) == next);
  }
}

TEST_CASE("a sync that fails while the log is emptied into the database is told") {
  House house;
  auto store = house.Open();
  REQUIRE(store.ok());
  house.Fail(Call::kSync, "lorad.sqlite", EIO);
  absl::Status status;
  int turns = 0;
  while (status.ok() && turns < 2000) status = (*store)->Apply(Turn(++turns));
  CHECK(storage::ReasonOf(status) == "STORE_SYNC_FAILED");
  CHECK(turns > 100);
}

TEST_CASE("a write that fails otherwise ends it too") {
  House house;
  auto store = house.Open();
  REQUIRE(store.ok());
  house.Fail(Call::kWrite, "-wal", EIO);
  const absl::Status status = (*store)->Apply(Turn(1));
  CHECK(absl::IsInternal(status));
  house.disk.set_fault(nullptr);
  CHECK((*store)->Apply(Turn(1)) == status);
}

// Loop under faults, deaths and power losses of any kind: those that were acknowledged are there.
void RunHistory(uint64_t seed) {
  std::mt19937_64 random(seed);
  House house(seed);
  int64_t acknowledged = 0;
  for (int life = 0; life < 6; ++life) {
    const auto rate = [&random] { return random() % 3 == 0 ? 0.02 : 0; };
    const FaultRates rates{.no_space = rate(), .write_error = rate() / 4, .sync_error = rate() / 4};
    house.disk.set_fault(RandomFaults(rates, random()));
    if (random() % 2 == 0) house.disk.StopAfter(static_cast<int64_t>(random() % 3000));
    auto store = house.Open();
    if (store.ok()) {
      house.disk.set_fault(RandomFaults(rates, random()));
      for (int i = 0; i < 300; ++i) {
        const absl::Status status = (*store)->Apply(Turn(static_cast<int>(acknowledged) + 1));
        if (status.ok()) acknowledged++;
        if (!status.ok() && !absl::IsResourceExhausted(status)) break;
      }
    }
    if (store.ok()) store->reset();
    house.disk.set_fault(nullptr);
    random() % 2 == 0 ? house.disk.PowerLoss() : house.disk.Restart();
    auto again = house.Open();
    INFO("seed " << seed << ", life " << life << ": " << again.status());
    REQUIRE(again.ok());
    const int64_t newest = Newest(**again);
    REQUIRE((newest == acknowledged || newest == acknowledged + 1));
    acknowledged = newest;
  }
}

TEST_CASE("what was acknowledged among faults, deaths and power losses is there") {
  for (uint64_t seed = 1; seed <= 40; ++seed) RunHistory(seed);
}

}  // namespace
}  // namespace lorad::sim
