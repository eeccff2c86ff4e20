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

using Groups = std::vector<std::vector<size_t>>;

PlacesInFlight InFlight(const std::vector<std::string>& jobs) {
  PlacesInFlight places;
  for (const std::string& job : jobs) places.push_back({.ends = {{.job = job}}});
  return places;
}

// Jobs a, b, .. of so many tokens each, in sequences of 500 at most.
std::vector<TurnJob> Jobs(int count, int64_t tokens) {
  std::vector<TurnJob> jobs;
  for (int j = 0; j < count; ++j)
    jobs.push_back({std::string(1, static_cast<char>('a' + j)), tokens, 500});
  return jobs;
}

TEST_CASE("Turns and microbatches are as few as leave enough between two batches of a job") {
  struct Case {
    std::string what;
    int jobs;
    int64_t tokens, capacity, between, chosen;
    size_t turns;
  };
  for (const Case& c : {
           Case{"nothing is to lie between: all share", 4, 2000, 1024, 0, 1024, 1},
           Case{"two turns of four microbatches each", 4, 2000, 1024, 1, 1024, 2},
           Case{"one a turn leaves the most between", 4, 2000, 1024, 4, 1024, 4},
           Case{"long microbatches, for there are enough", 4, 14'600, 8192, 2, 8192, 2},
           Case{"one of each job, which do for two between", 4, 3650, 8192, 2, 8192, 4},
           Case{"shorter ones, for four would be few", 4, 3650, 8192, 4, 2048, 4},
           Case{"a batch of each is one microbatch, not all of them", 4, 1024, 8192, 3, 8192, 4},
           Case{"alone: many short ones drain less", 1, 14'600, 8192, 2, 1024, 1},
           Case{"alone on one stage: long ones", 1, 14'600, 8192, 0, 8192, 1},
       }) {
    INFO(c.what);
    const Turns turns = TakeTurns(Jobs(c.jobs, c.tokens), {c.capacity, c.between}, {});
    CHECK(turns.capacity_tokens == c.chosen);
    CHECK(turns.groups.size() == c.turns);
  }
  CHECK(TakeTurns({}, {5000, 3}, {}).groups.empty());
}

TEST_CASE(
    "No microbatch is planned shorter than a sequence, or than the capacity where that is short") {
  CHECK(TakeTurns({{"a", 14'600, 3000}}, {8192, 2}, {}).capacity_tokens == 4096);
  CHECK(TakeTurns({{"a", 14'600, 5000}}, {8192, 2}, {}).capacity_tokens == 8192);
  CHECK(TakeTurns({{"a", 14'600, 100}}, {512, 2}, {}).capacity_tokens == 512);
  CHECK(TakeTurns({{"a", 14'600, 100}}, {1500, 2}, {}).capacity_tokens == 1500);
}

TEST_CASE("Microbatches of small models take more beside their tokens, and are longer for that") {
  CHECK(MicrobatchCostTokens(5120) == 204);
  CHECK(MicrobatchCostTokens(2048) == 512);
  const auto chosen = [](int64_t hidden) {
    const TurnOptions options{.capacity_tokens = 8192,
                              .places_between = 4,
                              .microbatch_cost_tokens = MicrobatchCostTokens(hidden)};
    return TakeTurns(Jobs(4, 14'600), options, {}).capacity_tokens;
  };
  CHECK(chosen(8192) == 4096);
  CHECK(chosen(2048) == 8192);
}

TEST_CASE("Who is in flight keeps its turn, and who is not comes by name") {
  const std::vector<TurnJob> jobs = {
      {"d", 2000, 9}, {"a", 2000, 9}, {"b", 2000, 9}, {"c", 2000, 9}};
  const auto groups = [&](const PlacesInFlight& before) {
    return TakeTurns(jobs, {1024, 1}, before).groups;
  };
  CHECK(groups({}) == Groups{{1, 2}, {3, 0}});
  CHECK(groups(InFlight({"b", "a"})) == Groups{{3, 0}, {2, 1}});
  CHECK(groups(InFlight({"gone", "a"})) == Groups{{2, 3}, {0, 1}});
}

// ---- whole windows ----

struct Run {
  std::vector<Window> windows;
  Simulation simulation;
  int64_t tokens = 0;
};

// `jobs` jobs of `sequences` sequences a batch, lengths like those of summarization, one batch a
// window; a microbatch takes as long as its tokens, and a constant part.
Run Train(int stages, int jobs, int sequences, int64_t capacity, int windows,
          int64_t longest = 2048, uint64_t seed = 7) {
  std::mt19937_64 random(seed);
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
        const auto tokens = std::min<int64_t>(longest, 32 + std::llround(length(random)));
        unit.sequences.push_back({s, tokens, tokens});
      }
      input.units.push_back(std::move(unit));
    }
    auto window = PlanWindow(input, nullptr, &left);
    REQUIRE(window.ok());
    for (const Microbatch& microbatch : window->microbatches) {
      const double ms = 1e-3 * static_cast<double>(Tokens(microbatch) + kMicrobatchCostTokens);
      run.tokens += Tokens(microbatch);
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
  for (const Case& c : {Case{2, 32, 4096, 0.03}, Case{2, 8, 2048, 0.06}, Case{4, 32, 4096, 0.04},
                        Case{2, 8, 4096, 0.10}}) {
    const Run run = Train(c.stages, 4, c.sequences, c.capacity, 22);
    INFO(c.stages << " stages, " << c.sequences << " sequences, " << c.capacity
                  << " tokens: " << run.simulation.bubble_ratio);
    CHECK(run.simulation.bubble_ratio < c.bubble_max);
    CHECK(VerifyWindows(run.windows).message() == "");
  }
}

// What is chosen is held against what the same windows take with lengths fixed beforehand.
TEST_CASE("No length of microbatches that is fixed beforehand ends sooner by more than 3 %") {
  for (const int stages : {2, 3, 4}) {
    for (const int jobs : {1, 2, 4, 5, 8}) {
      for (const int sequences : {4, 8, 16, 32, 64}) {
        const int seed = 7 + stages + jobs;
        const Run chosen = Train(stages, jobs, sequences, 8192, 10, 1024, seed);
        for (const int64_t fixed : {4096, 2048, 1024}) {
          const Run other = Train(stages, jobs, sequences, fixed, 10, 1024, seed);
          REQUIRE(chosen.tokens == other.tokens);
          INFO(stages << " stages, " << jobs << " jobs of " << sequences << " sequences, " << fixed
                      << " tokens: " << other.simulation.makespan_ms << " ms, bubble "
                      << other.simulation.bubble_ratio
                      << "; chosen: " << chosen.windows[1].microbatches.size() << " microbatches, "
                      << chosen.simulation.makespan_ms << " ms, bubble "
                      << chosen.simulation.bubble_ratio);
          CHECK(chosen.simulation.makespan_ms < 1.03 * other.simulation.makespan_ms);
        }
      }
    }
  }
}

// A window for which two lengths cost alike takes that of the one before: each change leaves all
// stages idle for a moment.
TEST_CASE("Most windows have microbatches as long as those of the window before") {
  for (const int jobs : {2, 4, 5}) {
    const Run run = Train(2, jobs, 32, 8192, 20, 2048);
    int changes = 0;
    for (size_t w = 1; w < run.windows.size() - 1; ++w) {
      const int64_t before = Tokens(run.windows[w - 1].microbatches.back());
      const int64_t behind = Tokens(run.windows[w].microbatches.front());
      changes += std::abs(before - behind) > 2048 ? 1 : 0;
    }
    INFO(jobs << " jobs");
    CHECK(changes <= 3);
  }
}

TEST_CASE("Microbatches become long once there are jobs for that") {
  PlacesInFlight before;
  const auto plan = [&](int jobs) {
    const Turns turns = TakeTurns(Jobs(jobs, 14'600), {8192, 1}, before);
    const auto of_group = static_cast<int64_t>(turns.groups.back().size()) * 14'600;
    const int64_t count = (of_group + turns.capacity_tokens - 1) / turns.capacity_tokens;
    before = {{.number = 1, .tokens = of_group / count}};
    return turns.capacity_tokens;
  };
  CHECK(plan(1) == 2048);
  plan(4);
  plan(4);
  CHECK(plan(4) == 8192);
  CHECK(plan(4) == 8192);
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
