#include "planner/solve/integer_program.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
// The C interface: the C++ one was built with the old layout of std::string.
#include "interfaces/highs_c_api.h"

namespace lorad::planner {
namespace {

using Status = IntegerSolution::Status;

struct Destroy {
  void operator()(void* highs) const { Highs_destroy(highs); }
};
using Highs = std::unique_ptr<void, Destroy>;

absl::Status Check(const IntegerProgram& program, const std::vector<double>* warm_start) {
  const auto error = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("integer program: ", what...));
  };
  const size_t count = program.variables.size();
  for (size_t i = 0; i < count; ++i) {
    const IntegerProgram::Variable& variable = program.variables[i];
    if (!std::isfinite(variable.cost)) return error("variable ", i, " costs ", variable.cost);
    if (std::isnan(variable.lower) || std::isnan(variable.upper)) {
      return error("variable ", i, " is bounded by NaN");
    }
  }
  for (size_t i = 0; i < program.rows.size(); ++i) {
    const IntegerProgram::Row& row = program.rows[i];
    if (std::isnan(row.lower) || std::isnan(row.upper)) return error("row ", i, " has a NaN bound");
    for (const IntegerProgram::Term& term : row.terms) {
      if (term.variable < 0 || static_cast<size_t>(term.variable) >= count) {
        return error("row ", i, " names variable ", term.variable, " of ", count);
      }
      if (!std::isfinite(term.coefficient)) {
        return error("row ", i, " has a coefficient ", term.coefficient);
      }
    }
  }
  if (warm_start != nullptr && warm_start->size() != count) {
    return error("a warm start of ", warm_start->size(), " values for ", count, " variables");
  }
  return absl::OkStatus();
}

// The rows as HiGHS takes them, one behind another.
struct Matrix {
  std::vector<double> lower, upper;
  std::vector<HighsInt> starts, columns;
  std::vector<double> values;

  explicit Matrix(const std::vector<IntegerProgram::Row>& rows) {
    for (const IntegerProgram::Row& row : rows) {
      lower.push_back(row.lower);
      upper.push_back(row.upper);
      starts.push_back(static_cast<HighsInt>(columns.size()));
      std::map<int, double> sums;
      for (const IntegerProgram::Term& term : row.terms) sums[term.variable] += term.coefficient;
      for (const auto& [variable, coefficient] : sums) {
        columns.push_back(variable);
        values.push_back(coefficient);
      }
    }
    starts.push_back(static_cast<HighsInt>(columns.size()));
  }
};

bool Pass(void* highs, const IntegerProgram& program) {
  std::vector<double> cost, lower, upper;
  std::vector<HighsInt> kinds;
  for (const IntegerProgram::Variable& variable : program.variables) {
    cost.push_back(variable.cost);
    lower.push_back(variable.lower);
    upper.push_back(variable.upper);
    kinds.push_back(variable.integer ? kHighsVarTypeInteger : kHighsVarTypeContinuous);
  }
  const Matrix matrix(program.rows);
  return Highs_passMip(
             highs, static_cast<HighsInt>(cost.size()), static_cast<HighsInt>(program.rows.size()),
             static_cast<HighsInt>(matrix.columns.size()), kHighsMatrixFormatRowwise,
             kHighsObjSenseMinimize, 0, cost.data(), lower.data(), upper.data(),
             matrix.lower.data(), matrix.upper.data(), matrix.starts.data(), matrix.columns.data(),
             matrix.values.data(), kinds.data()) != kHighsStatusError;
}

HighsInt Clamp(int64_t value) {
  return static_cast<HighsInt>(std::clamp<int64_t>(value, 0, std::numeric_limits<HighsInt>::max()));
}

void SetOptions(void* highs, const SolveLimits& limits) {
  Highs_setBoolOptionValue(highs, "output_flag", 0);
  Highs_setIntOptionValue(highs, "threads", 1);
  Highs_setStringOptionValue(highs, "parallel", "off");
  Highs_setIntOptionValue(highs, "random_seed", 1);
  Highs_setIntOptionValue(highs, "mip_max_nodes", Clamp(limits.nodes));
  Highs_setDoubleOptionValue(highs, "mip_rel_gap", limits.gap);
}

// The values that the interrupt callback looks at.
struct Watch {
  const SolveLimits& limits;
  bool cancelled = false;
  bool out_of_iterations = false;
};

void OnInterrupt(int kind, const char*, const HighsCallbackDataOut* out, HighsCallbackDataIn* in,
                 void* data) {
  if (in == nullptr) return;
  Watch& watch = *static_cast<Watch*>(data);
  if (watch.limits.cancelled && watch.limits.cancelled()) watch.cancelled = true;
  if (kind == kHighsCallbackMipInterrupt &&
      out->mip_total_lp_iterations > watch.limits.iterations) {
    watch.out_of_iterations = true;
  }
  if (watch.cancelled || watch.out_of_iterations) in->user_interrupt = 1;
}

void ReadSolution(void* highs, const IntegerProgram& program, IntegerSolution* solution) {
  HighsInt primal = 0;
  Highs_getIntInfoValue(highs, "primal_solution_status", &primal);
  if (primal != kHighsSolutionStatusFeasible) return;
  solution->values.resize(program.variables.size());
  Highs_getSolution(highs, solution->values.data(), nullptr, nullptr, nullptr);
  for (size_t i = 0; i < solution->values.size(); ++i) {
    double& value = solution->values[i];
    if (program.variables[i].integer) value = std::round(value);
    solution->objective += program.variables[i].cost * value;
  }
}

void ReadCounts(void* highs, IntegerSolution* solution) {
  int64_t nodes = 0;
  HighsInt iterations = 0;
  Highs_getInt64InfoValue(highs, "mip_node_count", &nodes);
  Highs_getIntInfoValue(highs, "simplex_iteration_count", &iterations);
  Highs_getDoubleInfoValue(highs, "mip_dual_bound", &solution->bound);
  solution->nodes = std::max<int64_t>(0, nodes);  // -1: no search was needed
  solution->iterations = std::max<HighsInt>(0, iterations);
}

// Nothing to choose: the rows hold at 0, or they do not.
IntegerSolution WithoutVariables(const IntegerProgram& program) {
  IntegerSolution solution;
  const bool feasible =
      std::all_of(program.rows.begin(), program.rows.end(),
                  [](const IntegerProgram::Row& row) { return row.lower <= 0 && row.upper >= 0; });
  solution.status = feasible ? Status::kOptimal : Status::kInfeasible;
  return solution;
}

absl::StatusOr<Status> StatusOf(void* highs, const Watch& watch, bool found) {
  const HighsInt status = Highs_getModelStatus(highs);
  if (status == kHighsModelStatusOptimal) return Status::kOptimal;
  if (status == kHighsModelStatusInfeasible) return Status::kInfeasible;
  if (watch.cancelled) return Status::kCancelled;
  if (status == kHighsModelStatusUnbounded || status == kHighsModelStatusUnboundedOrInfeasible) {
    return absl::InvalidArgumentError("integer program: unbounded");
  }
  const bool limit = status == kHighsModelStatusSolutionLimit ||
                     status == kHighsModelStatusIterationLimit || watch.out_of_iterations;
  if (limit) return found ? Status::kFeasible : Status::kLimit;
  return absl::InternalError(absl::StrCat("integer program: the solver ended with ", status));
}

const char* Name(Status status) {
  switch (status) {
    case Status::kOptimal:
      return "optimal";
    case Status::kFeasible:
      return "feasible";
    case Status::kInfeasible:
      return "infeasible";
    case Status::kLimit:
      return "limit";
    case Status::kCancelled:
      return "cancelled";
  }
  assert(false);
  return "";
}

}  // namespace

int IntegerProgram::AddVariable(const Variable& variable) {
  variables.push_back(variable);
  return static_cast<int>(variables.size()) - 1;
}

int IntegerProgram::AddRow(double lower, double upper, std::vector<Term> terms) {
  rows.push_back({lower, upper, std::move(terms)});
  return static_cast<int>(rows.size()) - 1;
}

absl::StatusOr<IntegerSolution> Minimize(const IntegerProgram& program, const SolveLimits& limits,
                                         const std::vector<double>* warm_start) {
  if (absl::Status status = Check(program, warm_start); !status.ok()) return status;
  if (program.variables.empty()) return WithoutVariables(program);
  IntegerSolution solution;
  if (limits.cancelled && limits.cancelled()) {
    solution.status = Status::kCancelled;
    return solution;
  }
  const bool crossed = std::any_of(program.variables.begin(), program.variables.end(),
                                   [](const auto& v) { return v.lower > v.upper; }) ||
                       std::any_of(program.rows.begin(), program.rows.end(),
                                   [](const auto& row) { return row.lower > row.upper; });
  if (crossed) {  // HiGHS calls that a bad model
    solution.status = Status::kInfeasible;
    return solution;
  }
  const Highs highs(Highs_create());
  SetOptions(highs.get(), limits);
  if (!Pass(highs.get(), program)) {
    return absl::InternalError("integer program: the solver refused the program");
  }
  if (warm_start != nullptr) {
    Highs_setSolution(highs.get(), warm_start->data(), nullptr, nullptr, nullptr);
  }
  Watch watch{limits};
  Highs_setCallback(highs.get(), OnInterrupt, &watch);
  Highs_startCallback(highs.get(), kHighsCallbackMipInterrupt);
  Highs_startCallback(highs.get(), kHighsCallbackSimplexInterrupt);
  Highs_run(highs.get());

  ReadSolution(highs.get(), program, &solution);
  ReadCounts(highs.get(), &solution);
  const absl::StatusOr<Status> status = StatusOf(highs.get(), watch, solution.found());
  if (!status.ok()) return status.status();
  solution.status = *status;
  if (*status == Status::kInfeasible) solution.values.clear();
  return solution;
}

std::string ToText(const IntegerProgram& program) {
  const auto sum = [](const std::vector<IntegerProgram::Term>& terms) {
    if (terms.empty()) return std::string("0");
    return absl::StrJoin(terms, " + ", [](std::string* out, const IntegerProgram::Term& term) {
      absl::StrAppend(out, term.coefficient == 1 ? "" : absl::StrCat(term.coefficient, " "), "x",
                      term.variable);
    });
  };
  std::vector<IntegerProgram::Term> costs;
  for (size_t i = 0; i < program.variables.size(); ++i) {
    const double cost = program.variables[i].cost;
    if (cost != 0) costs.push_back({static_cast<int>(i), cost});
  }
  std::string text = "minimize " + sum(costs);
  for (const IntegerProgram::Row& row : program.rows) {
    text += "; ";
    if (row.lower == row.upper) {
      absl::StrAppend(&text, sum(row.terms), " = ", row.lower);
      continue;
    }
    if (row.lower > -IntegerProgram::kInfinity) absl::StrAppend(&text, row.lower, " <= ");
    text += sum(row.terms);
    if (row.upper < IntegerProgram::kInfinity) absl::StrAppend(&text, " <= ", row.upper);
  }
  for (size_t i = 0; i < program.variables.size(); ++i) {
    const IntegerProgram::Variable& variable = program.variables[i];
    absl::StrAppend(&text, "; x", i, " in [", variable.lower, ", ", variable.upper, "]",
                    variable.integer ? " integer" : "");
  }
  return text;
}

std::string ToText(const IntegerSolution& solution) {
  std::string text = absl::StrCat(Name(solution.status));
  if (solution.found()) absl::StrAppend(&text, " ", solution.objective);
  absl::StrAppend(&text, " (bound ", solution.bound, ", ", solution.nodes, " nodes)");
  if (solution.found()) absl::StrAppend(&text, ": ", absl::StrJoin(solution.values, " "));
  return text;
}

}  // namespace lorad::planner
