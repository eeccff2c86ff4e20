// Layers into the stages of a pipeline, by time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::planner {

// A model as a row of blocks that are not cut: the embedding, half-layers (attention | MLP) or
// whole layers, the head with the loss. Stage s runs blocks first[s] .. first[s + 1] - 1.
struct Cut {
  std::vector<int> first;        // S + 1 entries; 0 first, the number of blocks last
  std::vector<double> stage_ms;  // S entries

  bool operator==(const Cut&) const = default;
};

// The cut of block_ms (finite, >= 0; forward and backward together) into S non-empty stages with
//   min over cuts of  max_s sum_{b of stage s} ms_b,
// among those the one with the least sum of squares of the stages' times, among those the one that
// cuts earliest. Dynamic programming over (stages, blocks): O(S n) for the first,
// O(S n m) for the rest, m blocks of a stage. INVALID_ARGUMENT where there
// are fewer blocks than stages, no stage, or a time is negative or not finite.
absl::StatusOr<Cut> CutStages(const std::vector<double>& block_ms, int stages);

// "0-39 1001.2 ms | 40-79 998.0 ms"
std::string ToText(const Cut& cut);

}  // namespace lorad::planner
