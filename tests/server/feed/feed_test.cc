#include "server/feed/feed.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "server/feed/row_order.h"
#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"
#include "tests/server/feed/house.h"

namespace lorad::server::feed {
namespace {

struct FeedHouse : House {
  FeedOptions options{.data_dir = directory.path(), .cache_dir = directory / "cache"};
  std::atomic<int64_t> now_us = 0;
  const std::function<int64_t()> clock = [this] { return now_us.load(); };
  Feed feed{options, storage::RealFiles(), clock};

  // Of the file as it is now, as its record would say.
  RowSource Source(const std::string& path, int32_t max_length = 64) const {
    const auto bytes = storage::RealFiles().ReadAll(directory / path, 1 << 20);
    return {.dataset = "d",
            .dataset_path = path,
            .dataset_sha256 = storage::Sha256::Of(bytes.value_or("")),
            .model_path = model(),
            .model_fingerprint = storage::ModelDirectory::Open(model())->fingerprint(),
            .max_length = max_length};
  }
  // Plans windows of rows that were checked before, as the core does.
  static absl::StatusOr<FeedWindow> Plan(Feed& feed, const PlanInput& input,
                                         const std::function<bool()>& hurry = nullptr) {
    for (const TrainUnit& unit : input.trains) feed.CheckRows(unit.source).IgnoreError();
    for (const EvaluateUnit& unit : input.evaluates) feed.CheckRows(unit.source).IgnoreError();
    return feed.Plan(input, hurry);
  }
  absl::StatusOr<FeedWindow> Plan(const PlanInput& input,
                                  const std::function<bool()>& hurry = nullptr) {
    return Plan(feed, input, hurry);
  }
  TrainUnit Train(const std::string& job, int64_t step, const std::string& path,
                  int32_t batch_size) const {
    return {.job = job,
            .step = step,
            .source = Source(path),
            .batch_size = batch_size,
            .shuffle = false,
            .seed = 0,
            .learning_rate = 0.5,
            .save = false};
  }
};

std::string Reason(const absl::Status& status) {
  const auto reason = status.GetPayload("lorad/reason");
  return reason ? std::string(*reason) : "";
}

PlanInput Input(int32_t capacity_tokens) {
  PlanInput input;
  input.capacity_tokens = capacity_tokens;
  return input;
}

// "3:a/1#0=5 ..;" for each microbatch (ids[0] behind the equals sign), then the operations.
std::string Text(const worker::v1::Window& window) {
  std::string text;
  for (const auto& microbatch : window.microbatches()) {
    text += std::to_string(microbatch.number()) + ":";
    for (const auto& segment : microbatch.segments()) {
      text += " " + segment.job() + "/" + std::to_string(segment.step()) + "#" +
              std::to_string(segment.sequence()) + "=" + std::to_string(segment.input_ids(0)) +
              "[" + std::to_string(segment.input_ids_size()) + "]";
    }
    text += "\n";
  }
  for (const auto& operation : window.operations()) {
    text += worker::v1::Operation::Kind_Name(operation.kind()) + " ";
  }
  return text;
}

TEST_CASE(
    "A window of two jobs that train, one that is evaluated, one that comes and one that goes") {
  FeedHouse house;
  const std::string a = house.AddTokens("a.jsonl", {6, 4, 3, 2, 2});
  const std::string b = house.AddTokens("b.jsonl", {7, 7}, 3);
  PlanInput input = Input(10);
  input.epoch = 3;
  input.window = 8;
  input.first_microbatch = 40;
  input.frees = {"z"};
  LoadUnit load{.step = 4, .slot = {}, .content = "checkpoint:x"};
  load.slot.set_job("b");
  load.slot.set_rank(5);
  input.loads = {load};
  input.trains = {house.Train("a", 1, a, 3), house.Train("b", 5, b, 1)};
  input.trains[0].save = true;
  input.evaluates = {
      {.job = "c", .step = 9, .source = house.Source(a), .first_sequence = 3, .sequences = 2}};
  const auto planned = house.Plan(input);
  REQUIRE(planned.status().message() == "");
  REQUIRE(planned->failures.empty());
  const worker::v1::Window& window = planned->window.stages.at(0);
  REQUIRE(planned->lines.size() == 2);
  CHECK(planned->lines[0].lines == std::vector<int64_t>{1, 2, 3});
  CHECK(planned->lines[1].job == "b");
  CHECK(planned->lines[1].step == 5);
  CHECK(planned->lines[1].lines == std::vector<int64_t>{1});  // the third pass over two rows
  CHECK(Text(window) ==
        "40: a/1#2=2[3] b/5#0=0[7]\n"
        "41: a/1#0=0[6] a/1#1=1[4]\n"
        "42: c/9#3=3[2] c/9#4=4[2]\n"
        "FREE_SLOT LOAD_SLOT FORWARD BACKWARD NORM_UP CLIP_DOWN STEP FORWARD BACKWARD NORM_UP "
        "CLIP_DOWN STEP SAVE EVALUATE ");
  CHECK(window.epoch() == 3);
  CHECK(window.number() == 8);
  REQUIRE(window.batches_size() == 2);
  CHECK(window.batches(0).trained_tokens() == 10);
  CHECK(window.batches(0).tokens() == 13);
  CHECK(window.batches(0).sequences() == 3);
  CHECK(window.batches(1).trained_tokens() == 4);
  CHECK(window.operations(1).slot().rank() == 5);
  CHECK(window.operations(1).content() == "checkpoint:x");
  CHECK(window.operations(1).step() == 4);
  CHECK(window.operations(6).learning_rate() == 0.5);
  const auto& segment = window.microbatches(0).segments(1);
  CHECK(std::vector<int32_t>(segment.labels().begin(), segment.labels().end()) ==
        std::vector<int32_t>{-100, -100, -100, 0, 0, 0, 0});
  CHECK(segment.mode() == worker::v1::Segment::TRAIN);
  CHECK(window.microbatches(2).segments(0).mode() == worker::v1::Segment::EVALUATE);
  CHECK(planned->statistics.microbatches == 3);
}

TEST_CASE("Of several stages the first gets ids, the last labels, and all lengths") {
  FeedHouse house;
  const std::string path = house.AddTokens("a.jsonl", {6, 3, 3, 2, 2});
  PlanInput input = Input(10);
  input.stages = 3;
  input.in_flight = 3;
  input.first_microbatch = 5;
  input.trains = {house.Train("a", 1, path, 3)};
  const auto planned = house.Plan(input);
  REQUIRE(planned.ok());
  REQUIRE(planned->window.stages.size() == 3);
  for (size_t stage = 0; stage < 3; ++stage) {
    const worker::v1::Window& window = planned->window.stages[stage];
    const auto& segment = window.microbatches(0).segments(0);
    CHECK(segment.tokens() == 6);
    CHECK(segment.input_ids_size() == (stage == 0 ? 6 : 0));
    CHECK(segment.labels_size() == (stage == 2 ? 6 : 0));
    CHECK(window.batches_size() == 1);
  }
  CHECK(planned->window.left.size() == 2);
  CHECK(planned->window.next_microbatch == 7);

  PlanInput rest = Input(10);
  rest.stages = rest.in_flight = 3;
  rest.first_microbatch = planned->window.next_microbatch;
  rest.before = planned->window.left;
  const auto drained = house.Plan(rest);
  REQUIRE(drained.ok());
  CHECK(drained->window.left.empty());
  CHECK(Text(drained->window.stages[2]) == "CLIP_DOWN STEP ");
  CHECK(drained->window.stages[0].operations(0).kind() == worker::v1::Operation::RECV);
  CHECK(drained->window.stages[0].operations(0).gradient());
  CHECK(drained->window.stages[0].operations(0).peer() == 1);
}

TEST_CASE("The program packs better than greedy; in a hurry greedy does, the batch is the same") {
  FeedHouse house;
  PlanInput input = Input(10);
  input.trains = {house.Train("a", 1, house.AddTokens("a.jsonl", {4, 4, 3, 3, 3, 3}), 6)};
  const auto best = house.Plan(input, [] { return false; });
  REQUIRE(best.ok());
  REQUIRE(best->packings.size() == 1);
  CHECK(best->packings[0].path == planner::PackPath::kProgramImproved);
  CHECK(best->window.stages.at(0).microbatches_size() == 2);
  const auto hurried = house.Plan(input, [] { return true; });
  REQUIRE(hurried.ok());
  CHECK(hurried->packings[0].path == planner::PackPath::kCancelled);
  CHECK(hurried->window.stages.at(0).microbatches_size() == 3);
  CHECK(hurried->statistics.bound_microbatches == 2);
  CHECK(hurried->window.stages.at(0).batches(0).SerializeAsString() ==
        best->window.stages.at(0).batches(0).SerializeAsString());
}

TEST_CASE("Steps go through shuffled epochs; a new feed gives the same rows") {
  FeedHouse house;
  const std::string path = house.AddTokens("a.jsonl", std::vector<int64_t>(10, 2));
  const auto rows_of = [&](Feed& feed, int64_t step) {
    PlanInput input = Input(64);
    TrainUnit unit = house.Train("a", step, path, 4);
    unit.shuffle = true;
    unit.seed = 77;
    input.trains = {unit};
    const auto planned = FeedHouse::Plan(feed, input);
    REQUIRE(planned.ok());
    std::vector<int64_t> rows(
        static_cast<size_t>(planned->window.stages.at(0).batches(0).sequences()));
    for (const auto& microbatch : planned->window.stages.at(0).microbatches()) {
      for (const auto& segment : microbatch.segments()) {
        rows[static_cast<size_t>(segment.sequence())] = segment.input_ids(0);
      }
    }
    return rows;
  };
  Feed other(house.options, storage::RealFiles(), house.clock);
  for (int64_t epoch : {0, 1, 0, 3}) {
    std::vector<int64_t> all;
    for (int64_t step = 1; step <= 3; ++step) {
      const auto rows = rows_of(house.feed, 3 * epoch + step);
      CHECK(rows.size() == (step == 3 ? 2 : 4));
      all.insert(all.end(), rows.begin(), rows.end());
      CHECK(rows_of(other, 3 * epoch + step) == rows);
    }
    CHECK(all == RowOrder(10, true, 77, epoch));
  }
}

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

TEST_CASE("Plans that ask for what is not there are refused") {
  FeedHouse house;
  const std::string path = house.AddTokens("a.jsonl", {3, 9});
  struct Case {
    int64_t first, sequences;
    int32_t capacity;
    std::string expected;
  };
  const Case cases[] = {
      {1, 2, 64, "job e: rows 1 to 3 of 2"},
      {-1, 1, 64, "job e: rows -1 to 0 of 2"},
      {0, 0, 64, "job e: rows 0 to 0 of 2"},
      {1, 1, 8, "job e: row 1 has 9 tokens; a microbatch holds 8"},
  };
  for (const Case& c : cases) {
    PlanInput input = Input(c.capacity);
    input.evaluates = {{.job = "e",
                        .step = 0,
                        .source = house.Source(path),
                        .first_sequence = c.first,
                        .sequences = c.sequences}};
    const auto planned = house.Plan(input);
    REQUIRE(planned.ok());
    CHECK(planned->window.stages.at(0).operations().empty());
    REQUIRE(planned->failures.size() == 1);
    CHECK(planned->failures[0].job == "e");
    CHECK(planned->failures[0].status.message() == c.expected);
    CHECK(Reason(planned->failures[0].status) == "WINDOW_NOT_PLANNED");
  }
}

TEST_CASE("One job's rows are gone: the window of the others is planned, and it is named") {
  FeedHouse house;
  const std::string a = house.AddTokens("a.jsonl", {3, 9}), b = house.AddTokens("b.jsonl", {4});
  PlanInput input = Input(64);
  input.trains = {house.Train("a", 1, a, 2), house.Train("b", 1, b, 1)};
  REQUIRE(house.feed.CheckRows(house.Source(a)).ok());
  const auto planned = house.feed.Plan(input);
  REQUIRE(planned.ok());
  CHECK(Text(planned->window.stages.at(0)) ==
        "0: a/1#0=0[3] a/1#1=1[9]\nFORWARD BACKWARD NORM_UP CLIP_DOWN STEP ");
  REQUIRE(planned->failures.size() == 1);
  CHECK(planned->failures[0].job == "b");
  CHECK(Reason(planned->failures[0].status) == "ROWS_NOT_READY");
  // Windows wait for nobody's rows; a check makes them.
  REQUIRE(house.feed.CheckRows(house.Source(b)).ok());
  CHECK(house.feed.Plan(input)->failures.empty());
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
  house.options.open_bytes_max = 16 << 20;  // three or so
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

TEST_CASE("Tokens of a whole job") {
  FeedHouse house;
  const RowSource source = house.Source(house.AddTokens("a.jsonl", {2, 3, 4, 5, 6}));
  REQUIRE(house.feed.CheckRows(source).ok());
  const auto total = [&](int32_t batch_size, int64_t steps) {
    return *house.feed.TotalTokens(source, false, 0, batch_size, steps);
  };
  CHECK(total(2, 0) == 0);
  CHECK(total(2, 1) == 5);
  CHECK(total(2, 3) == 20);
  CHECK(total(2, 4) == 25);
  CHECK(total(8, 3) == 60);
  CHECK(*house.feed.TotalTokens(source, true, 3, 2, 3) == 20);
}

}  // namespace
}  // namespace lorad::server::feed
