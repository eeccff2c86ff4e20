#include "planner/replicas/deploy.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/planner/fixtures.h"
#include "tests/planner/replicas/fixtures.h"

namespace lorad::planner {
namespace {

DeployProblem RandomDeploy(std::mt19937* random) {
  DeployProblem problem;
  const DispatchProblem dispatch = RandomDispatch(random, false);
  for (const ReplicaGroup& group : dispatch.groups) problem.candidates.push_back(group.layout);
  problem.lengths = dispatch.lengths;
  for (int64_t count : dispatch.sequences) {
    problem.sequences.push_back(static_cast<double>(count) * Uniform(random, 0.5, 1));
  }
  problem.gpus = problem.candidates[0].gpus() + UpTo(random, 6) - 1;
  return problem;
}

double BestDeployment(const DeployProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int64_t> replicas(problem.candidates.size(), 0);
  const std::function<void(size_t, int64_t)> choose = [&](size_t i, int64_t left) {
    if (i < replicas.size()) {
      const int64_t gpus = problem.candidates[i].gpus();
      for (replicas[i] = 0; replicas[i] * gpus <= left; ++replicas[i]) {
        choose(i + 1, left - replicas[i] * gpus);
      }
      replicas[i] = 0;
      return;
    }
    const DispatchProblem dispatch = DispatchOf(problem, replicas);
    if (CheckDispatch(dispatch).ok()) best = std::min(best, BestOfAll(dispatch));
  };
  choose(0, problem.gpus);
  return best;
}

TEST_CASE("Deployment is the best of all: 2,000 instances") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int instance = 0; instance < 1000; ++instance) {
      const DeployProblem problem = RandomDeploy(&random);
      const auto plan = Deploy(problem, {.gap = 0});
      INFO(plan.status().ToString());
      REQUIRE(plan.ok());
      const double best = BestDeployment(problem);
      INFO(plan->ToText(problem));
      CHECK(plan->step_ms == Approx(best).epsilon(1e-9).margin(1e-9));
      CHECK(plan->bound_ms <= best * (1 + 1e-9));
      CHECK(plan->optimal);
      CHECK(plan->spread_ms <= plan->step_ms * (1 + 1e-9));
      CHECK(plan->spread_ms >= plan->linear_bound_ms * (1 - 1e-9));
      int64_t gpus = 0;
      for (size_t i = 0; i < plan->replicas.size(); ++i) {
        gpus += plan->replicas[i] * problem.candidates[i].gpus();
      }
      CHECK(gpus <= problem.gpus);
      CheckConsistent(DispatchOf(problem, plan->replicas), plan->dispatch);
      const auto near = Deploy(problem, {.gap = 0.1});
      CHECK(near->step_ms <= best / 0.9 * (1 + 1e-9));
      CHECK(near->bound_ms <= best * (1 + 1e-9));
      const auto limited = Deploy(problem, {.gap = 0, .dispatch_nodes = 1, .plans = 3});
      CHECK(limited->bound_ms <= best * (1 + 1e-9));
      CHECK(limited->step_ms >= best * (1 - 1e-9));
    }
  }
}

TEST_CASE("Bad input is refused, what cannot be held too") {
  const DeployProblem good{
      .candidates = {{2, 1, 100, {1, 1, 0}}}, .gpus = 4, .lengths = {10}, .sequences = {3.5}};
  REQUIRE(Deploy(good).ok());
  CHECK(Deploy(good)->replicas == std::vector<int64_t>{2});
  const auto refused = [&](auto&& change) {
    DeployProblem bad = good;
    change(&bad);
    return !Deploy(bad).ok();
  };
  CHECK(refused([](DeployProblem* p) { p->candidates.clear(); }));
  CHECK(refused([](DeployProblem* p) { p->candidates.assign(17, p->candidates[0]); }));
  CHECK(refused([](DeployProblem* p) { p->gpus = 0; }));
  CHECK(refused([](DeployProblem* p) { p->gpus = 1; }));
  CHECK(refused([](DeployProblem* p) { p->gpus = int64_t{1} << 40; }));
  CHECK(refused([](DeployProblem* p) { p->lengths = {101}; }));
  CHECK(refused([](DeployProblem* p) { p->sequences = {-1}; }));
  CHECK(refused([](DeployProblem* p) { p->sequences = {std::nan("")}; }));
  CHECK(refused([](DeployProblem* p) { p->sequences = {1, 1}; }));
}

}  // namespace
}  // namespace lorad::planner
