// lorad-plan pack: samples of several adapters into microbatches.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/pack.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

// {"capacity": 16, "padding": 1, "adapters": [{"name": "a", "lengths": [9, 5, 4]}]}
struct PackScenario {
  PackOptions options;
  std::vector<Sample> samples;
};

// Every sequence fits the capacity after padding, no adapter is named twice.
absl::StatusOr<PackScenario> ReadPack(const nlohmann::json& scenario);
absl::Status CheckPack(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunPack(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
