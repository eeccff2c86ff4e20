#include "planner/window/turns.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "planner/pipeline/simulate.h"
#include "planner/window/order.h"
#include "planner/window/window.h"

namespace lorad::planner {
namespace {

using Turns = std::vector<std::vector<size_t>>;

PlacesInFlight InFlight(const std::vector<std::string>& jobs) {
  PlacesInFlight places;
  for (const std::string& job : jobs) places.push_back({.ends = {{.job = job}}});
  return places;
}

TEST_CASE("As few turns as keep stages from waiting for a Step") {
  const std::vector<TurnJob> jobs = {{"a", 1000}, {"b", 1000}, {"c", 1000}, {"d", 1000}};
  // Nothing is to lie between: all share.
  CHECK(TakeTurns(jobs, 500, 0, {}) == Turns{{0, 1, 2, 3}});
  // Of two turns each has four microbatches.
  CHECK(TakeTurns(jobs, 500, 1, {}) == Turns{{0, 1}, {2, 3}});
  CHECK(TakeTurns(jobs, 500, 4, {}) == Turns{{0, 1}, {2, 3}});
  // Of three the largest has four of eight, of four each has two.
  CHECK(TakeTurns(jobs, 500, 5, {}) == Turns{{0}, {1}, {2}, {3}});
  // Never enough.
  CHECK(TakeTurns(jobs, 5000, 9, {}) == Turns{{0}, {1}, {2}, {3}});
  CHECK(TakeTurns({{"a", 1}}, 5000, 3, {}) == Turns{{0}});
  CHECK(TakeTurns({}, 5000, 3, {}).empty());
}

TEST_CASE("Who is in flight keeps its turn, and who is not comes by name") {
  const std::vector<TurnJob> jobs = {{"d", 1000}, {"a", 1000}, {"b", 1000}, {"c", 1000}};
  CHECK(TakeTurns(jobs, 500, 4, {}) == Turns{{1, 2}, {3, 0}});
  CHECK(TakeTurns(jobs, 500, 4, InFlight({"b", "a"})) == Turns{{3, 0}, {2, 1}});
  CHECK(TakeTurns(jobs, 500, 4, InFlight({"gone", "a"})) == Turns{{2, 3}, {0, 1}});
}

// ---- whole windows ----

struct Run {
  std::vector<Window> windows;
  Simulation simulation;
};

// `jobs` jobs of `sequences` sequences a batch, lengths like those of summarization, one batch a
// window; a microbatch takes as long as its tokens.
Run Train(int stages, int jobs, int sequences, int64_t capacity, int windows) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> length(5.8, 0.8);
  Run run;
  PlacesInFlight left;
  WindowInput input;
  input.capacity_tokens = capacity;
  input.stages = stages;
  input.in_flight = stages + 1;
  Window joined;
  joined.stages.resize(static_cast<size_t>(stages));
  SimulateOptions options;
  for (int w = 0; w <= windows; ++w) {
    input.before = left;
    input.units.clear();
    for (int j = 0; j < jobs && w < windows; ++j) {  // the last window drains
      Unit unit;
      unit.job = "job" + std::to_string(j);
      unit.step = w + 1;
      for (int64_t s = 0; s < sequences; ++s) {
        const auto tokens = std::min<int64_t>(capacity, 32 + std::llround(length(random)));
        unit.sequences.push_back({s, tokens, tokens});
      }
      input.units.push_back(std::move(unit));
    }
    auto window = PlanWindow(input, nullptr, &left);
    REQUIRE(window.ok());
    for (const Microbatch& microbatch : window->microbatches) {
      const double ms = 1e-3 * static_cast<double>(Tokens(microbatch));
      options.costs[microbatch.number] = {
          std::vector<double>(static_cast<size_t>(stages), ms),
          std::vector<double>(static_cast<size_t>(stages), 1.2 * ms), 0};
      joined.microbatches.push_back(microbatch);
    }
    for (size_t s = 0; s < joined.stages.size(); ++s) {
      for (const Operation& operation : window->stages[s]) {
        input.first_microbatch = std::max(input.first_microbatch, operation.microbatch + 1);
        joined.stages[s].push_back(operation);
      }
    }
    run.windows.push_back(*std::move(window));
  }
  options.from = run.windows[1].microbatches.front().number;
  options.to = run.windows[static_cast<size_t>(windows) - 1].microbatches.front().number;
  for (auto& stage : joined.stages) {  // what costs nothing and has no microbatch
    std::erase_if(stage, [](const Operation& o) { return o.kind == OperationKind::kNoop; });
  }
  auto simulation = Simulate(joined, options);
  REQUIRE(simulation.ok());
  run.simulation = *std::move(simulation);
  return run;
}

TEST_CASE("Four jobs keep stages busy over the borders of windows") {
  struct Case {
    int stages, sequences;
    int64_t capacity;
    double bubble_max;
  };
  for (const Case& c : {Case{2, 32, 4096, 0.03}, Case{2, 8, 2048, 0.06}, Case{4, 32, 4096, 0.06},
                        Case{2, 8, 4096, 0.10}}) {
    const Run run = Train(c.stages, 4, c.sequences, c.capacity, 22);
    INFO(c.stages << " stages, " << c.sequences << " sequences, " << c.capacity
                  << " tokens: " << run.simulation.bubble_ratio);
    CHECK(run.simulation.bubble_ratio < c.bubble_max);
    CHECK(VerifyWindows(run.windows).message() == "");
  }
}

TEST_CASE("Microbatches of several stages hold the jobs of one turn, and are levelled") {
  const Run run = Train(2, 4, 32, 4096, 3);
  for (const Window& window : run.windows) {
    int64_t least = 4096, most = 0;
    for (const Microbatch& microbatch : window.microbatches) {
      CHECK(Adapters(microbatch) <= 2);
      least = std::min(least, Tokens(microbatch));
      most = std::max(most, Tokens(microbatch));
    }
    CHECK(most - least < 1024);
  }
}

}  // namespace
}  // namespace lorad::planner
