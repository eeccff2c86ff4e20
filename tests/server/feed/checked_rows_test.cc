// What the feed knows of rows that were checked: their sums, what is wrong with them, their caches.
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "server/feed/feed.h"
#include "tests/server/feed/feed_house.h"
#include "tests/server/services/full_disk.h"

namespace lorad::server::feed {
namespace {

TEST_CASE("Rows are summed up, with the first bad one") {
  FeedHouse house;
  const auto good = house.feed.CheckRows(house.Source(house.AddTokens("a.jsonl", {3, 9, 2}), 6));
  REQUIRE(good.status().message() == "");
  CHECK(good->rows() == 3);
  CHECK(good->tokens() == 11);
  CHECK(good->trained_tokens() == 8);
  CHECK(good->truncated_rows() == 1);
  CHECK(good->longest_tokens() == 6);
  CHECK(good->squared_lengths() == 9 + 36 + 4);
  CHECK(good->error_count() == 0);

  RowSource refusing = house.Source("a.jsonl", 6);
  refusing.overflow = v1::TrainingConfig::ERROR;
  const auto refused = house.feed.CheckRows(refusing);
  REQUIRE(refused.ok());
  CHECK(refused->error_count() == 1);
  CHECK(refused->error_line() == 2);
  CHECK(refused->error_reason() == "the row has 9 tokens, more than the 6 of max_length");
  CHECK(refused->untrained_lines().empty());
  PlanInput input = Input(64);
  input.trains = {house.Train("a", 1, "a.jsonl", 2)};
  input.trains[0].source = refusing;
  const auto planned = house.feed.Plan(input);
  REQUIRE(planned.ok());
  REQUIRE(planned->failures.size() == 1);
  CHECK(Reason(planned->failures[0].status) == "ROWS_NOT_READY");

  CHECK(absl::IsNotFound(house.feed.CheckRows(house.Source("none.jsonl")).status()));
  RowSource no_model = house.Source("a.jsonl");
  no_model.model_path += "x";
  CHECK_FALSE(house.feed.CheckRows(no_model).ok());
}

TEST_CASE("Rows without a trained token are all named, or left out and counted") {
  FeedHouse house;
  std::string rows;
  for (const int label : {2, -100, -100, 2, -100}) {
    rows += "{\"input_ids\":[1,2],\"labels\":[1," + std::to_string(label) + "]}\n";
  }
  house.directory.Write("a.jsonl", rows);
  RowSource source = house.Source("a.jsonl");
  const auto refused = house.feed.CheckRows(source);
  REQUIRE(refused.ok());
  CHECK(refused->error_count() == 3);
  CHECK(refused->untrained_lines() == "2-3, 5");

  source.overflow = v1::TrainingConfig::SKIP;
  const auto skipped = house.feed.CheckRows(source);
  REQUIRE(skipped.ok());
  PlanInput input = Input(10);
  input.trains = {house.Train("a", 1, "a.jsonl", 2)};
  input.trains[0].source = source;
  const auto planned = house.Plan(input);
  REQUIRE(planned.ok());
  CHECK(planned->lines.at(0).lines ==
        std::vector<int64_t>{1, 4});  // of the file, not of what is left
  CHECK(skipped->error_count() == 0);
  CHECK(skipped->rows() == 2);
  CHECK(skipped->skipped_rows() == 3);
  CHECK(skipped->tokens() == 4);
}

// Another text in the place of the dataset's in its n-th read: it was changed and put back.
class ChangedOnce final : public FullDisk {
 public:
  ChangedOnce(int nth, std::string other)
      : FullDisk(int64_t{1} << 30), left_(nth), other_(std::move(other)) {}

  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    if (path.ends_with("a.jsonl") && left_-- == 1) return other_;
    return FullDisk::ReadRange(path, offset, length);
  }

 private:
  int left_;
  const std::string other_;
};

TEST_CASE(
    "A dataset that is changed while it is read, and put back, leaves no rows and no verdict") {
  const auto* const other = GENERATE("{\"input_ids\":[1,1],\"labels\":[1,1]}\n", "no row\n");
  const int nth = GENERATE(1, 2, 3);
  FeedHouse house;
  const RowSource source = house.Source(house.AddTokens("a.jsonl", {3, 9}));
  ChangedOnce files(nth, other);
  Feed feed(house.options, files, house.clock);
  const auto first = feed.CheckRows(source);
  if (!first.ok()) CHECK(Reason(first.status()) == "DATASET_CHANGED");
  const auto rows = feed.CheckRows(source);
  REQUIRE(rows.ok());
  CHECK(rows->error_count() == 0);
  CHECK(rows->tokens() == 12);
}

TEST_CASE("Rows are those that were acknowledged, or none: reasons of what stands in the way") {
  FeedHouse house;
  const std::string path = house.AddTokens("a.jsonl", {3, 9});
  const RowSource source = house.Source(path);
  const auto reason = [&](const RowSource& of) {
    return Reason(house.feed.CheckRows(of).status());
  };
  const std::string cache = house.options.cache_dir;
  SECTION("the dataset's file is gone, then other, then back") {
    const std::string bytes = *storage::RealFiles().ReadAll(house.directory / path, 1 << 20);
    REQUIRE(storage::RealFiles().Remove(house.directory / path).ok());
    CHECK(reason(source) == "DATASET_UNREADABLE");
    house.directory.Write(path, bytes + bytes);
    CHECK(reason(source) == "DATASET_CHANGED");
    house.directory.Write(path, bytes);
    CHECK(house.feed.CheckRows(source)->tokens() == 12);
  }
  SECTION("its tokens are there: the file is not needed") {
    REQUIRE(house.feed.CheckRows(source).ok());
    REQUIRE(storage::RealFiles().Remove(house.directory / path).ok());
    Feed feed(house.options, storage::RealFiles(), house.clock);
    CHECK(feed.CheckRows(source)->tokens() == 12);
  }
  SECTION("the model's directory is gone, not there yet, then other") {
    RowSource gone = source;
    gone.model_path += "x";
    CHECK(reason(gone) == "MODEL_NOT_FOUND");
    std::filesystem::create_directory(gone.model_path);  // where its share will be mounted
    CHECK(reason(gone) == "MODEL_NOT_FOUND");
    house.directory.Write("model/random_weights.json", R"({"seed": 2})");
    CHECK(reason(source) == "MODEL_CHANGED");
  }
  SECTION("the cache cannot be written") {
    house.directory.Write("cache", "a file where a directory should be");
    CHECK(reason(source) == "ROWS_NOT_READ");
  }
}

TEST_CASE("A cache that is damaged or gone is made again") {
  FeedHouse house;
  const RowSource source = house.Source(house.AddTokens("a.jsonl", {3, 9}));
  REQUIRE(house.feed.CheckRows(source).ok());
  const auto files = storage::RealFiles().List(house.options.cache_dir);
  REQUIRE(files->size() == 1);
  const std::string path = house.options.cache_dir + "/" + files->front();
  const std::string good = *storage::RealFiles().ReadAll(path, 1 << 20);
  for (const std::string& bad : {std::string(), good.substr(0, 50), "x" + good.substr(1)}) {
    REQUIRE(storage::WriteSynced(storage::RealFiles(), path, bad).ok());
    Feed feed(house.options, storage::RealFiles(), house.clock);
    CHECK(feed.CheckRows(source)->tokens() == 12);
    CHECK(*storage::RealFiles().ReadAll(path, 1 << 20) == good);
  }
}

TEST_CASE("Caches over the limit make room; what is open stays readable") {
  FeedHouse house;
  house.options.cache_bytes_max = 100;
  Feed feed(house.options, storage::RealFiles(), house.clock);
  const std::string a = house.AddTokens("a.jsonl", {3, 9}), b = house.AddTokens("b.jsonl", {4});
  REQUIRE(feed.CheckRows(house.Source(a)).ok());
  REQUIRE(feed.CheckRows(house.Source(b)).ok());
  CHECK(storage::RealFiles().List(house.options.cache_dir)->size() == 1);
  PlanInput input = Input(64);
  input.trains = {house.Train("a", 1, a, 2), house.Train("b", 1, b, 1)};
  const auto planned = feed.Plan(input);
  CHECK(planned->failures.empty());
  CHECK(planned->statistics.tokens == 16);
}

TEST_CASE("A check that is cancelled tokenizes nothing more, and leaves nothing behind") {
  FeedHouse house;
  const RowSource a = house.Source(house.AddTokens("a.jsonl", {3, 9}));
  const RowSource b = house.Source(house.AddTokens("b.jsonl", {3}));
  REQUIRE(house.feed.CheckRows(a).ok());
  const std::atomic<bool> cancelled{true};
  CHECK(house.feed.CheckRows(a, &cancelled)->tokens() == 12);
  CHECK(absl::IsCancelled(house.feed.CheckRows(b, &cancelled).status()));
  CHECK(storage::RealFiles().List(house.options.cache_dir)->size() == 1);
}

TEST_CASE(
    "More than 64 caches in use are opened once each; unused they are closed, and come again") {
  FeedHouse house;
  constexpr size_t kCaches = 100;
  const auto plan_all = [&] {
    for (size_t i = 0; i < kCaches; ++i) {
      PlanInput input = Input(64);
      input.trains = {house.Train("a", 1, std::to_string(i) + ".jsonl", 1)};
      REQUIRE(house.feed.Plan(input)->failures.empty());
    }
  };
  for (size_t i = 0; i < kCaches; ++i) {
    REQUIRE(house.feed.CheckRows(house.Source(house.AddTokens(std::to_string(i) + ".jsonl", {3})))
                .ok());
  }
  CHECK(house.feed.kept_caches() == kCaches);
  // An open cache needs no file.
  const std::string aside = house.directory / "aside";
  std::filesystem::rename(house.options.cache_dir, aside);
  house.now_us += house.options.unused_us - 1;
  plan_all();
  house.now_us += house.options.unused_us - 1;
  plan_all();
  CHECK(house.feed.kept_caches() == kCaches);
  std::filesystem::rename(aside, house.options.cache_dir);
  house.now_us += house.options.unused_us;
  REQUIRE(house.feed.CheckRows(house.Source("7.jsonl")).ok());
  CHECK(house.feed.kept_caches() == 1);
  plan_all();
  CHECK(house.feed.kept_caches() == kCaches);
}

TEST_CASE("The caches of a dataset are closed when it goes, those of others are not") {
  FeedHouse house;
  const RowSource a = house.Source(house.AddTokens("a.jsonl", {3, 9}));
  const RowSource b = house.Source(house.AddTokens("a.jsonl.b", {4}));
  REQUIRE(house.feed.CheckRows(a).ok());
  REQUIRE(house.feed.CheckRows(house.Source("a.jsonl", 6)).ok());
  REQUIRE(house.feed.CheckRows(b).ok());
  CHECK(house.feed.kept_caches() == 3);
  house.feed.Close("a.jsonl");
  CHECK(house.feed.kept_caches() == 1);
  CHECK(house.feed.CheckRows(a)->tokens() == 12);  // there are rows all the same
}

TEST_CASE("Many threads, little room for open caches: everyone gets the right rows") {
  FeedHouse house;
  house.options.open_files_max = 3;
  house.options.orders_bytes_max = 40;
  Feed feed(house.options, storage::RealFiles(), house.clock);
  std::vector<std::string> paths;
  for (int64_t i = 0; i < 8; ++i) {
    paths.push_back(house.AddTokens(std::to_string(i) + ".jsonl", {i + 2, i + 3}));
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const auto which = static_cast<size_t>((i * 5 + t) % 8);
        PlanInput input = Input(64);
        input.trains = {house.Train("a", 1, paths[which], 2)};
        const auto planned = FeedHouse::Plan(feed, input);
        const auto expected = static_cast<int64_t>(2 * which + 5);
        if (!planned.ok() || planned->window.stages.at(0).batches(0).tokens() != expected) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace lorad::server::feed
