// lorad-plan deploy: which replicas to deploy, who owns which adapter, and whether to move there.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/move.h"
#include "planner/replicas/bucketing.h"
#include "planner/replicas/deploy.h"
#include "planner/replicas/ownership.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

// {"gpus": 16, "layouts": [LAYOUT],
//  "expected": [{"length": 256, "sequences": 412.5}]   or   "steps": [[812, 90], [77]],
//  "buckets": 16, "granularity": 256, "filter": true, "gap": 0.005,
//  "adapters": [{"name": "a", "sequences": [3, 1], "reduction_ms": 40}],
//  "current": {"replicas": [6, 1], "remaining_steps": 1e4, "checkpoint_s": 20, "reload_s": 100}}
// LAYOUT as planner/scenario/layouts.h. With "steps" (the sequences of sampled steps) the expected
// ones are those of the mean step in common buckets, and plans compete over the steps.
struct DeployScenario {
  DeployProblem problem;  // lengths and sequences empty with steps
  std::vector<std::vector<int64_t>> steps;
  BucketingOptions bucketing;
  bool filter = true;  // LobRA's configuration filter, by the layouts' own times
  DeployOptions options;
  std::vector<AdapterWork> adapters;
  struct Current {
    std::vector<int64_t> replicas;  // of each layout
    MoveQuestion question;          // without the steps' times
  };
  std::optional<Current> current;
};

absl::StatusOr<DeployScenario> ReadDeploy(const nlohmann::json& scenario);
absl::Status CheckDeploy(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunDeploy(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
