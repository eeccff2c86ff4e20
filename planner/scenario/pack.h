// lorad-plan pack: global batches of several adapters into microbatches.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/subcommand.h"
#include "planner/window/pack.h"
#include "planner/window/pack_batch.h"

namespace lorad::planner::scenario {

// docs/planner.md describes the fields.
struct PackScenario {
  PackOptions options;
  PackLimits limits;
  int merge_stages = 0;                      // 0: no merge pass
  std::vector<std::vector<Sample>> batches;  // samples of global batch j of all adapters,
  std::vector<std::vector<int64_t>> places;  // and the place of each in its adapter's own list
};

// "capacity" (up to `tokens_max`) and "padding": what a microbatch holds of one adapter, or
// `tokens_max` where they are wrong.
int64_t ReadPackOptions(Fields* fields, int64_t tokens_max, PackOptions* options);

// Every sequence fits the capacity after padding, no adapter is named twice.
absl::StatusOr<PackScenario> ReadPack(const nlohmann::json& scenario);
absl::Status CheckPack(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunPack(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
