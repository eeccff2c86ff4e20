#include "planner/scenario/dispatch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/layouts.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

DispatchScenario Read(Fields& fields) {
  DispatchScenario scenario;
  std::vector<Layout> layouts;
  for (Fields& entry : fields.Objects("replicas", {.min = 1, .max = kGroupsMax})) {
    layouts.push_back(ReadLayout(entry));
    const int64_t count = entry.Int64("count", {.min = 1, .max = 65'536, .fallback = 1});
    scenario.groups.push_back({layouts.back(), static_cast<int>(count), {}});
  }
  scenario.lengths =
      fields.Int64s("lengths", {.min = 1, .max = kLengthMax}, {.min = 1, .max = kSequencesMax});
  CheckLengths(fields, "lengths", scenario.lengths, layouts);
  scenario.bucketing = ReadBucketing(fields, layouts);
  scenario.boundaries = fields.Int64s("boundaries", {.min = 1, .max = kLengthMax},
                                      {.max = kBucketsMax, .required = false});
  for (size_t i = 1; i < scenario.boundaries.size(); ++i) {
    if (scenario.boundaries[i] <= scenario.boundaries[i - 1]) {
      fields.ViolateEntry("boundaries", i, "is not above the one before", "let boundaries rise");
    }
  }
  if (!scenario.boundaries.empty()) {
    for (size_t i = 0; i < scenario.lengths.size(); ++i) {
      if (scenario.lengths[i] > scenario.boundaries.back()) {
        fields.ViolateEntry("lengths", i, "is longer than the last boundary",
                            "cut it or raise the boundary");
      }
    }
  }
  scenario.options.gap = fields.Number("gap", {.min = 0, .max = 0.9, .fallback = 0.005});
  scenario.options.nodes =
      fields.Int64("nodes", {.min = 1, .max = 100'000'000, .fallback = 20'000});
  return scenario;
}

}  // namespace

absl::StatusOr<DispatchScenario> ReadDispatch(const json& scenario) {
  return ReadScenario<DispatchScenario>(scenario, Read);
}

absl::Status CheckDispatchScenario(const json& scenario) { return ReadDispatch(scenario).status(); }

absl::StatusOr<PlanResult> RunDispatch(const json& json_scenario) {
  const auto scenario = ReadDispatch(json_scenario);
  if (!scenario.ok()) return scenario.status();
  const auto buckets = scenario->boundaries.empty()
                           ? ChooseBuckets(scenario->lengths, scenario->bucketing)
                           : FillBuckets(scenario->lengths, scenario->boundaries);
  if (!buckets.ok()) return buckets.status();
  const DispatchProblem problem{scenario->groups, buckets->lengths, buckets->sequences};
  const auto plan = Dispatch(problem, scenario->options);
  if (!plan.ok()) return plan.status();
  const auto spread = SpreadOverReplicas(problem, *plan);
  const double spread_ms = SpreadMs(problem, spread);
  PlanResult result;
  result.text = absl::StrCat("buckets ", buckets->ToText(), "\n", plan->ToText(problem), "\n");
  absl::StrAppendFormat(&result.text, "slowest replica %.3f s\n", spread_ms / 1000);
  result.json = ToJson(problem, *plan);
  result.json["tokens"] = buckets->tokens;
  result.json["padded_tokens"] = buckets->padded_tokens;
  result.json["slowest_replica_ms"] = spread_ms;
  for (size_t i = 0; i < spread.size(); ++i) {
    result.json["groups"][i]["sequences_of_replicas"] = spread[i];
  }
  return result;
}

}  // namespace lorad::planner::scenario
