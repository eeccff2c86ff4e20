#include "planner/pipeline/simulate.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "planner/window/order.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

// L adapters in turn, `batches` global batches each of N equal microbatches.
Window Adapters(int stages, int adapters, int microbatches, int batches, int in_flight = 0) {
  OrderInput input;
  input.stages = stages;
  input.in_flight = in_flight;
  for (int j = 1; j <= batches; ++j) {
    for (int a = 0; a < adapters; ++a) {
      const std::string job = "job" + std::to_string(a);
      for (int m = 0; m < microbatches; ++m) {
        input.microbatches.push_back({static_cast<int64_t>(input.microbatches.size()),
                                      {{.job = job, .step = j, .sequence = m, .tokens = 10}}});
      }
      input.ends.push_back({job, j, 1, false});
    }
  }
  auto stages_lists = OrderOperations(input);
  REQUIRE(stages_lists.ok());
  Window window{input.microbatches, {}, *std::move(stages_lists)};
  if (input.microbatches.size() < 200) REQUIRE(VerifyWindow(window).message() == "");
  return window;
}

SimulateOptions Equal(const Window& window, double forward_ms, double backward_ms) {
  SimulateOptions options;
  for (const Microbatch& microbatch : window.microbatches) {
    options.costs[microbatch.number] = {std::vector<double>(window.stages.size(), forward_ms),
                                        std::vector<double>(window.stages.size(), backward_ms), 0};
  }
  return options;
}

TEST_CASE("Two stages by hand") {
  const Window window = Adapters(2, 1, 2, 1);
  SimulateOptions options = Equal(window, 1, 2);
  options.step_ms = 0.5;
  const auto simulation = Simulate(window, options);
  REQUIRE(simulation.ok());
  CHECK(ToText(*simulation) ==
        "makespan 9.5 ms; bubble ratio 27.78 % in steady state, 31.58 % with filling and "
        "draining\n"
        "stage 0: busy 6.5 ms; idle 3 of 9.5 ms steady, 0 filling, 0 draining; at most 2 "
        "microbatches (20 tokens) in flight\n"
        "stage 1: busy 6.5 ms; idle 2 of 8.5 ms steady, 1 filling, 0 draining; at most 1 "
        "microbatches (10 tokens) in flight\n");
  CHECK(ToList(TimelineOf(window, simulation->execution, "x")) ==
        "stage 0 compute 0.000 1.000 F0\n"
        "stage 0 compute 1.000 2.000 F1\n"
        "stage 0 compute 4.000 6.000 B0\n"
        "stage 0 compute 7.000 9.000 B1\n"
        "stage 0 compute 9.000 9.500 S job0/1\n"
        "stage 1 compute 1.000 2.000 F0\n"
        "stage 1 compute 2.000 4.000 B0\n"
        "stage 1 compute 4.000 5.000 F1\n"
        "stage 1 compute 5.000 7.000 B1\n"
        "stage 1 compute 9.000 9.500 S job0/1\n");
}

// GPipe's bubble ratio (S - 1) / (N + S - 1), filling and draining in it: one adapter waits for its
// step after every global batch.
TEST_CASE("One adapter: (S-1)/(N+S-1) exactly") {
  for (int stages = 2; stages <= 16; ++stages) {
    for (int n = 1; n <= 8; ++n) {
      for (const double backward_ms : {1.0, 2.0}) {
        for (const int batches : {1, 20}) {
          const Window window = Adapters(stages, 1, n, batches);
          const auto simulation = Simulate(window, Equal(window, 1, backward_ms));
          REQUIRE(simulation.ok());
          INFO(stages << " stages, " << n << " microbatches, " << batches << " batches");
          CHECK(simulation->makespan_ms == batches * (n + stages - 1) * (1 + backward_ms));
          CHECK(simulation->idle_ratio ==
                Approx((stages - 1.0) / (n + stages - 1)).epsilon(0).margin(1e-12));
        }
      }
    }
  }
}

// mLoRA 3.2.2: unsplit max((S - L) / S, 0), split in N max((S - 1 + N - L N) / (S + N - 1), 0), in
// steady state over 20 global batches of each adapter.
TEST_CASE("L adapters: mLoRA's ratios within a point") {
  double worst = 0;
  for (int stages = 2; stages <= 16; ++stages) {
    for (int adapters = 1; adapters <= 8; ++adapters) {
      for (int n = 1; n <= 8; ++n) {
        const Window window = Adapters(stages, adapters, n, 22);
        for (const double backward_ms : {1.0, 2.0}) {
          if (backward_ms > 1 && stages > 6) continue;  // for time's sake
          SimulateOptions options = Equal(window, 1, backward_ms);
          options.from = 1 * adapters * n;
          options.to = 21 * adapters * n;
          const auto simulation = Simulate(window, options);
          REQUIRE(simulation.ok());
          const double expected =
              std::max(0.0, (stages - 1.0 + n - adapters * n) / (stages + n - 1.0));
          if (n == 1) {
            REQUIRE(expected ==
                    Approx(std::max(0.0, double(stages - adapters) / stages)).margin(1e-12));
          }
          INFO(stages << " stages, " << adapters << " adapters, " << n << " microbatches");
          const double error = std::abs(simulation->bubble_ratio - expected);
          worst = std::max(worst, error);
          REQUIRE(error <= 0.01);
        }
      }
    }
  }
  std::cout << "largest difference " << 100 * worst << " points\n";
}

TEST_CASE("Microbatches in flight keep to their bound, on every stage") {
  for (const auto& [in_flight, expected] : std::vector<std::pair<int, std::vector<int64_t>>>{
           {0, {4, 3, 2, 1}}, {1, {1, 1, 1, 1}}, {2, {2, 2, 2, 1}}, {6, {6, 5, 4, 3}}}) {
    const Window window = Adapters(4, 4, 8, 3, in_flight);
    const auto simulation = Simulate(window, Equal(window, 1, 1));
    REQUIRE(simulation.ok());
    for (size_t s = 0; s < 4; ++s) {
      CHECK(simulation->stages[s].in_flight == expected[s]);
      CHECK(simulation->stages[s].in_flight_tokens == 10 * expected[s]);
    }
  }
}

TEST_CASE("No stage is busy for two at once, and nothing is lost") {
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 200; ++i) {
      const int stages = 1 + static_cast<int>(random() % 5);
      const Window window =
          Adapters(stages, 1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 4),
                   1 + static_cast<int>(random() % 3));
      SimulateOptions options = Equal(window, 0, 0);
      double work = 0;
      for (auto& [number, cost] : options.costs) {
        for (double& ms : cost.forward_ms) work += ms = static_cast<double>(random() % 50);
        for (double& ms : cost.backward_ms) work += ms = static_cast<double>(random() % 50);
        cost.transfer_ms = static_cast<double>(random() % 10);
      }
      options.buffers = {1 + static_cast<int>(random() % 2), 1 + static_cast<int>(random() % 2)};
      const auto simulation = Simulate(window, options);
      REQUIRE(simulation.ok());
      double busy = 0;
      for (const StageSimulation& stage : simulation->stages) {
        busy += stage.busy_ms;
        REQUIRE(stage.busy_ms + stage.filling_ms + stage.idle_ms + stage.draining_ms ==
                Approx(simulation->makespan_ms));
      }
      REQUIRE(busy == Approx(work).margin(1e-9));
      Timeline timeline = TimelineOf(window, simulation->execution, "");
      std::sort(timeline.bars.begin(), timeline.bars.end(), [](const Bar& a, const Bar& b) {
        return std::pair(a.track, a.start_ms) < std::pair(b.track, b.start_ms);
      });
      for (size_t k = 1; k < timeline.bars.size(); ++k) {
        if (timeline.bars[k].track != timeline.bars[k - 1].track) continue;
        REQUIRE(timeline.bars[k].start_ms >= timeline.bars[k - 1].end_ms);
      }
    }
  }
}

TEST_CASE("What cannot be simulated") {
  const Window window = Adapters(2, 1, 2, 1);
  const auto error = [&](const SimulateOptions& options) {
    return std::string(Simulate(window, options).status().message());
  };
  SimulateOptions options = Equal(window, 1, 1);
  options.costs.erase(1);
  CHECK(error(options) == "microbatch 1 has no time for each stage");
  options = Equal(window, 1, 1);
  options.costs[1].backward_ms.pop_back();
  CHECK(error(options) == "microbatch 1 has no time for each stage");
  options = Equal(window, 1, -1);
  CHECK(error(options) == "microbatch 0 has a time that is none");
  options = Equal(window, 1, 1);
  options.step_ms = std::nan("");
  CHECK(error(options) == "a step's time is not a time");
  options = Equal(window, 1, 1);
  options.from = 7;
  CHECK(error(options) == "no steady part from microbatch 7 to -1");
  options = Equal(window, 1, 1);
  options.from = 1;
  options.to = 0;
  CHECK(error(options) == "no steady part from microbatch 1 to 0");
}

}  // namespace
}  // namespace lorad::planner
