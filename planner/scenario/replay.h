// lorad-plan schedule with jobs that come: a history in simulated time under one or several
// policies, beside first come first served and one group a base model.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/replay/history.h"
#include "planner/replay/load.h"
#include "planner/replay/replay.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

struct ReplayScenario {
  struct Policy {
    std::string name;
    SchedulePolicy policy;
  };
  History history;           // without jobs where there is a load,
  std::optional<Load> load;  // from which they are drawn
  std::vector<Policy> policies;
  struct Recorded {
    SchedulePolicy policy;
    std::string share_label;  // whose values are the label groups of fair_share
  };
  std::optional<Recorded> recorded;  // under which the history went; the policy where none is given
  bool baselines = true;
  Turns turns;
};

// It has jobs that come, or a load, or what stands beside these alone: else schedule.h reads it.
bool IsReplay(const nlohmann::json& scenario);
absl::StatusOr<ReplayScenario> ReadReplay(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunReplay(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
