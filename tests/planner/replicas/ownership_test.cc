#include "planner/replicas/ownership.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/planner/fixtures.h"
#include "tests/planner/replicas/fixtures.h"

namespace lorad::planner {
namespace {

OwnershipProblem RandomOwnership(std::mt19937* random) {
  const DispatchProblem dispatch = RandomDispatch(random, false);
  OwnershipProblem problem{dispatch.groups, dispatch.lengths, {}};
  problem.groups.resize(std::min<size_t>(problem.groups.size(), 2));
  for (ReplicaGroup& group : problem.groups) group.replicas = static_cast<int>(UpTo(random, 2));
  const int64_t adapters = UpTo(random, 3);
  for (int64_t a = 0; a < adapters; ++a) {
    AdapterWork adapter{"a" + std::to_string(a), {}, Uniform(random, 0, 10)};
    for (size_t j = 0; j < problem.lengths.size(); ++j) {
      adapter.sequences.push_back(static_cast<int64_t>((*random)() % 3));
    }
    problem.adapters.push_back(adapter);
  }
  return problem;
}

// Tries every owner of every adapter, and every dispatch of what is shared.
double BestOwnership(const OwnershipProblem& problem) {
  std::vector<std::pair<int, int>> replicas;  // group, replica
  for (size_t g = 0; g < problem.groups.size(); ++g) {
    for (int r = 0; r < problem.groups[g].replicas; ++r)
      replicas.push_back({static_cast<int>(g), r});
  }
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> owner(problem.adapters.size(), -1);
  const std::function<void(size_t)> choose = [&](size_t a) {
    if (a < owner.size()) {
      for (owner[a] = -1; owner[a] < static_cast<int>(replicas.size()); ++owner[a]) choose(a + 1);
      return;
    }
    DispatchProblem dispatch{{}, problem.lengths, std::vector<int64_t>(problem.lengths.size(), 0)};
    std::vector<std::vector<int64_t>> fixed(replicas.size(), dispatch.sequences);
    std::vector<int> owns(replicas.size(), 0);
    double reduction_ms = 0;
    for (size_t b = 0; b < owner.size(); ++b) {
      for (size_t j = 0; j < problem.lengths.size(); ++j) {
        const int64_t count = problem.adapters[b].sequences[j];
        (owner[b] < 0 ? dispatch.sequences : fixed[owner[b]])[j] += count;
        if (owner[b] >= 0 && count > 0 &&
            problem.groups[replicas[owner[b]].first].layout.Fit(problem.lengths[j]) == 0) {
          return;
        }
      }
      if (owner[b] < 0 && replicas.size() > 1) reduction_ms += problem.adapters[b].reduction_ms;
      if (owner[b] >= 0) ++owns[owner[b]];
    }
    for (size_t g = 0; g < problem.groups.size(); ++g) {
      int others = 0;
      for (size_t r = 0; r < replicas.size(); ++r) {
        if (replicas[r].first != static_cast<int>(g)) continue;
        if (owns[r] > 0) {
          dispatch.groups.push_back({problem.groups[g].layout, 1, fixed[r]});
        } else {
          ++others;
        }
      }
      if (others > 0) dispatch.groups.push_back({problem.groups[g].layout, others, {}});
    }
    best = std::min(best, BestOfAll(dispatch) + reduction_ms);
  };
  choose(0);
  return best;
}

TEST_CASE("Owners are the best of all: 1,000 instances") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    int owning = 0, mixed = 0;
    for (int instance = 0; instance < 500; ++instance) {
      const OwnershipProblem problem = RandomOwnership(&random);
      const auto plan = PlanOwnership(problem);
      INFO(plan.status().ToString());
      REQUIRE(plan.ok());
      const double best = BestOwnership(problem);
      INFO(plan->ToText(problem));
      CHECK(plan->step_ms == Approx(best).epsilon(1e-9).margin(1e-9));
      CHECK(plan->bound_ms <= best * (1 + 1e-9));
      CHECK(plan->optimal);
      CHECK(plan->step_ms <= plan->all_shared_ms);
      CHECK(plan->step_ms == Approx(plan->dispatch.step_ms + plan->reduction_ms).margin(1e-9));
      CheckConsistent(plan->shared, plan->dispatch);
      int owners = 0;
      for (const Owner& owner : plan->owners) owners += owner.group >= 0;
      owning += owners > 0;
      mixed += owners > 0 && owners < static_cast<int>(plan->owners.size());
      const auto limited = PlanOwnership(problem, {.nodes = 1});
      CHECK(limited->step_ms >= best * (1 - 1e-9));
      CHECK(limited->bound_ms <= best * (1 + 1e-9));
    }
    CHECK(owning > 50);
    CHECK(mixed > 20);
  }
}

TEST_CASE("A slow network makes adapters owned, a fast one shared") {
  OwnershipProblem problem{.groups = {{{1, 1, 100, {0, 1, 0}}, 2, {}}},
                           .lengths = {100},
                           .adapters = {{"a", {6}, 0}, {"b", {2}, 0}}};
  CHECK(PlanOwnership(problem)->step_ms == Approx(400));
  problem.adapters[0].reduction_ms = problem.adapters[1].reduction_ms = 500;
  const auto plan = PlanOwnership(problem);
  CHECK(plan->step_ms == Approx(600));
  CHECK(plan->owners[0].group == 0);
  CHECK(plan->owners[1].group == 0);
  CHECK(plan->all_shared_ms == Approx(1400));
  // Sharing one evens the other out.
  problem.adapters[1].reduction_ms = 0;
  problem.adapters[0].sequences = {4};
  problem.adapters[1].sequences = {4};
  CHECK(PlanOwnership(problem)->step_ms == Approx(400));
}

TEST_CASE("More replicas and adapters than groups of a dispatch") {
  OwnershipProblem problem{
      .groups = {{{1, 1, 100, {0, 1, 0}}, 100, {}}}, .lengths = {100}, .adapters = {}};
  for (int a = 0; a < 90; ++a) {
    problem.adapters.push_back({"a" + std::to_string(a), {1 + a % 3}, 1});
  }
  const auto plan = PlanOwnership(problem, {.nodes = 500});
  REQUIRE(plan.ok());
  CheckConsistent(plan->shared, plan->dispatch);
  CHECK(plan->step_ms <= plan->all_shared_ms);
  CHECK(plan->bound_ms <= plan->step_ms);
}

TEST_CASE("Bad input is refused") {
  const OwnershipProblem good{
      .groups = {{{1, 1, 100, {0, 1, 0}}, 2, {}}}, .lengths = {100}, .adapters = {{"a", {6}, 0}}};
  REQUIRE(PlanOwnership(good).ok());
  const auto refused = [&](auto&& change) {
    OwnershipProblem bad = good;
    change(&bad);
    return !PlanOwnership(bad).ok();
  };
  CHECK(refused([](OwnershipProblem* p) { p->adapters.clear(); }));
  CHECK(refused([](OwnershipProblem* p) { p->adapters[0].sequences = {1, 2}; }));
  CHECK(refused([](OwnershipProblem* p) { p->adapters[0].sequences = {-1}; }));
  CHECK(refused([](OwnershipProblem* p) { p->adapters[0].reduction_ms = std::nan(""); }));
  CHECK(refused([](OwnershipProblem* p) { p->groups[0].fixed = {1}; }));
  CHECK(refused([](OwnershipProblem* p) { p->groups[0].replicas = 70000; }));
  CHECK(refused([](OwnershipProblem* p) { p->lengths = {101}; }));
}

}  // namespace
}  // namespace lorad::planner
