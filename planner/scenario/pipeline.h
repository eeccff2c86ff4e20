// lorad-plan pipeline: global batches of several adapters through a pipeline of stages.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/pipeline/pipeline.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

// docs/planner.md describes the fields. Lengths are given, or drawn from log-normal distributions
// by a seed.
absl::StatusOr<PipelineInput> ReadPipeline(const nlohmann::json& scenario);
nlohmann::ordered_json ToJson(const PipelinePlan& plan, const PipelineInput& input);
absl::Status CheckPipeline(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunPipeline(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
