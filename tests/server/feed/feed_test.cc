// What the feed plans: windows, batches, learning rates, whole jobs.
#include "server/feed/feed.h"

#include <catch2/catch.hpp>

#include "server/feed/row_order.h"
#include "tests/server/feed/feed_house.h"

namespace lorad::server::feed {
namespace {

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

}  // namespace
}  // namespace lorad::server::feed
