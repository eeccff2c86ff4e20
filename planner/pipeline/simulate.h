// A window's lists in pretended time: timeline, bubbles, makespan, microbatches in flight.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pipeline/timeline.h"
#include "planner/window/execute.h"
#include "planner/window/types.h"

namespace lorad::planner {

// The cost of one microbatch; one entry for each stage. Evaluate takes as long as Forward.
struct MicrobatchCost {
  std::vector<double> forward_ms, backward_ms;
  double transfer_ms = 0;  // of its activations, or their gradient, to a neighbour
};

struct SimulateOptions {
  std::map<int64_t, MicrobatchCost> costs;  // by number
  double step_ms = 0;                       // of Step; everything else is free
  Buffers buffers;
  // The steady part: on each stage from the Forward of microbatch `from` to that of microbatch
  // `to`, so that the same work lies between the marks on every stage. Idle time before it is
  // filling, idle time behind it is draining. -1: from the stage's first operation, to its last
  // one's end.
  int64_t from = -1;
  int64_t to = -1;
};

struct StageSimulation {
  double busy_ms = 0;      // Forward, Backward, Evaluate, Step
  double filling_ms = 0;   // idle before the steady part
  double draining_ms = 0;  // idle behind it, to the end of the whole window
  double steady_ms = 0;    // length of the steady part,
  double idle_ms = 0;      // and what of it is idle
  int64_t in_flight = 0;   // most microbatches between their Forward and the end of their Backward
  int64_t in_flight_tokens = 0;  // most tokens of them
};

struct Simulation {
  double makespan_ms = 0;
  double bubble_ratio = 0;  // sum of idle_ms / sum of steady_ms: filling and draining apart
  double idle_ratio = 0;    // 1 - sum of busy_ms / (stages * makespan_ms): with them
  std::vector<StageSimulation> stages;
  Execution execution;
};

// Runs the lists (Execute) and measures. O(operations * stages). INVALID_ARGUMENT where a
// microbatch has no cost, a cost is not finite or negative, a mark is no microbatch of every stage
// or `to` comes before `from`; INTERNAL as Execute.
absl::StatusOr<Simulation> Simulate(const Window& window, const SimulateOptions& options);

// Three tracks for each stage: compute, send, receive.
Timeline TimelineOf(const Window& window, const Execution& execution, const std::string& title);

// "makespan 12 ms, bubble ratio 25.00 % ..." and a line for each stage.
std::string ToText(const Simulation& simulation);

}  // namespace lorad::planner
