// The common part of lorad-plan's subcommands. Subcommand X lives in planner/scenario/X.h and .cc
// and has one line in subcommands.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/pipeline/timeline.h"

namespace lorad::planner::scenario {

struct PlanResult {
  std::string text;                  // what a person reads; ends with a newline
  nlohmann::ordered_json json;       // the same for programs
  std::optional<Timeline> timeline;  // of the plans that have one: --trace and --svg
};

struct Subcommand {
  std::string_view name;     // "pipeline"
  std::string_view summary;  // one line of --help
  // OK, or every violation. Cheap, whatever the numbers say: the fuzzer calls it.
  absl::Status (*check)(const nlohmann::json& scenario);
  // INVALID_ARGUMENT: the scenario is bad (lorad-plan exits with 2); other errors: there is no
  // such plan, with the reason (it exits with 1).
  absl::StatusOr<PlanResult> (*run)(const nlohmann::json& scenario);
};

// All of them, in the order of --help.
const std::vector<Subcommand>& Subcommands();

}  // namespace lorad::planner::scenario
