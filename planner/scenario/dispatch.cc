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

// Fixed boundaries rise, hold every sequence, and lie no higher than a layout where they are used.
void CheckBoundaries(Fields& fields, const DispatchScenario& scenario, int64_t longest) {
  const std::vector<int64_t>& boundaries = scenario.boundaries;
  const size_t before = fields.violations();
  for (size_t j = 1; j < boundaries.size(); ++j) {
    if (boundaries[j] > boundaries[j - 1]) continue;
    fields.ViolateEntry("boundaries", j, "is not above the one before", "let boundaries rise");
  }
  const bool rising = fields.violations() == before;
  std::vector<bool> used(boundaries.size(), false);
  for (size_t i = 0; i < scenario.lengths.size(); ++i) {
    const int64_t length = scenario.lengths[i];
    if (length > boundaries.back()) {
      fields.ViolateEntry("lengths", i, "is longer than the last boundary",
                          "cut it or raise the boundary");
    } else if (rising && length <= longest) {
      const auto bucket = std::lower_bound(boundaries.begin(), boundaries.end(), length);
      used[static_cast<size_t>(bucket - boundaries.begin())] = true;
    }
  }
  for (size_t j = 0; j < boundaries.size(); ++j) {
    if (!used[j] || boundaries[j] <= longest) continue;
    fields.ViolateEntry("boundaries", j, absl::StrCat("is ", boundaries[j]),
                        absl::StrCat("sequences are padded to it, and no layout holds more than ",
                                     longest, " tokens: lower it"));
  }
}

DispatchScenario Read(Fields& fields) {
  DispatchScenario scenario;
  std::vector<Layout> layouts;
  for (Fields& entry : fields.Objects("replicas", {.min = 1, .max = kGroupsMax})) {
    layouts.push_back(ReadLayout(entry));
    const int64_t count = entry.Int64("count", {.min = 1, .max = 65'536, .fallback = 1});
    scenario.groups.push_back({layouts.back(), static_cast<int>(count), {}});
  }
  const int64_t longest = LongestOf(layouts);
  scenario.lengths =
      fields.Int64s("lengths", {.min = 1, .max = kLengthMax}, {.min = 1, .max = kSequencesMax});
  CheckLengths(fields, "lengths", scenario.lengths, longest);
  scenario.bucketing = ReadBucketing(fields, longest);
  const size_t before = fields.violations();
  scenario.boundaries = fields.Int64s("boundaries", {.min = 1, .max = kLengthMax},
                                      {.max = kBucketsMax, .required = false});
  if (fields.violations() == before && !scenario.boundaries.empty()) {
    CheckBoundaries(fields, scenario, longest);
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
