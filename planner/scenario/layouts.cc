#include "planner/scenario/layouts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lorad::planner::scenario {

using nlohmann::ordered_json;

Layout ReadLayout(Fields& fields) {
  const size_t before = fields.violations();
  Layout layout;
  layout.tensor_parallel =
      static_cast<int>(fields.Int64("tensor_parallel", {.min = 1, .max = 1024}));
  layout.pipeline_stages =
      static_cast<int>(fields.Int64("pipeline_stages", {.min = 1, .max = 1024}));
  const size_t before_capacity = fields.violations();
  layout.capacity_tokens = fields.Int64("capacity_tokens", {.min = 1, .max = kLengthMax});
  if (fields.violations() > before_capacity || !fields.is_object()) {
    layout.capacity_tokens = kLengthMax;  // not known: no length is too long for it
  }
  const NumberRule ms{.min = 0, .max = 1e9, .fallback = 0};
  layout.stage_ms.constant_ms = fields.Number("constant_ms", ms);
  layout.stage_ms.token_ms = fields.Number("token_ms", {.min = 0, .max = 1e9});
  layout.stage_ms.squared_ms = fields.Number("squared_ms", ms);
  if (fields.violations() == before && layout.stage_ms.token_ms <= 0 &&
      layout.stage_ms.squared_ms <= 0) {
    fields.Violate("token_ms", "is 0 as squared_ms is", "give the time of a token");
  }
  return layout;
}

int64_t LongestOf(const std::vector<Layout>& layouts) {
  int64_t longest = 0;
  for (const Layout& layout : layouts) longest = std::max(longest, layout.capacity_tokens);
  return layouts.empty() ? kLengthMax : longest;
}

BucketingOptions ReadBucketing(Fields& fields, int64_t longest) {
  BucketingOptions options;
  options.longest = longest;
  options.buckets = static_cast<int>(fields.Int64(
      "buckets",
      {.min = 1, .max = static_cast<int64_t>(kBucketsMax), .fallback = options.buckets}));
  options.granularity =
      fields.Int64("granularity", {.min = 1, .max = kLengthMax, .fallback = options.granularity});
  return options;
}

void CheckLengths(Fields& fields, const std::string& name, const std::vector<int64_t>& lengths,
                  int64_t longest) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] <= longest) continue;
    fields.ViolateEntry(name, i, absl::StrCat("is ", lengths[i]), TooLong(longest));
  }
}

std::string TooLong(int64_t longest) {
  return absl::StrCat("no layout holds more than ", longest,
                      " tokens: cut the sequence or add a layout");
}

ordered_json ToJson(const DispatchProblem& problem, const DispatchPlan& plan) {
  ordered_json groups = ordered_json::array();
  for (size_t i = 0; i < problem.groups.size(); ++i) {
    const ReplicaGroup& group = problem.groups[i];
    groups.push_back({{"tensor_parallel", group.layout.tensor_parallel},
                      {"pipeline_stages", group.layout.pipeline_stages},
                      {"replicas", group.replicas},
                      {"ms", plan.group_ms[i]},
                      {"sequences", plan.sequences[i]}});
  }
  return {{"step_ms", plan.step_ms},        {"bound_ms", plan.bound_ms},
          {"optimal", plan.optimal},        {"lengths", problem.lengths},
          {"sequences", problem.sequences}, {"groups", std::move(groups)}};
}

}  // namespace lorad::planner::scenario
