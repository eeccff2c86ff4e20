// lorad-plan sweep: configurations of hyperparameters on shared GPUs, as sets and over time.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/scenario/subcommand.h"
#include "planner/sweep/early_exit.h"
#include "planner/sweep/plan.h"

namespace lorad::planner::scenario {

// {"gpus": 8, "costs": {..}, "grid": {"ranks": [8], "batches": [1, 2], "learning_rates": [1e-4],
//  "samples": 3200}, "early_exit": {"modelled": {"seed": 1}}}; docs/planner.md has all fields.
struct SweepScenario {
  int gpus = 0;
  SweepCosts costs;
  std::vector<SweepConfiguration> configurations;
  SweepOptions options;
  std::optional<EarlyExitPolicy> early_exit;
  std::vector<LossCurve> curves;  // with early_exit: of each configuration
};

absl::StatusOr<SweepScenario> ReadSweep(const nlohmann::json& scenario);
absl::Status CheckSweep(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunSweep(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
