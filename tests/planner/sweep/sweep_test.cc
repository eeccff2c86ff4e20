#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>

#include "planner/solve/integer_program.h"
#include "planner/sweep/bound.h"
#include "planner/sweep/plan.h"
#include "tests/planner/fixtures.h"
#include "tests/planner/sweep/fixtures.h"

namespace lorad::planner {
namespace {

// Values that a hand can follow: a GPU holds 10 bytes beside the base model's 2, a rank takes 1.
SweepCosts Small() {
  SweepCosts costs;
  costs.base_bytes = 2;
  costs.rank_bytes = 1;
  costs.gpu_bytes = 12;
  costs.iteration_s = 1;
  costs.sample_s = 0.1;
  costs.degrees = {{1, 1, 1}, {2, 1, 0.5}};
  return costs;
}

SweepProblem Problem(const SweepCosts& costs, const std::vector<SweepConfiguration>& list,
                     int gpus) {
  auto problem = SweepProblem::Create(costs, list, gpus);
  INFO(problem.status());
  REQUIRE(problem.ok());
  return *std::move(problem);
}

struct Instance {
  SweepCosts costs;
  std::vector<SweepConfiguration> list;
  int gpus = 1;
};

Instance RandomInstance(std::mt19937& random, size_t configurations_max, int gpus_max) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
  };
  Instance instance;
  instance.gpus = pick(1, gpus_max);
  SweepCosts& costs = instance.costs;
  costs.base_bytes = pick(0, 20);
  costs.rank_bytes = pick(0, 3);
  costs.sample_bytes = pick(0, 5);
  costs.gpu_bytes = costs.base_bytes + pick(38, 90);  // one configuration always fits
  costs.iteration_s = pick(1, 20) / 10.0;
  costs.adapter_s = pick(0, 5) / 50.0;
  costs.rank_s = pick(0, 5) / 100.0;
  costs.sample_s = pick(0, 10) / 50.0;
  double fixed = 1, work = 1;
  for (int gpus = 1; gpus <= 8; gpus *= 2) {
    costs.degrees.push_back({gpus, fixed, work});
    fixed *= pick(5, 11) / 10.0;
    work *= pick(5, 11) / 10.0;
  }
  const size_t count = 1 + random() % configurations_max;
  for (size_t i = 0; i < count; ++i) {
    instance.list.push_back({"c" + std::to_string(i), pick(1, 6), pick(1, 4), pick(1, 5)});
  }
  return instance;
}

// Calls `visit` with every vector 0..limit, component by component.
void EveryCounts(const SweepCounts& limit, const std::function<void(const SweepCounts&)>& visit) {
  SweepCounts counts(limit.size(), 0);
  for (;;) {
    visit(counts);
    size_t k = 0;
    while (k < counts.size() && counts[k] == limit[k]) counts[k++] = 0;
    if (k == counts.size()) return;
    ++counts[k];
  }
}

TEST_CASE("Costs: kinds, capacity and seconds by hand") {
  const SweepProblem problem =
      Problem(Small(), {{"a", 4, 1, 3}, {"b", 4, 1, 3}, {"c", 6, 2, 5}}, 2);
  REQUIRE(problem.kinds().size() == 2);
  CHECK(problem.kinds()[0].steps == 5);
  CHECK(problem.kinds()[0].configurations == std::vector<int>{2});
  CHECK(problem.kinds()[1].configurations == std::vector<int>{0, 1});
  CHECK(problem.degrees()[0].capacity_bytes == 10);
  CHECK(problem.degrees()[1].capacity_bytes == 22);
  // c and one of a: 5 iterations, 5 * 0.2 + 3 * 0.1.
  const SweepSet set = MeasureSweepSet(problem, problem.degrees()[0], {1, 1});
  CHECK(set.seconds == Approx(6.3));
  CHECK(set.bytes == 10);
  CHECK(set.ratio == Approx(10 / 6.3));
  // Everything on both GPUs: 5 + (1 + 0.6) / 2.
  CHECK(MeasureSweepSet(problem, problem.degrees()[1], {1, 2}).seconds == Approx(5.8));
  // One each: c 6, then a and b 3.3 each behind one another on the other GPU.
  CHECK(problem.OneEachSeconds() == Approx(6.6));
  // c alone takes 5.5 on two GPUs; the GPU seconds of all are fewer.
  CHECK(problem.LowerBoundSeconds() == Approx(5.5));
}

TEST_CASE("What is wrong is named") {
  const std::vector<SweepConfiguration> one = {{"a", 4, 1, 3}};
  const auto message = [](const SweepCosts& costs, const std::vector<SweepConfiguration>& list,
                          int gpus) {
    return std::string(SweepProblem::Create(costs, list, gpus).status().message());
  };
  const auto with = [](const std::function<void(SweepCosts&)>& change) {
    SweepCosts costs = Small();
    change(costs);
    return costs;
  };
  CHECK(message(Small(), one, 0) == "GPUs must be 1..1024");
  CHECK(message(Small(), {}, 1) == "no configuration");
  CHECK(message(Small(), {{"a", 0, 1, 3}}, 1) ==
        "configuration a: rank, batch and steps must be > 0");
  CHECK(message(Small(), {{"a", 1, 1, int64_t{1} << 62}}, 1) ==
        "configuration a: its numbers are too large");
  CHECK(message(Small(), {{"a", 23, 1, 1}}, 2) ==
        "configuration a fits no degree: it needs 23 bytes beside the base model, 2 GPUs offer 22");
  CHECK(message(with([](SweepCosts& c) { c.gpu_bytes = 1; }), one, 1) ==
        "configuration a fits no degree: it needs 4 bytes beside the base model, 1 GPUs offer -1");
  CHECK(message(with([](SweepCosts& c) { c.iteration_s = std::nan(""); }), one, 1) ==
        "an iteration must take more than 0 seconds");
  CHECK(message(with([](SweepCosts& c) { c.sample_s = -1; }), one, 1) ==
        "seconds must be finite and not negative");
  CHECK(message(with([](SweepCosts& c) {
                  c.degrees = {{3, 1, 1}};
                }),
                one, 4) == "degrees of parallelism must be rising powers of two");
  CHECK(message(with([](SweepCosts& c) {
                  c.degrees = {{2, 1, 1}};
                }),
                one, 1) == "no degree of parallelism of at most 1 GPUs");
  CHECK(message(with([](SweepCosts& c) { c.load_factor = 0; }), one, 1) ==
        "the load factor must be in (0, 1]");
}

TEST_CASE("Bounds by hand") {
  SweepCosts costs = Small();
  costs.degrees = {{1, 1, 1}};
  // Two of three fit at a time, so one GPU makes two rounds of 3 iterations; work 3 * 0.3.
  const SweepProblem rounds = Problem(costs, {{"a", 5, 1, 3}, {"b", 5, 1, 3}, {"c", 5, 1, 3}}, 1);
  CHECK(rounds.LowerBoundSeconds() == Approx(5.4));
  CHECK(SweepBoundSeconds(rounds) == Approx(6.9));
  CHECK(PlanSweep(rounds).makespan_s == Approx(6.9));
  // A long one takes 11 s alone, and one more for each of 12 short ones beside it. With x of them
  // there, the other GPU makes (12 - x) / 10 iterations: 2 (11 + x) = 11 + 12 + (12 - x) / 10.
  std::vector<SweepConfiguration> list = {{"long", 1, 1, 10}};
  for (int i = 0; i < 12; ++i) list.push_back({"short" + std::to_string(i), 1, 10, 1});
  const SweepProblem shared = Problem(costs, list, 2);
  CHECK(shared.LowerBoundSeconds() == Approx(11));
  CHECK(SweepBoundSeconds(shared) == Approx(11 + 2.2 / 2.1).epsilon(1e-5));
}

TEST_CASE("F is what brute force finds") {
  int sets = 0, iterations_max = 0;
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    for (int i = 0; i < 2000; ++i) {
      const Instance instance = RandomInstance(random, 9, 8);
      const SweepProblem problem = Problem(instance.costs, instance.list, instance.gpus);
      SweepCounts left = problem.All();
      for (int32_t& count : left) count -= static_cast<int32_t>(random() % 3 == 0);
      for (const SweepProblem::Degree& degree : problem.degrees()) {
        double best = 0;
        EveryCounts(left, [&](const SweepCounts& counts) {
          if (std::count(counts.begin(), counts.end(), 0) == std::ssize(counts)) return;
          const SweepSet set = MeasureSweepSet(problem, degree, counts);
          if (set.bytes <= degree.capacity_bytes) best = std::max(best, set.ratio);
        });
        const SweepSet set = BestSweepSet(problem, degree, left);
        INFO("seed " << seed << " instance " << i << " GPUs " << degree.gpus);
        REQUIRE(set.exact);
        REQUIRE(set.ratio == Approx(best).epsilon(1e-10));
        if (set.empty()) continue;
        REQUIRE(set.bytes <= degree.capacity_bytes);
        for (size_t k = 0; k < left.size(); ++k) REQUIRE(set.counts[k] <= left[k]);
        ++sets;
        iterations_max = std::max(iterations_max, set.iterations);
      }
    }
  }
  std::cout << sets << " sets, at most " << iterations_max << " programs each\n";
}

// P(q) of Dinkelbach's iteration, as one integer program a length.
double ProgramValue(const SweepProblem& problem, const SweepProblem::Degree& degree, double q) {
  double best = 0;
  for (const SweepProblem::Kind& longest : problem.kinds()) {
    IntegerProgram program;
    std::vector<IntegerProgram::Term> bytes;
    for (size_t k = 0; k < problem.kinds().size(); ++k) {
      const SweepProblem::Kind& kind = problem.kinds()[k];
      if (kind.steps > longest.steps) continue;
      const int x =
          program.AddVariable({.upper = static_cast<double>(kind.configurations.size()),
                               .cost = q * degree.work_s[k] - static_cast<double>(kind.rank)});
      bytes.push_back({x, static_cast<double>(kind.bytes) * 1e-9});
    }
    program.AddRow(-IntegerProgram::kInfinity, static_cast<double>(degree.capacity_bytes) * 1e-9,
                   bytes);
    const auto solution = Minimize(program, {});
    REQUIRE(solution.ok());
    REQUIRE(solution->status == IntegerSolution::Status::kOptimal);
    const double fixed = q * degree.fixed_s * static_cast<double>(longest.steps);
    best = std::max(best, -solution->objective - fixed);
  }
  return best;
}

TEST_CASE("On the grid of table 1, HiGHS finds no set with a higher F") {
  const SweepProblem problem =
      Problem(PloraCosts(8), PloraGrid({1, 2, 4, 8, 16, 32}, /*same_samples=*/true), 8);
  for (const SweepProblem::Degree& degree : problem.degrees()) {
    const SweepSet set = BestSweepSet(problem, degree, problem.All());
    REQUIRE(set.exact);
    CHECK(ProgramValue(problem, degree, set.ratio) <= 1e-6 * static_cast<double>(set.ranks));
    CHECK(ProgramValue(problem, degree, set.ratio * 0.999) > 0);
  }
}

// Algorithm 1 as it is written.
void PlainDtm(const SweepProblem& problem, int g, SweepPolicy policy, const SweepCounts& left,
              std::vector<SweepPolicy>* policies) {
  bool any = false;
  for (auto degree = problem.degrees().rbegin(); degree != problem.degrees().rend(); ++degree) {
    if (degree->gpus > g) continue;
    const SweepSet set = BestSweepSet(problem, *degree, left);
    if (set.empty()) continue;
    any = true;
    SweepPolicy with = policy;
    with.makespan_s = std::max(with.makespan_s, set.seconds);
    with.throughput += set.ratio;
    SweepCounts rest = left;
    for (size_t k = 0; k < rest.size(); ++k) rest[k] -= set.counts[k];
    PlainDtm(problem, g - degree->gpus, with, rest, policies);
  }
  if (!any) policies->push_back(policy);
}

TEST_CASE("DTM is the best of all its policies") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    for (int i = 0; i < 300; ++i) {
      const Instance instance = RandomInstance(random, 7, 5);
      const SweepProblem problem = Problem(instance.costs, instance.list, instance.gpus);
      std::vector<SweepPolicy> policies;
      PlainDtm(problem, instance.gpus, {}, problem.All(), &policies);
      double makespan = 1e300, throughput = 0;
      for (const SweepPolicy& policy : policies) {
        makespan = std::min(makespan, policy.makespan_s);
        throughput = std::max(throughput, policy.throughput);
      }
      INFO("seed " << seed << " instance " << i);
      const auto all = problem.All();
      const SweepPolicy least = Dtm(problem, instance.gpus, all, SweepRule::kLeastMakespan);
      const SweepPolicy most = Dtm(problem, instance.gpus, all, SweepRule::kMostThroughput);
      REQUIRE(least.exact);
      REQUIRE(least.makespan_s == Approx(makespan));
      REQUIRE(most.throughput == Approx(throughput));
    }
  }
}

// The least makespan of sets that start and end as a whole, in nested groups of GPUs: `work` are
// the seconds of the sets that each group has so far, the outer ones before the inner ones.
struct Group {
  const SweepProblem::Degree* degree;
  int first;
  double work = 0;
};

double BestMakespan(const SweepProblem& problem, const SweepCounts& left,
                    std::vector<Group>* groups) {
  const auto first = std::find_if(left.begin(), left.end(), [](int32_t n) { return n > 0; });
  if (first == left.end()) {
    double makespan = 0;
    for (int gpu = 0; gpu < problem.gpus(); ++gpu) {
      double end = 0;
      for (const Group& group : *groups) {
        if (group.first <= gpu && gpu < group.first + group.degree->gpus) end += group.work;
      }
      makespan = std::max(makespan, end);
    }
    return makespan;
  }
  const size_t kind = static_cast<size_t>(first - left.begin());
  double best = 1e300;
  EveryCounts(left, [&](const SweepCounts& counts) {
    if (counts[kind] == 0) return;  // every set holds the first configuration that is left
    SweepCounts rest = left;
    for (size_t k = 0; k < rest.size(); ++k) rest[k] -= counts[k];
    for (Group& group : *groups) {
      const SweepSet set = MeasureSweepSet(problem, *group.degree, counts);
      if (set.bytes > group.degree->capacity_bytes) continue;
      group.work += set.seconds;
      best = std::min(best, BestMakespan(problem, rest, groups));
      group.work -= set.seconds;
    }
  });
  return best;
}

double BestMakespan(const SweepProblem& problem) {
  std::vector<Group> groups;
  for (const SweepProblem::Degree& degree : problem.degrees()) {
    for (int first = 0; first + degree.gpus <= problem.gpus(); first += degree.gpus) {
      groups.push_back({&degree, first});
    }
  }
  return BestMakespan(problem, problem.All(), &groups);
}

TEST_CASE("Plans hold, and lie between the bounds, the optimum and twice the optimum") {
  struct Case {
    int instances;
    size_t configurations_max;
    int gpus_max;
  };
  for (const Case& c : {Case{1000, 5, 2}, Case{300, 4, 4}}) {
    int instances = 0, optimal = 0;
    double sum = 0, worst = 1;
    for (uint32_t seed : Seeds()) {
      std::mt19937 random(seed);
      for (int i = 0; i < c.instances; ++i) {
        const Instance instance = RandomInstance(random, c.configurations_max, c.gpus_max);
        const SweepProblem problem = Problem(instance.costs, instance.list, instance.gpus);
        const double best = BestMakespan(problem);
        INFO("seed " << seed << " instance " << i);
        REQUIRE(problem.LowerBoundSeconds() <= best * (1 + 1e-9));
        const SweepPlan sets = PlanSweep(problem, {.replace = false});
        const SweepPlan replacing = PlanSweep(problem);
        if (i % 4 == 0) {
          const double bound = SweepBoundSeconds(problem);
          REQUIRE(bound >= problem.LowerBoundSeconds());
          REQUIRE(bound <= std::min(best, replacing.makespan_s) * (1 + 1e-9));
        }
        // With three GPUs and more a rule's sets may lie across the groups, and end earlier.
        const bool nested = problem.gpus() <= 2 || sets.by == "search";
        REQUIRE(CheckSweepPlan(problem, sets) == "");
        REQUIRE(CheckSweepPlan(problem, replacing) == "");
        if (nested) REQUIRE(sets.makespan_s >= best * (1 - 1e-9));
        for (SweepRule rule : {SweepRule::kLeastMakespan, SweepRule::kMostThroughput}) {
          const SweepPlan plan = PlanByThroughput(problem, rule);
          REQUIRE(CheckSweepPlan(problem, plan) == "");
          if (problem.gpus() <= 2) REQUIRE(plan.makespan_s >= best * (1 - 1e-9));
          REQUIRE(sets.makespan_s <= plan.makespan_s * (1 + 1e-6));
        }
        ++instances;
        optimal += sets.makespan_s <= best * (1 + 1e-6);
        sum += sets.makespan_s / best;
        worst = std::max(worst, sets.makespan_s / best);
      }
    }
    std::cout << "up to " << c.configurations_max << " configurations on " << c.gpus_max
              << " GPUs: " << optimal << " of " << instances << " plans are optimal, mean "
              << sum / instances << ", worst " << worst << "\n";
    CHECK(worst <= 2);
    CHECK(optimal >= instances * 8 / 10);
  }
}

// A group of all GPUs is slow here, and one configuration fits no other: it comes first, and the
// others follow on single GPUs.
TEST_CASE("Who needs all GPUs does not hold the others there") {
  SweepCosts costs = Small();
  costs.degrees = {{1, 1, 1}, {2, 1.5, 0.5}, {4, 2, 0.25}};
  std::vector<SweepConfiguration> list = {{"all", 40, 1, 2}};
  for (int i = 0; i < 8; ++i) list.push_back({"s" + std::to_string(i), 10, 1, 3});
  CHECK(ToText(PlanSweep(Problem(costs, list, 4), {.replace = false}), list) ==
        "makespan 10.65 s, lower bound 10.13 s (1.052), ratio 1.000 (bound 1.000), by search\n"
        "GPU 0,1,2,3: 0 .. 4.05 s: all\n"
        "GPU 0: 4.05 .. 7.35 s: s0\n"
        "GPU 1: 4.05 .. 7.35 s: s2\n"
        "GPU 2: 4.05 .. 7.35 s: s4\n"
        "GPU 3: 4.05 .. 7.35 s: s6\n"
        "GPU 0: 7.35 .. 10.65 s: s1\n"
        "GPU 1: 7.35 .. 10.65 s: s3\n"
        "GPU 2: 7.35 .. 10.65 s: s5\n"
        "GPU 3: 7.35 .. 10.65 s: s7\n");
}

TEST_CASE("Random sweeps on more GPUs hold") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    double over[2] = {0, 0};
    int bounds = 0;
    for (int i = 0; i < 150; ++i) {
      const Instance instance = RandomInstance(random, 40, 13);
      const SweepProblem problem = Problem(instance.costs, instance.list, instance.gpus);
      INFO("seed " << seed << " instance " << i);
      const double bound = i % 5 == 0 ? SweepBoundSeconds(problem) : 0;
      bounds += i % 5 == 0;
      for (bool replace : {false, true}) {
        const SweepPlan plan = PlanSweep(problem, {replace, 2000});
        REQUIRE(CheckSweepPlan(problem, plan) == "");
        REQUIRE(ToText(plan, instance.list) ==
                ToText(PlanSweep(problem, {replace, 2000}), instance.list));
        REQUIRE(plan.makespan_s >= bound * (1 - 1e-9));
        if (bound > 0) over[replace] += plan.makespan_s / bound - 1;
      }
    }
    std::cout << "above the bound in the mean: sets " << over[0] / bounds << ", with replacement "
              << over[1] / bounds << "\n";
  }
}

TEST_CASE("Costs of all magnitudes are bounded and planned") {
  std::vector<uint32_t> seeds = Seeds();
  seeds.push_back(3300348581);  // no work at all: counting rounds did not end
  for (uint32_t seed : seeds) {
    std::mt19937 random(seed);
    const auto magnitude = [&](int low, int high) {
      return std::pow(10, std::uniform_real_distribution<double>(low, high)(random));
    };
    const auto or_none = [&](double value) { return random() % 2 == 0 ? 0 : value; };
    for (int i = 0; i < 100; ++i) {
      Instance instance;
      SweepCosts& costs = instance.costs;
      instance.gpus = 1 << random() % 4;
      costs.gpu_bytes = static_cast<int64_t>(magnitude(6, 14));
      const auto bytes = static_cast<double>(costs.gpu_bytes);
      costs.base_bytes = static_cast<int64_t>(or_none(bytes / 3));
      costs.rank_bytes = static_cast<int64_t>(or_none(bytes * magnitude(-9, -4)));
      costs.sample_bytes = static_cast<int64_t>(or_none(bytes * magnitude(-9, -3)));
      costs.iteration_s = magnitude(-6, 8);
      costs.adapter_s = or_none(magnitude(-9, 8));
      costs.rank_s = or_none(magnitude(-9, 6));
      costs.sample_s = or_none(magnitude(-9, 8));
      for (int gpus = 1; gpus <= instance.gpus; gpus *= 2) {
        costs.degrees.push_back({gpus, magnitude(-3, 1), magnitude(-3, 1)});
      }
      const size_t count = 1 + random() % 20;
      for (size_t c = 0; c < count; ++c) {
        instance.list.push_back({"c" + std::to_string(c), 1 << random() % 11, 1 << random() % 7,
                                 static_cast<int64_t>(magnitude(0, 12))});
      }
      INFO("seed " << seed << " instance " << i);
      const SweepProblem problem = Problem(costs, instance.list, instance.gpus);
      const double makespan = PlanSweep(problem, {true, 500}).makespan_s;
      const double bound = SweepBoundSeconds(problem);
      REQUIRE(bound >= problem.LowerBoundSeconds());
      REQUIRE(bound <= makespan * (1 + 1e-9));
    }
  }
}

TEST_CASE("A plan as text") {
  const std::vector<SweepConfiguration> list = {{"a", 8, 1, 4}, {"b", 2, 1, 2}, {"c", 2, 1, 2}};
  const SweepProblem problem = Problem(Small(), list, 1);
  // c takes b's place after two steps: 4 + 0.8 iterations, where sets would need 6 + 0.8.
  CHECK(ToText(PlanSweep(problem), list) ==
        "makespan 4.8 s, lower bound 4.8 s (1.000), ratio 1.000 (bound 1.000), by search with "
        "replacement\n"
        "GPU 0: 0 .. 4.8 s: a b @2.4 c\n");
  CHECK(ToText(PlanSweep(problem, {.replace = false}), list) ==
        "makespan 6.8 s, lower bound 4.8 s (1.417), ratio 1.000 (bound 1.000), by search\n"
        "GPU 0: 0 .. 4.6 s: a b\n"
        "GPU 0: 4.6 .. 6.8 s: c\n");
}

TEST_CASE("1,000 configurations on 64 GPUs are planned in less than 10 seconds") {
  std::vector<SweepConfiguration> grid = PloraGrid({1, 2, 4, 8, 16, 32}, true, 1000);
  std::vector<SweepConfiguration> mixed = grid;
  std::mt19937 random(7);
  for (SweepConfiguration& c : mixed) c.steps += static_cast<int64_t>(random() % 100);
  for (const auto& list : {grid, mixed}) {
    const SweepProblem problem = Problem(PloraCosts(64), list, 64);
    double best_s = 1e300;
    SweepPlan plan;
    for (int attempt = 0; attempt < 2 && best_s >= 5; ++attempt) {
      const auto start = std::chrono::steady_clock::now();
      plan = PlanSweep(problem);
      best_s = std::min(
          best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    REQUIRE(CheckSweepPlan(problem, plan) == "");
    std::cout << problem.kinds().size() << " kinds: planned in " << best_s << " s; "
              << problem.OneEachSeconds() / plan.makespan_s << " times shorter, AR "
              << plan.approximation_ratio << ", " << plan.makespan_s / plan.lower_bound_s
              << " of the lower bound\n";
    CHECK(best_s < 10);
    CHECK(plan.approximation_ratio <= 1.05);
  }
}

}  // namespace
}  // namespace lorad::planner
