// A cache goes bad while its rows are trained on: the job waits until it is made again and goes on
// with the same rows, and its neighbours notice nothing.
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

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

// A disk that opens no token cache as long as there is `none` left to open it with.
class NoDescriptors final : public FullDisk {
 public:
  NoDescriptors() : FullDisk(int64_t{1} << 40) {}
  std::atomic<bool> none = false;
  std::atomic<int> created = 0;  // token caches

  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> OpenToRead(
      const std::string& path) override {
    if (none && path.ends_with(".tokens")) return storage::FileError("open", path, EMFILE);
    return FullDisk::OpenToRead(path);
  }
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> Create(const std::string& path) override {
    if (path.find(".tokens") != std::string::npos) ++created;
    return FullDisk::Create(path);
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

// Those who plan and those who check at one time each find it damaged for the others.
TEST_CASE("A cache that goes bad again and again gives everyone the right rows, or none") {
  Neighbours jobs;
  const std::string window = Bytes(jobs.feed.Plan(jobs.input));
  const std::string good = jobs.Good();
  std::atomic<bool> ended = false;
  std::atomic<int> planned = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        const auto found = jobs.feed.Plan(jobs.input);
        if (!found.ok()) {
          ++wrong;
        } else if (found->failures.empty()) {
          ++planned;
          if (found->window.stages.at(0).SerializeAsString() != window) ++wrong;
        }
      }
    });
    threads.emplace_back([&] {
      while (!ended) {
        const auto rows = jobs.feed.CheckRows(jobs.Source(jobs.a));
        if (rows.ok() && rows->rows() != 2) ++wrong;
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    jobs.Overwrite(i % 2 == 0 ? std::string(good.size(), '\0') : good.substr(0, 70));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (planned == 0) std::this_thread::yield();  // it is left damaged, and is made again
  ended = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("A cache that cannot be opened for want of descriptors is not made again") {
  NoDescriptors disk;
  FeedHouse house;
  Feed feed(house.options, disk, house.clock);
  const std::string rows = house.AddTokens("a.jsonl", {3});
  REQUIRE(feed.CheckRows(house.Source(rows)).ok());
  feed.Close(rows);
  disk.none = true;
  const absl::Status refused = feed.CheckRows(house.Source(rows)).status();
  CHECK(Reason(refused) == "ROWS_NOT_READ");
  CHECK(refused.message().find("Too many open files") != std::string::npos);
  CHECK(disk.created == 1);
  PlanInput input = Input(64);
  input.trains = {house.Train("a", 1, rows, 1)};
  const auto planned = feed.Plan(input);
  REQUIRE(planned.ok());
  REQUIRE(planned->failures.size() == 1);
  CHECK(Reason(planned->failures[0].status) == "ROWS_NOT_READ");
  disk.none = false;
  CHECK(feed.CheckRows(house.Source(rows)).ok());
  CHECK(disk.created == 1);
}

TEST_CASE("So many caches stay open as there may be open files") {
  FeedHouse house;
  house.options.open_files_max = 3;
  Feed feed(house.options, storage::RealFiles(), house.clock);
  for (int i = 0; i < 8; ++i) {
    REQUIRE(feed.CheckRows(house.Source(house.AddTokens(std::to_string(i) + ".jsonl", {3}))).ok());
  }
  feed.CheckRows(house.Source("0.jsonl")).IgnoreError();
  CHECK(feed.kept_caches() <= 3);
}

}  // namespace
}  // namespace lorad::server::feed
