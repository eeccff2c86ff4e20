// lorad-plan fit: time and memory models from recorded runs, and what they predict.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/memory_fit.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

// {"microbatches": [{"tokens": 900, "squared_lengths": 81000, "adapter_work": 4e9, "ms": 12.5}],
//  "microbatches_to_come": [{"tokens": 500, "squared_lengths": 25000, "adapter_work": 1e9}],
//  "peaks": [{"counted_bytes": 1000000, "tokens": 900, "squared_lengths": 81000, "peak_bytes":
//  1100000}], "peaks_to_come": [{"counted_bytes": 1000000, "tokens": 500, "squared_lengths":
//  25000}]}
// At least one of "microbatches" and "peaks".
struct FitScenario {
  struct Microbatch {
    double tokens = 0, squared_lengths = 0, adapter_work = 0;
    double ms = 0;  // of those to come: 0
  };
  std::vector<Microbatch> microbatches, microbatches_to_come;
  std::vector<MemoryFit::Peak> peaks, peaks_to_come;  // peak_bytes of those to come: 0
};

absl::StatusOr<FitScenario> ReadFit(const nlohmann::json& scenario);
absl::Status CheckFit(const nlohmann::json& scenario);
absl::StatusOr<PlanResult> RunFit(const nlohmann::json& scenario);

}  // namespace lorad::planner::scenario
