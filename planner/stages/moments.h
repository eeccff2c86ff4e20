// What the stages of a pipeline did when: their shares, and what their order would have allowed.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/window/execute.h"

namespace lorad::planner {

// A microbatch on one stage. Spans on one clock for all stages; one that ends where it begins
// did not take place.
struct MicrobatchMoments {
  int64_t number = 0;
  bool evaluates = false;  // `forward` is its Evaluate; it has no backward
  Span forward = {};
  Span backward = {};
  Span activations = {};  // from the stage before
  Span gradient = {};     // from the stage behind
};

// Of one stage, in any order; each microbatch once.
using StageMoments = std::vector<MicrobatchMoments>;

struct StageShares {
  double busy = 0;      // forward and backward
  double waiting = 0;   // 1 - busy
  double transfer = 0;  // a tensor came or went, beside what was computed or not
};

// Over the steady part: on each stage from the Forward of the first microbatch that all of them
// have to that of the last one, so that the same work lies between the marks on every stage
// (SimulateOptions). Filling and draining are outside.
struct Shares {
  int64_t microbatches = 0;  // between the marks; 0: too few were measured, and all is 0
  double steady_ms = 0;      // the longest stage's
  double bubble_ratio = 0;   // idle time of all stages / steady time of all stages
  std::vector<StageShares> stages;
};

// O(n log n) in the number of microbatches.
Shares SharesOf(const std::vector<StageMoments>& stages);

// The same operations in the same order on each stage, each as long as it was, each begun as early
// as that allows (Execute): what is left of the time are waits for hosts, orders and loads. Stages
// and microbatches as given. Only microbatches that all stages have; INTERNAL where the order
// cannot be run, so where the moments are not those of a pipeline.
absl::StatusOr<std::vector<StageMoments>> RunAgain(const std::vector<StageMoments>& stages);

}  // namespace lorad::planner
