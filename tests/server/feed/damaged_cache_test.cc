// A cache goes bad while its rows are trained on: the job waits until it is made again and goes on
// with the same rows, and its neighbours notice nothing.
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <string>

#include "server/feed/feed.h"
#include "tests/server/feed/feed_house.h"
#include "tests/server/services/full_disk.h"

namespace lorad::server::feed {
namespace {

// A disk on which token caches cannot be read as long as `failing`.
class FailingReads final : public FullDisk {
 public:
  FailingReads() : FullDisk(int64_t{1} << 40) {}
  std::atomic<bool> failing = false;

  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    if (failing && path.ends_with(".tokens")) return storage::FileError("read", path, EIO);
    return FullDisk::ReadRange(path, offset, length);
  }
};

// Two jobs that train, on the rows of a dataset each.
struct Neighbours : FeedHouse {
  const std::string a = AddTokens("a.jsonl", {3, 9}), b = AddTokens("b.jsonl", {4});
  PlanInput input = Input(64);
  std::string cache;  // the path of a's

  Neighbours() {
    input.trains = {Train("a", 1, a, 2), Train("b", 1, b, 1)};
    REQUIRE(feed.CheckRows(Source(a)).ok());
    cache = options.cache_dir + "/" + storage::RealFiles().List(options.cache_dir)->front();
    REQUIRE(feed.CheckRows(Source(b)).ok());
  }

  std::string Good() const { return *storage::RealFiles().ReadAll(cache, 1 << 20); }
  void Overwrite(const std::string& bytes) const {
    REQUIRE(storage::WriteSynced(storage::RealFiles(), cache, bytes).ok());
  }
};

std::string Bytes(const absl::StatusOr<FeedWindow>& planned) {
  REQUIRE(planned.status().message() == "");
  return planned->window.stages.at(0).SerializeAsString();
}

void CheckIsAlone(const absl::StatusOr<FeedWindow>& planned, const std::string& lost) {
  REQUIRE(planned.ok());
  REQUIRE(planned->failures.size() == 1);
  CHECK(planned->failures[0].job == lost);
  CHECK(Reason(planned->failures[0].status) == "ROWS_NOT_READY");
  REQUIRE(planned->lines.size() == 1);
  CHECK(planned->lines[0].job == "b");
}

TEST_CASE("A cache that goes bad while it is open is made again, and the window is the same") {
  Neighbours jobs;
  const std::string window = Bytes(jobs.feed.Plan(jobs.input));
  const std::string good = jobs.Good();
  std::string bad;
  SECTION("cut") { bad = good.substr(0, 70); }
  SECTION("emptied") { bad = ""; }
  SECTION("zeros") { bad = std::string(good.size(), '\0'); }
  SECTION("other tokens") {
    bad = good;
    bad[8 + 16] ^= 1;
  }
  jobs.Overwrite(bad);
  CheckIsAlone(jobs.feed.Plan(jobs.input), "a");
  CheckIsAlone(jobs.feed.Plan(jobs.input), "a");  // a window tokenizes nothing
  REQUIRE(jobs.feed.CheckRows(jobs.Source(jobs.a)).ok());
  CHECK(Bytes(jobs.feed.Plan(jobs.input)) == window);
  CHECK(jobs.Good() == good);
}

TEST_CASE("A cache that is removed while it is open is read on") {
  Neighbours jobs;
  const std::string window = Bytes(jobs.feed.Plan(jobs.input));
  REQUIRE(storage::RealFiles().Remove(jobs.cache).ok());
  CHECK(Bytes(jobs.feed.Plan(jobs.input)) == window);
}

TEST_CASE("Caches that cannot be read are waited for") {
  FeedHouse house;
  FailingReads disk;
  Feed feed(house.options, disk, house.clock);
  const std::string path = house.AddTokens("a.jsonl", {3, 9});
  PlanInput input = Input(64);
  input.trains = {house.Train("a", 1, path, 2)};
  REQUIRE(feed.CheckRows(house.Source(path)).ok());
  const std::string window = Bytes(feed.Plan(input));
  const auto reason = [&](Feed& of) {
    const auto planned = of.Plan(input);
    REQUIRE(planned->failures.size() == 1);
    return Reason(planned->failures[0].status);
  };
  disk.failing = true;
  CHECK(reason(feed) == "ROWS_NOT_READY");
  CHECK(Reason(feed.CheckRows(house.Source(path)).status()) == "ROWS_NOT_READ");
  Feed started_again(house.options, disk, house.clock);
  CHECK(reason(started_again) == "ROWS_NOT_READY");
  disk.failing = false;
  CHECK(Bytes(feed.Plan(input)) == window);
  REQUIRE(started_again.CheckRows(house.Source(path)).ok());
  CHECK(Bytes(started_again.Plan(input)) == window);
}

}  // namespace
}  // namespace lorad::server::feed
