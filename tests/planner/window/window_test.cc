#include "planner/window/window.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "planner/window/order.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

TEST_CASE("Tokens that are generated stand behind all else, in microbatches of their own") {
  WindowInput input;
  input.capacity_tokens = 10;
  input.first_microbatch = 1;
  input.units = {
      {"guest-1-2", SegmentMode::kGenerate, 0, {{0, 6, 0}, {1, 5, 0}}, 0, false},
      {"base-1-3", SegmentMode::kGenerate, 0, {{0, 4, 0}}, 0, false},
      {"a", SegmentMode::kTrain, 1, {{0, 3, 2}}, 0.1, false},
      {"b", SegmentMode::kEvaluate, 1, {{0, 2, 1}}, 0, false},
  };
  const auto window = PlanWindow(input);
  REQUIRE(window.ok());
  CHECK(ToText(*window) ==
        "batch a/1: 1 sequences, 2 of 3 tokens trained\n"
        "microbatch 1: train a/1#0[3]\n"
        "microbatch 2: evaluate b/1#0[2]\n"
        "microbatch 3: generate guest-1-2/0#0[6] base-1-3/0#0[4]\n"
        "microbatch 4: generate guest-1-2/0#1[5]\n"
        "stage 0: F1; B1; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=0.1; E2; G3; G4\n");
  input.units[0].sequences[0].tokens = 11;
  CHECK(PlanWindow(input).status().code() == absl::StatusCode::kInvalidArgument);

  Window wrong = *window;
  wrong.stages[0].back().kind = OperationKind::kEvaluate;
  CHECK_FALSE(VerifyWindow(wrong).ok());

  input.units[0].sequences[0].tokens = 6;
  input.stages = 3;
  input.in_flight = 3;
  PlacesInFlight left;
  const auto several = PlanWindow(input, nullptr, &left);
  REQUIRE(several.ok());
  CHECK(left.size() == 2);
  for (const Place& place : left) CHECK(place.kind == OperationKind::kGenerate);
}

TEST_CASE("A window of two jobs that train and one that is evaluated") {
  WindowInput input;
  input.capacity_tokens = 10;
  input.first_microbatch = 40;
  input.frees = {"z"};
  input.loads = {{"b", 0}};
  input.units = {
      {"a", SegmentMode::kTrain, 3, {{0, 6, 5}, {1, 4, 3}, {2, 3, 2}}, 0.1, true},
      {"b", SegmentMode::kTrain, 1, {{0, 7, 6}}, 0.2, false},
      {"c", SegmentMode::kEvaluate, 5, {{8, 2, 1}, {9, 8, 7}}, 0, false},
  };
  const auto window = PlanWindow(input);
  REQUIRE(window.ok());
  CHECK(ToText(*window) ==
        "batch a/3: 3 sequences, 10 of 13 tokens trained\n"
        "batch b/1: 1 sequences, 6 of 7 tokens trained\n"
        "microbatch 40: train a/3#2[3] b/1#0[7]\n"
        "microbatch 41: train a/3#0[6] a/3#1[4]\n"
        "microbatch 42: evaluate c/5#8[2] c/5#9[8]\n"
        "stage 0: FREE z; LOAD b/0; F40; B40; NORM_UP b/1; CLIP_DOWN b/1; STEP b/1 lr=0.2; "
        "F41; B41; NORM_UP a/3; CLIP_DOWN a/3; STEP a/3 lr=0.1; SAVE a/3; E42\n");
  const WindowStatistics statistics = Describe(*window, 10);
  CHECK(statistics.microbatches == 3);
  CHECK(statistics.bound_microbatches == 3);
  CHECK(statistics.tokens == 30);
  CHECK(statistics.fill == 1.0);
  CHECK(statistics.adapters_per_microbatch == Approx(4.0 / 3));
}

TEST_CASE("Windows of several stages run on, and one without units drains the pipeline") {
  std::vector<Window> windows;
  PlacesInFlight left;
  int64_t number = 0;
  const auto plan = [&](std::vector<Unit> units,
                        std::vector<std::pair<std::string, int64_t>> loads) {
    WindowInput input;
    input.capacity_tokens = 10;
    input.stages = 3;
    input.before = left;
    input.first_microbatch = number;
    input.loads = std::move(loads);
    input.units = std::move(units);
    auto window = PlanWindow(input, nullptr, &left);
    REQUIRE(window.ok());
    for (const auto& operation : window->stages[0]) {
      number = std::max(number, operation.microbatch + 1);
    }
    windows.push_back(*std::move(window));
  };
  const auto train = [](const std::string& job, int64_t step) {
    return Unit{job, SegmentMode::kTrain, step, {{0, 6, 5}, {1, 7, 3}}, 0.1, false};
  };
  plan({}, {{"a", 0}, {"b", 0}});
  CHECK(left.empty());
  for (int64_t step = 1; step <= 3; ++step) {
    plan({train("a", step), train("b", step)}, {});
    CHECK(left.size() == 2);
  }
  // What is in flight is not verified alone, but with what follows.
  CHECK_FALSE(VerifyWindows(windows).ok());
  plan({}, {});
  CHECK(left.empty());
  const absl::Status status = VerifyWindows(windows);
  INFO(status.ToString());
  CHECK(status.ok());
  // The jobs take turns, so the first one's Step was in the window before.
  CHECK(ToText(windows[windows.size() - 2].stages[2]).find("STEP a/3 lr=0.1") != std::string::npos);
  CHECK(ToText(windows.back().stages[2]) == "CLIP_DOWN b/3; STEP b/3 lr=0.1");
}

TEST_CASE("A window that is wrong behind what is in flight is not given out") {
  WindowInput input;
  input.capacity_tokens = 10;
  input.stages = 3;
  input.units = {{"a", SegmentMode::kTrain, 1, {{0, 6, 5}}, 0.1, false},
                 {"b", SegmentMode::kTrain, 1, {{0, 7, 6}}, 0.1, false}};
  PlacesInFlight left;
  REQUIRE(PlanWindow(input, nullptr, &left).ok());
  input.first_microbatch = left.back().number + 1;
  input.units.pop_back();
  input.units[0].step = 2;
  // A microbatch whose place was lost, or that was said to be in flight twice.
  input.before = left;
  input.before.back().kind = OperationKind::kNoop;
  CHECK(PlanWindow(input, nullptr, &left).status().code() == absl::StatusCode::kInternal);
  input.before = left;
  input.before.push_back(input.before.back());
  CHECK(PlanWindow(input, nullptr, &left).status().code() == absl::StatusCode::kInternal);
}

TEST_CASE("A window of orders alone, and of nothing") {
  WindowInput input;
  input.capacity_tokens = 10;
  input.frees = {"a"};
  input.saves = {{"b", 3}};
  CHECK(ToText(*PlanWindow(input)) == "stage 0: FREE a; SAVE b/3\n");
  CHECK(Describe(*PlanWindow(input), 10).microbatches == 0);
}

TEST_CASE("What does not do is refused") {
  struct Case {
    std::vector<Unit> units;
    std::string expected;
  };
  const Case cases[] = {
      {{{"a", SegmentMode::kTrain, 1, {{0, 11, 9}}, 1, false}},
       "sample 0 of job a has 11 tokens; a microbatch holds 1 to 10"},
      {{{"a", SegmentMode::kTrain, 1, {{0, 5, 0}}, 1, false}}, "batch a/1 has no trained token"},
      {{{"a", SegmentMode::kTrain, 1, {{0, 5, 1}}, 1, false},
        {"a", SegmentMode::kEvaluate, 1, {{0, 5, 1}}, 0, false}},
       "job a has two units"},
  };
  for (const Case& c : cases) {
    WindowInput input;
    input.capacity_tokens = 10;
    input.units = c.units;
    CHECK(PlanWindow(input).status().message() == c.expected);
  }
}

TEST_CASE(
    "Random windows hold every sequence once, within capacity, and do not depend on job order") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 100; ++i) {
      WindowInput input;
      input.capacity_tokens = 50 + static_cast<int64_t>(random() % 200);
      input.first_microbatch = static_cast<int64_t>(random() % 1000);
      std::set<std::string> expected;
      for (size_t j = 0, jobs = 1 + random() % 5; j < jobs; ++j) {
        Unit unit;
        unit.job = std::string(1, static_cast<char>('a' + j));
        unit.mode = random() % 4 == 0 ? SegmentMode::kEvaluate : SegmentMode::kTrain;
        unit.step = 1 + static_cast<int64_t>(random() % 9);
        for (int64_t s = 0, count = 1 + static_cast<int64_t>(random() % 8); s < count; ++s) {
          unit.sequences.push_back(
              {s, 1 + static_cast<int64_t>(random()) % input.capacity_tokens, 1});
          expected.insert(unit.job + std::to_string(s));
        }
        input.units.push_back(unit);
      }
      const auto window = PlanWindow(input);
      REQUIRE(window.ok());
      std::set<std::string> seen;
      for (const Microbatch& microbatch : window->microbatches) {
        REQUIRE(Tokens(microbatch) <= input.capacity_tokens);
        for (const Segment& segment : microbatch.segments) {
          REQUIRE(seen.insert(segment.job + std::to_string(segment.sequence)).second);
        }
      }
      REQUIRE(seen == expected);
      REQUIRE(*PlanWindow(input) == *window);
    }
  }
}

}  // namespace
}  // namespace lorad::planner
