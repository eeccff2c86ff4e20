#include "planner/stages/moments.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "planner/pipeline/simulate.h"
#include "planner/window/order.h"

namespace lorad::planner {
namespace {

constexpr int kMicrobatches = 24;

// Three adapters in turn on `stages` stages, costs that differ, and an evaluation.
Window Mixed(int stages) {
  OrderInput input;
  input.stages = stages;
  for (int m = 0; m < kMicrobatches; ++m) {
    const std::string job = "job" + std::to_string(m % 3);
    const auto mode = m == 7 ? SegmentMode::kEvaluate : SegmentMode::kTrain;
    input.microbatches.push_back(
        {m, {{.job = job, .mode = mode, .step = 1, .sequence = m, .tokens = 10}}});
  }
  for (int a = 0; a < 3; ++a) input.ends.push_back({"job" + std::to_string(a), 1, 1, false});
  auto lists = OrderOperations(input);
  REQUIRE(lists.ok());
  return {input.microbatches, {}, *std::move(lists)};
}

SimulateOptions CostsOf(const Window& window, double transfer_ms) {
  SimulateOptions options;
  for (const Microbatch& microbatch : window.microbatches) {
    MicrobatchCost cost;
    cost.transfer_ms = transfer_ms;
    for (size_t s = 0; s < window.stages.size(); ++s) {
      const double forward_ms = 1 + 0.1 * static_cast<double>((microbatch.number * 7 + s) % 5);
      cost.forward_ms.push_back(forward_ms);
      cost.backward_ms.push_back(2 * forward_ms);
    }
    options.costs[microbatch.number] = cost;
  }
  options.from = 0;
  options.to = kMicrobatches - 1;
  return options;
}

// What stages that run these lists would report.
std::vector<StageMoments> MomentsOf(const Window& window, const Execution& execution) {
  std::vector<StageMoments> stages;
  for (size_t s = 0; s < window.stages.size(); ++s) {
    std::map<int64_t, MicrobatchMoments> by_number;
    for (size_t i = 0; i < window.stages[s].size(); ++i) {
      const Operation& operation = window.stages[s][i];
      if (operation.microbatch < 0) continue;
      MicrobatchMoments& moments = by_number[operation.microbatch];
      moments.number = operation.microbatch;
      const Span& span = execution[s][i];
      switch (operation.kind) {
        case OperationKind::kEvaluate:
          moments.evaluates = true;
          [[fallthrough]];
        case OperationKind::kForward:
          moments.forward = span;
          break;
        case OperationKind::kBackward:
          moments.backward = span;
          break;
        case OperationKind::kRecv:
          (operation.gradient ? moments.gradient : moments.activations) = span;
          break;
        default:
          break;
      }
    }
    StageMoments& stage = stages.emplace_back();
    for (const auto& [number, moments] : by_number) stage.push_back(moments);
  }
  return stages;
}

// A host that is late now and then: what begins in the k-th 20 ms begins 5 k ms later.
void DelayNowAndThen(StageMoments* stage) {
  for (MicrobatchMoments& moments : *stage) {
    for (Span* span :
         {&moments.forward, &moments.backward, &moments.activations, &moments.gradient}) {
      const double late_ms = 5 * std::floor(span->start_ms / 20);
      span->start_ms += late_ms;
      span->end_ms += late_ms;
    }
  }
}

TEST_CASE("Shares of what was measured are those of the simulation that it comes from") {
  for (const int stages : {1, 2, 4}) {
    INFO(stages);
    const Window window = Mixed(stages);
    const SimulateOptions options = CostsOf(window, stages > 1 ? 0.2 : 0);
    const auto simulation = Simulate(window, options);
    REQUIRE(simulation.ok());
    std::vector<StageMoments> moments = MomentsOf(window, simulation->execution);
    std::ranges::reverse(moments.front());  // in any order
    const Shares shares = SharesOf(moments);
    CHECK(shares.microbatches == kMicrobatches - 1);
    CHECK(shares.bubble_ratio == Approx(simulation->bubble_ratio));
    for (size_t s = 0; s < moments.size(); ++s) {
      const StageSimulation& stage = simulation->stages[s];
      CHECK(shares.stages[s].waiting == Approx(stage.idle_ms / stage.steady_ms).margin(1e-12));
      CHECK(shares.stages[s].busy + shares.stages[s].waiting == Approx(1));
      CHECK((shares.stages[s].transfer > 0) == (stages > 1));
    }
  }
}

TEST_CASE("Transfers that overlap count once") {
  std::vector<StageMoments> stages(2);
  for (int64_t m = 0; m < 2; ++m) {
    const double at = 10 * static_cast<double>(m);
    stages[0].push_back({.number = m, .forward = {at, at + 2}, .gradient = {at + 3, at + 6}});
    stages[1].push_back(
        {.number = m, .forward = {at + 1, at + 2}, .activations = {at + 2, at + 4}});
  }
  // [3, 6] to stage 0, [2, 4] from it: 4 of 10 ms.
  CHECK(SharesOf(stages).stages[0].transfer == Approx(0.4));
}

TEST_CASE("Run again, what was as early as it could be stays as it is") {
  for (const int stages : {1, 2, 4}) {
    INFO(stages);
    const Window window = Mixed(stages);
    const auto simulation = Simulate(window, CostsOf(window, stages > 1 ? 0.2 : 0));
    REQUIRE(simulation.ok());
    const std::vector<StageMoments> moments = MomentsOf(window, simulation->execution);
    const auto again = RunAgain(moments);
    REQUIRE(again.ok());
    for (size_t s = 0; s < moments.size(); ++s) {
      REQUIRE((*again)[s].size() == moments[s].size());
      for (size_t i = 0; i < moments[s].size(); ++i) {
        CHECK((*again)[s][i].number == moments[s][i].number);
        CHECK((*again)[s][i].evaluates == moments[s][i].evaluates);
        CHECK((*again)[s][i].forward.start_ms ==
              Approx(moments[s][i].forward.start_ms).margin(1e-9));
        CHECK((*again)[s][i].backward.end_ms == Approx(moments[s][i].backward.end_ms).margin(1e-9));
      }
    }
  }
}

TEST_CASE("Run again, waits for other than stages are gone") {
  const Window window = Mixed(4);
  const auto simulation = Simulate(window, CostsOf(window, 0.2));
  REQUIRE(simulation.ok());
  std::vector<StageMoments> moments = MomentsOf(window, simulation->execution);
  const double bubble_ratio = SharesOf(moments).bubble_ratio;
  for (StageMoments& stage : moments) DelayNowAndThen(&stage);
  CHECK(SharesOf(moments).bubble_ratio > bubble_ratio + 0.05);
  const auto again = RunAgain(moments);
  REQUIRE(again.ok());
  CHECK(SharesOf(*again).bubble_ratio == Approx(bubble_ratio));
}

TEST_CASE("What only some stages have is left out; of too little there are no shares") {
  const Window window = Mixed(2);
  const auto simulation = Simulate(window, CostsOf(window, 0.2));
  REQUIRE(simulation.ok());
  std::vector<StageMoments> moments = MomentsOf(window, simulation->execution);
  moments[1].pop_back();
  moments[0].erase(moments[0].begin());
  CHECK(SharesOf(moments).microbatches == kMicrobatches - 3);
  const auto again = RunAgain(moments);
  REQUIRE(again.ok());
  CHECK((*again)[0].size() == kMicrobatches - 2);
  moments[0].resize(2);
  CHECK(SharesOf(moments).microbatches == 1);
  moments[0].resize(1);
  CHECK(SharesOf(moments).microbatches == 0);
  CHECK(SharesOf(moments).stages.size() == 2);
  CHECK(SharesOf({}).microbatches == 0);
}

TEST_CASE("Moments that are no pipeline's cannot be run again") {
  // The second stage's order is the other way round from the first one's.
  std::vector<StageMoments> stages(2);
  for (int64_t m = 0; m < 4; ++m) {
    const double at = static_cast<double>(m);
    stages[0].push_back({.number = m, .evaluates = true, .forward = {at, at + 1}});
    stages[1].push_back({.number = m, .evaluates = true, .forward = {9 - at, 9.5 - at}});
  }
  CHECK(absl::IsInternal(RunAgain(stages).status()));
}

}  // namespace
}  // namespace lorad::planner
