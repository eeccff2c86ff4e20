// Linear programs with integer variables, and their exact solution by branch and bound (HiGHS).
//
//   minimize sum_v cost_v x_v   subject to   lower_r <= sum_v a_rv x_v <= upper_r for each row r,
//                                            lower_v <= x_v <= upper_v, x_v integer where it says
//                                            so
//
// One thread, a fixed seed, and limits that count work instead of time: equal input gives equal
// output on one machine. Huangfu and Hall, "Parallelizing the dual revised simplex method" (2018).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::planner {

struct IntegerProgram {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Variable {
    double lower = 0;
    double upper = kInfinity;
    double cost = 0;
    bool integer = true;
  };
  struct Term {
    int variable = 0;
    double coefficient = 0;
  };
  struct Row {
    double lower = -kInfinity;
    double upper = kInfinity;
    std::vector<Term> terms;  // a variable named twice counts with the sum
  };
  std::vector<Variable> variables;
  std::vector<Row> rows;

  // The index of what was added.
  int AddVariable(const Variable& variable);
  int AddRow(double lower, double upper, std::vector<Term> terms);
};

struct SolveLimits {
  int64_t nodes = 10'000;                     // of the search tree; 1: the root alone
  int64_t iterations = 10'000'000;            // of the simplex method, all nodes together
  double gap = 0;                             // stop once (objective - bound) <= gap * |objective|
  std::function<bool()> cancelled = nullptr;  // asked now and then, on the caller's thread
};

struct IntegerSolution {
  enum class Status {
    kOptimal,     // within `gap`
    kFeasible,    // a limit was met: the best that was found by then
    kInfeasible,  // there is no solution
    kLimit,       // a limit was met before any solution was found
    kCancelled,   // `values` may hold what was found by then
  };
  Status status = Status::kLimit;
  std::vector<double> values;  // of each variable, integers exact; empty where none was found
  double objective = 0;        // of `values`
  double bound = 0;            // no solution has less
  int64_t nodes = 0;
  int64_t iterations = 0;

  bool found() const { return !values.empty(); }
};

// `warm_start`, if given and feasible, is never beaten by the result. INVALID_ARGUMENT: a term
// names no variable, a number is NaN, a coefficient or cost is infinite, the objective is
// unbounded, the warm start is of another size. INTERNAL: the solver gave up.
// Thread-safe: programs may be solved side by side, each on its caller's thread.
absl::StatusOr<IntegerSolution> Minimize(const IntegerProgram& program, const SolveLimits& limits,
                                         const std::vector<double>* warm_start = nullptr);

// "minimize 2 x0 + 3 x1; 1 <= x0 + x1; x0 in [0, 4] integer; ..."
std::string ToText(const IntegerProgram& program);
// "optimal 7 (bound 7, 1 nodes): 2 1 0"
std::string ToText(const IntegerSolution& solution);

}  // namespace lorad::planner
