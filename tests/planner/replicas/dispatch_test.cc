#include "planner/replicas/dispatch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "planner/replicas/balance.h"
#include "tests/planner/fixtures.h"
#include "tests/planner/replicas/fixtures.h"

namespace lorad::planner {
namespace {

TEST_CASE("Time of a replica") {
  const Layout one{1, 1, 100, {10, 1, 0.01}};
  const Layout two{1, 2, 100, {10, 1, 0.01}};
  struct Case {
    Layout layout;
    std::vector<int64_t> lengths, counts;
    double ms;
  };
  const Case cases[] = {
      {one, {10}, {0}, 0},
      {one, {10}, {1}, 10 + 11},
      {one, {10}, {10}, 10 + 110},             // one microbatch
      {one, {10}, {11}, 20 + 121},             // and a rest
      {one, {10, 50}, {1, 3}, 21 + 20 + 225},  // 50 + 25 each, two a microbatch
      {two, {10}, {11}, 20 + 121 + 120},
      {two, {10, 50}, {1, 3}, 21 + 245 + 160},
  };
  for (const Case& c : cases) CHECK(ReplicaMs(c.layout, c.lengths, c.counts) == Approx(c.ms));
  CHECK(one.Name() == "TP1 PP1");
  CHECK(TokensPerGpuSecond(two, 200, 8) == 0);
  CHECK(TokensPerGpuSecond(one, 10, 1) == Approx(1000 * 100 / 120.));
  CHECK(TokensPerGpuSecond(two, 10, 4) == Approx(1000 * 400 / (5 * 120.) / 2));
}

TEST_CASE("The linear program, by hand") {
  // Group 0 holds only the first bucket: 12 sequences at 1 on two replicas; group 1 at 2 and 5.
  const double inf = std::numeric_limits<double>::infinity();
  const Balance balance = BalanceLoads(
      {.base_ms = {0, 0}, .replicas = {2, 1}, .cost_ms = {{1, inf}, {2, 5}}, .sequences = {12, 1}});
  // x on group 0: x / 2 = 2 (12 - x) + 5.
  CHECK(balance.ms == Approx(5.8));
  CHECK(balance.bound_ms == Approx(5.8));
  CHECK(balance.sequences[0][0] == Approx(11.6));
  CHECK(balance.sequences[1][0] == Approx(0.4));
  const Balance idle = BalanceLoads(
      {.base_ms = {3, 7}, .replicas = {1, 1}, .cost_ms = {{1}, {1}}, .sequences = {2}});
  CHECK(idle.ms == Approx(7));
  CHECK(idle.bound_ms == Approx(7));
  CHECK(std::isinf(
      BalanceLoads({.base_ms = {0}, .replicas = {1}, .cost_ms = {{inf}}, .sequences = {1}}).ms));
}

TEST_CASE("The linear program's bound meets its solution: 4,000 instances") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    std::uniform_real_distribution<> unit(0.1, 1);
    for (int instance = 0; instance < 2000; ++instance) {
      const size_t groups = 1 + random() % 6, buckets = 1 + random() % 12;
      BalanceProblem problem;
      for (size_t j = 0; j < buckets; ++j) {
        problem.sequences.push_back(static_cast<double>(random() % 50));
      }
      for (size_t i = 0; i < groups; ++i) {
        problem.base_ms.push_back(random() % 2 ? 5 * unit(random) : 0);
        problem.replicas.push_back(static_cast<double>(1 + random() % 9));
        problem.cost_ms.emplace_back();
        const size_t holds = i == 0 ? buckets : 1 + random() % buckets;
        for (size_t j = 0; j < buckets; ++j) {
          problem.cost_ms.back().push_back(j < holds ? unit(random) * static_cast<double>(j + 1)
                                                     : std::numeric_limits<double>::infinity());
        }
      }
      const Balance balance = BalanceLoads(problem);
      CHECK(balance.bound_ms == Approx(balance.ms).epsilon(1e-9));
      for (size_t j = 0; j < buckets; ++j) {
        double covered = 0;
        for (size_t i = 0; i < groups; ++i) covered += balance.sequences[i][j];
        CHECK(covered == Approx(problem.sequences[j]).margin(1e-9));
      }
      for (size_t i = 0; i < groups; ++i) {
        double ms = problem.base_ms[i];
        for (size_t j = 0; j < buckets; ++j) {
          if (balance.sequences[i][j] > 0) {
            ms += problem.cost_ms[i][j] * balance.sequences[i][j] / problem.replicas[i];
          }
        }
        CHECK(ms <= balance.ms * (1 + 1e-9) + 1e-9);
      }
    }
  }
}

TEST_CASE("Dispatch is the best of all: 4,000 instances") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    int64_t rounded = 0;
    for (int instance = 0; instance < 2000; ++instance) {
      const DispatchProblem problem = RandomDispatch(&random, instance % 3 == 0);
      const auto plan = Dispatch(problem);
      REQUIRE(plan.ok());
      const double best = BestOfAll(problem);
      INFO(plan->ToText(problem));
      CHECK(plan->step_ms == Approx(best).epsilon(1e-9).margin(1e-9));
      CHECK(plan->bound_ms <= best * (1 + 1e-9));
      CHECK(plan->optimal);
      CheckConsistent(problem, *plan);
      rounded += plan->nodes == 0;
      const auto near = Dispatch(problem, {.gap = 0.2});
      CHECK(near->step_ms <= best / 0.8 * (1 + 1e-9));
      CHECK(near->bound_ms <= best * (1 + 1e-9));
      // Below the optimum there is nothing to be found; above it the optimum is.
      const auto none = Dispatch(problem, {.cutoff_ms = best * 0.99});
      CHECK(none->bound_ms >= std::min(best * 0.98, none->step_ms));
    }
    CHECK(rounded > 100);  // proved at once
  }
}

TEST_CASE("The baselines dispatch everything, and never better") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int instance = 0; instance < 500; ++instance) {
      const DispatchProblem problem = RandomDispatch(&random, false);
      const double best = Dispatch(problem)->step_ms;
      for (const auto& plan : {DispatchUniformly(problem), DispatchByLength(problem)}) {
        REQUIRE(plan.ok());
        CheckConsistent(problem, *plan);
        CHECK(plan->step_ms >= best * (1 - 1e-9));
      }
    }
  }
}

TEST_CASE("LobRA's figure 4: 16 GPUs, 4 buckets") {
  // 6 + 1 + 1 replicas; three lengths of four fit one only.
  const DispatchProblem problem{.groups = {{{1, 1, 2048, {0, 1, 0}}, 4, {}},
                                           {{2, 1, 4096, {0, 0.6, 0}}, 2, {}},
                                           {{8, 1, 16384, {0, 0.2, 0}}, 1, {}}},
                                .lengths = {2048, 4096, 8192, 16384},
                                .sequences = {196, 62, 16, 4}};
  const auto plan = Dispatch(problem, {.gap = 0.001});
  REQUIRE(plan.ok());
  CHECK(plan->optimal);
  CHECK(plan->sequences[0][1] + plan->sequences[0][2] + plan->sequences[0][3] == 0);
  CHECK(plan->sequences[2][2] == 16);
  CHECK(plan->sequences[2][3] == 4);
  CHECK(plan->step_ms < DispatchByLength(problem)->step_ms);
  CHECK(plan->ToText(problem).find("TP8 PP1 x 1") != std::string::npos);
}

TEST_CASE("As large as it gets: it ends") {
  std::mt19937 random(3);
  DispatchProblem problem;
  for (size_t j = 0; j < kBucketsMax; ++j) {
    problem.lengths.push_back(static_cast<int64_t>(j) + 1);
    problem.sequences.push_back(UpTo(&random, 1000));
  }
  for (size_t i = 0; i < kGroupsMax; ++i) {
    Layout layout = RandomLayout(&random);
    layout.capacity_tokens = static_cast<int64_t>(kBucketsMax) * UpTo(&random, 4);
    problem.groups.push_back({layout, static_cast<int>(UpTo(&random, 9)), {}});
  }
  const auto plan = Dispatch(problem);
  REQUIRE(plan.ok());
  CheckConsistent(problem, *plan);
  CHECK(plan->bound_ms <= plan->step_ms);
}

TEST_CASE("Limits and cancelling leave a plan with a true bound") {
  std::mt19937 random(7);
  for (int instance = 0; instance < 50; ++instance) {
    const DispatchProblem problem = RandomDispatch(&random, false);
    const double best = Dispatch(problem)->step_ms;
    for (const DispatchOptions& options :
         {DispatchOptions{.nodes = 1},
          DispatchOptions{.nodes = 1'000'000, .cancelled = [] { return true; }}}) {
      const auto plan = Dispatch(problem, options);
      CheckConsistent(problem, *plan);
      CHECK(plan->step_ms >= best * (1 - 1e-9));
      CHECK(plan->bound_ms <= best * (1 + 1e-9));
    }
  }
}

TEST_CASE("Bad input is refused") {
  const DispatchProblem good{
      .groups = {{{1, 1, 100, {1, 1, 0}}, 1, {}}}, .lengths = {10, 100}, .sequences = {1, 1}};
  CHECK(Dispatch(good).ok());
  const auto refused = [&](auto&& change) {
    DispatchProblem bad = good;
    change(&bad);
    return !Dispatch(bad).ok();
  };
  const double nan = std::nan("");
  CHECK(refused([](DispatchProblem* p) { p->groups.clear(); }));
  CHECK(refused([](DispatchProblem* p) { p->groups.assign(kGroupsMax + 1, p->groups[0]); }));
  CHECK(refused([](DispatchProblem* p) { p->lengths = {10}; }));
  CHECK(refused([](DispatchProblem* p) { p->lengths = {10, 10}; }));
  CHECK(refused([](DispatchProblem* p) { p->lengths = {0, 10}; }));
  CHECK(refused([](DispatchProblem* p) { p->lengths = {10, 101}; }));  // fits nowhere
  CHECK(refused([](DispatchProblem* p) { p->sequences = {1, -1}; }));
  CHECK(refused([](DispatchProblem* p) { p->sequences = {1, int64_t{1} << 60}; }));
  CHECK(refused([](DispatchProblem* p) { p->groups[0].replicas = 0; }));
  CHECK(refused([](DispatchProblem* p) { p->groups[0].layout.pipeline_stages = 0; }));
  CHECK(refused([&](DispatchProblem* p) { p->groups[0].layout.stage_ms.token_ms = nan; }));
  CHECK(refused([](DispatchProblem* p) { p->groups[0].layout.stage_ms.constant_ms = -1; }));
  CHECK(refused([](DispatchProblem* p) { p->groups[0].layout.stage_ms = {1, 0, 0}; }));
  CHECK(refused([](DispatchProblem* p) { p->groups[0].fixed = {1}; }));
  CHECK(refused([](DispatchProblem* p) { p->groups[0].fixed = {1, -1}; }));
  CHECK_FALSE(refused([](DispatchProblem* p) { p->sequences = {0, 0}; }));
}

}  // namespace
}  // namespace lorad::planner
