#include "planner/scenario/layouts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lorad::planner::scenario {

using nlohmann::ordered_json;

Layout ReadLayout(Fields& fields) {
  Layout layout;
  layout.tensor_parallel =
      static_cast<int>(fields.Int64("tensor_parallel", {.min = 1, .max = 1024}));
  layout.pipeline_stages =
      static_cast<int>(fields.Int64("pipeline_stages", {.min = 1, .max = 1024}));
  layout.capacity_tokens = fields.Int64("capacity_tokens", {.min = 1, .max = kLengthMax});
  const NumberRule ms{.min = 0, .max = 1e9, .fallback = 0};
  layout.stage_ms.constant_ms = fields.Number("constant_ms", ms);
  layout.stage_ms.token_ms = fields.Number("token_ms", {.min = 0, .max = 1e9});
  layout.stage_ms.squared_ms = fields.Number("squared_ms", ms);
  if (fields.ok() && layout.stage_ms.token_ms <= 0 && layout.stage_ms.squared_ms <= 0) {
    fields.Violate("token_ms", "is 0 as squared_ms is", "give the time of a token");
  }
  return layout;
}

BucketingOptions ReadBucketing(Fields& fields, const std::vector<Layout>& layouts) {
  BucketingOptions options;
  options.longest = 1;
  for (const Layout& layout : layouts) {
    options.longest = std::max(options.longest, layout.capacity_tokens);
  }
  options.buckets = static_cast<int>(fields.Int64(
      "buckets",
      {.min = 1, .max = static_cast<int64_t>(kBucketsMax), .fallback = options.buckets}));
  options.granularity =
      fields.Int64("granularity", {.min = 1, .max = kLengthMax, .fallback = options.granularity});
  return options;
}

void CheckLengths(Fields& fields, const std::string& name, const std::vector<int64_t>& lengths,
                  const std::vector<Layout>& layouts) {
  int64_t longest = 0;
  for (const Layout& layout : layouts) longest = std::max(longest, layout.capacity_tokens);
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] <= longest) continue;
    fields.ViolateEntry(name, i, absl::StrCat("is ", lengths[i]),
                        absl::StrCat("no layout holds more than ", longest,
                                     " tokens: cut the sequence or add a layout"));
  }
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
