// Layouts and buckets as the scenarios of deploy and dispatch give them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/replicas/bucketing.h"
#include "planner/replicas/dispatch.h"
#include "planner/replicas/layout.h"
#include "planner/scenario/fields.h"

namespace lorad::planner::scenario {

inline constexpr int64_t kLengthMax = int64_t{1} << 30;
inline constexpr size_t kSequencesMax = 1'000'000;  // of a step, or of all sampled steps

// {"tensor_parallel": 2, "pipeline_stages": 1, "capacity_tokens": 4096, "constant_ms": 90,
//  "token_ms": 0.09, "squared_ms": 2e-6}: times of one microbatch on one stage.
Layout ReadLayout(Fields& fields);

// The longest sequence that a layout holds, as far as that is known.
int64_t LongestOf(const std::vector<Layout>& layouts);

// The remedy for a sequence that is longer.
std::string TooLong(int64_t longest);
void CheckLengths(Fields& fields, const std::string& name, const std::vector<int64_t>& lengths,
                  int64_t longest);

// "buckets" and "granularity", both optional; no boundary lies above what the layouts hold.
BucketingOptions ReadBucketing(Fields& fields, int64_t longest);

nlohmann::ordered_json ToJson(const DispatchProblem& problem, const DispatchPlan& plan);

}  // namespace lorad::planner::scenario
