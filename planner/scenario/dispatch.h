// lorad-plan dispatch: the sequences of one step over replicas that are deployed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/replicas/bucketing.h"
#include "planner/replicas/dispatch.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

// {"replicas": [{LAYOUT, "count": 6}], "lengths": [812, 90], "buckets": 16, "granularity": 256,
//  "boundaries": [], "gap": 0.005, "nodes": 20000}; LAYOUT as planner/scenario/layouts.h.
struct DispatchScenario {
  std::vector<ReplicaGroup> groups;
  std::vector<int64_t> lengths;  // of the sequences
  BucketingOptions bucketing;
  std::vector<int64_t> boundaries;  // fixed; empty: dynamic buckets
  DispatchOptions options;
};

absl::StatusOr<DispatchScenario> ReadDispatch(const nlohmann::json& scenario);
absl::Status CheckDispatchScenario(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunDispatch(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
