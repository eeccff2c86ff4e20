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

// How far each stage may reach: where stage s begins with block i, its blocks end at reach[s][i]
// (exclusive) at most, as it has memory for no more. Empty: each may have any.
using Reach = std::vector<std::vector<int>>;

// The cut of block_ms (finite, >= 0; forward and backward together) into S non-empty stages, none
// of which exceeds its reach, with
//   min over cuts of  max_s sum_{b of stage s} ms_b,
// among those the one with the least sum of squares of the stages' times, among those the one that
// cuts earliest. Dynamic programming over (stages, blocks): O(S n m), m blocks of a stage.
// INVALID_ARGUMENT where there are fewer blocks than stages, no stage, or a time is negative or not
// finite; NOT_FOUND where every cut exceeds the reach of some stage.
absl::StatusOr<Cut> CutStages(const std::vector<double>& block_ms, int stages,
                              const Reach& reach = {});

// "0-39 1001.2 ms | 40-79 998.0 ms"
std::string ToText(const Cut& cut);

}  // namespace lorad::planner
