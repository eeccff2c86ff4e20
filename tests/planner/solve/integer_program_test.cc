#include "planner/solve/integer_program.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

using Status = IntegerSolution::Status;
constexpr double kInfinity = IntegerProgram::kInfinity;

// max 5a + 4b + 3c in a knapsack of 5: weights 2, 3, 1, one each.
IntegerProgram Knapsack() {
  IntegerProgram program;
  for (double cost : {-5.0, -4.0, -3.0}) program.AddVariable({0, 1, cost, true});
  program.AddRow(-kInfinity, 5, {{0, 2}, {1, 3}, {2, 1}});
  return program;
}

// A program whose tree is not done at the root: Cornuejols' market split, halving several sums at
// once exactly.
IntegerProgram MarketSplit(int rows, int count) {
  IntegerProgram program;
  std::mt19937 random(7);
  for (int i = 0; i < count; ++i) program.AddVariable({0, 1, 0, true});
  for (int row = 0; row < rows; ++row) {
    std::vector<IntegerProgram::Term> terms;
    int sum = 0;
    for (int i = 0; i < count; ++i) {
      const int value = static_cast<int>(random() % 100);
      terms.push_back({i, static_cast<double>(value)});
      sum += value;
    }
    program.AddRow(sum / 2, sum / 2, terms);
  }
  return program;
}

TEST_CASE("An integer program is solved, and printed") {
  const auto solution = Minimize(Knapsack(), {});
  REQUIRE(solution.ok());
  CHECK(solution->status == Status::kOptimal);
  CHECK(solution->values == std::vector<double>{1, 1, 0});
  CHECK(solution->objective == -9);
  CHECK(solution->bound == Approx(-9));
  CHECK(ToText(*solution).starts_with("optimal -9 (bound -9, "));
  CHECK(ToText(Knapsack()) ==
        "minimize -5 x0 + -4 x1 + -3 x2; 2 x0 + 3 x1 + x2 <= 5; x0 in [0, 1] integer; "
        "x1 in [0, 1] integer; x2 in [0, 1] integer");
}

TEST_CASE("Without integers it is a linear program; a variable named twice counts with the sum") {
  IntegerProgram program;
  program.AddVariable({0, 10, -1, false});
  program.AddRow(-kInfinity, 5, {{0, 1}, {0, 1}});
  const auto solution = Minimize(program, {});
  REQUIRE(solution.ok());
  CHECK(solution->status == Status::kOptimal);
  CHECK(solution->objective == Approx(-2.5));
}

TEST_CASE("Without variables, without a solution, without a bound") {
  IntegerProgram empty;
  CHECK(Minimize(empty, {})->status == Status::kOptimal);
  empty.AddRow(1, 2, {});
  CHECK(Minimize(empty, {})->status == Status::kInfeasible);

  IntegerProgram none = Knapsack();
  none.AddRow(4, kInfinity, {{0, 1}, {1, 1}, {2, 1}});
  CHECK(Minimize(none, {})->status == Status::kInfeasible);
  CHECK_FALSE(Minimize(none, {})->found());
  IntegerProgram crossed = Knapsack();
  crossed.variables[0].upper = -1;
  CHECK(Minimize(crossed, {})->status == Status::kInfeasible);

  IntegerProgram unbounded;
  unbounded.AddVariable({0, kInfinity, -1, true});
  CHECK(Minimize(unbounded, {}).status().message() == "integer program: unbounded");
}

TEST_CASE("A program that makes no sense is refused") {
  IntegerProgram program = Knapsack();
  const std::vector<double> start = {1, 1};
  CHECK(Minimize(program, {}, &start).status().message() ==
        "integer program: a warm start of 2 values for 3 variables");
  program.rows[0].terms[0].variable = 3;
  CHECK(Minimize(program, {}).status().message() == "integer program: row 0 names variable 3 of 3");
  program = Knapsack();
  program.rows[0].terms[0].coefficient = kInfinity;
  CHECK_FALSE(Minimize(program, {}).ok());
  program = Knapsack();
  program.rows[0].upper = std::nan("");
  CHECK_FALSE(Minimize(program, {}).ok());
  program = Knapsack();
  program.variables[2].cost = std::nan("");
  CHECK_FALSE(Minimize(program, {}).ok());
}

TEST_CASE("Limits and cancellation end the search; a warm start is what is left then") {
  const IntegerProgram program = MarketSplit(4, 30);
  SolveLimits limits;
  limits.nodes = 1;
  auto solution = Minimize(program, limits);
  REQUIRE(solution.ok());
  CHECK(solution->status == Status::kLimit);
  CHECK_FALSE(solution->found());

  limits = {};
  int asked = 0;
  limits.cancelled = [&] { return ++asked > 1; };
  solution = Minimize(program, limits);
  REQUIRE(solution.ok());
  CHECK(solution->status == Status::kCancelled);
  CHECK(asked < 10);
}

TEST_CASE("Equal input gives equal output") {
  std::mt19937 random(3);
  IntegerProgram program;
  std::vector<std::vector<IntegerProgram::Term>> rows(8);
  for (int i = 0; i < 40; ++i) {
    program.AddVariable({0, 1, -static_cast<double>(10 + random() % 90), true});
    for (auto& row : rows) row.push_back({i, static_cast<double>(5 + random() % 95)});
  }
  for (const auto& row : rows) program.AddRow(-kInfinity, 700, row);
  SolveLimits limits;
  limits.nodes = 20;
  const auto first = Minimize(program, limits);
  REQUIRE(first.ok());
  CHECK(first->status == Status::kFeasible);
  for (int i = 0; i < 3; ++i) CHECK(ToText(*Minimize(program, limits)) == ToText(*first));
  limits.nodes = 1;
  const auto warm = Minimize(program, limits, &first->values);
  REQUIRE(warm.ok());
  CHECK(warm->objective <= first->objective);
}

// All points of the box.
std::optional<double> Best(const IntegerProgram& program, std::vector<double>& values) {
  if (values.size() < program.variables.size()) {
    std::optional<double> best;
    const IntegerProgram::Variable& variable = program.variables[values.size()];
    for (double value = variable.lower; value <= variable.upper; ++value) {
      values.push_back(value);
      const std::optional<double> found = Best(program, values);
      values.pop_back();
      if (found && (!best || *found < *best)) best = found;
    }
    return best;
  }
  double objective = 0;
  for (size_t i = 0; i < values.size(); ++i) objective += program.variables[i].cost * values[i];
  for (const IntegerProgram::Row& row : program.rows) {
    double sum = 0;
    for (const IntegerProgram::Term& term : row.terms) {
      sum += term.coefficient * values[static_cast<size_t>(term.variable)];
    }
    if (sum < row.lower || sum > row.upper) return std::nullopt;
  }
  return objective;
}

TEST_CASE("On small random programs the optimum is the best of all points") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    const auto between = [&](int low, int high) {
      return static_cast<double>(low + static_cast<int>(random() % (high - low + 1)));
    };
    for (int i = 0; i < 500; ++i) {
      IntegerProgram program;
      const int count = static_cast<int>(between(1, 5));
      for (int v = 0; v < count; ++v) {
        const double lower = between(-2, 1);
        program.AddVariable({lower, lower + between(0, 3), between(-9, 9), true});
      }
      for (double row = between(0, 3); row > 0; --row) {
        std::vector<IntegerProgram::Term> terms;
        for (int v = 0; v < count; ++v) terms.push_back({v, between(-5, 5)});
        const double lower = between(-8, 4);
        program.AddRow(lower, random() % 3 == 0 ? kInfinity : lower + between(0, 8), terms);
      }
      INFO(ToText(program));
      std::vector<double> values;
      const std::optional<double> best = Best(program, values);
      const auto solution = Minimize(program, {});
      REQUIRE(solution.ok());
      REQUIRE(solution->found() == best.has_value());
      if (best) REQUIRE(solution->objective == *best);
      if (!best) REQUIRE(solution->status == Status::kInfeasible);
    }
  }
}

}  // namespace
}  // namespace lorad::planner
