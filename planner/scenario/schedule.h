// lorad-plan schedule: who trains where, given a cluster as it stands; or a history replayed
// (replay.h), where the scenario has jobs that come instead of a queue.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/scenario/subcommand.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner::scenario {

// {"models": [..], "workers": [..], "groups": [..], "queue": [..], "policy": {..}}; docs/planner.md
// has all fields. Names are unique, jobs and groups name models that there are, and no two groups
// share a worker.
absl::StatusOr<ClusterView> ReadSchedule(const nlohmann::json& scenario);
absl::Status CheckSchedule(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunSchedule(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
