// A whole window: the units of all jobs packed together, ordered and verified.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/window/pack_batch.h"
#include "planner/window/turns.h"
#include "planner/window/types.h"

namespace lorad::planner {

// The work of one job in a window.
struct Unit {
  struct Sequence {
    int64_t index = 0;  // in the global batch, in the validation set, or among answers
    int64_t tokens = 0;
    int64_t trained_tokens = 0;
  };
  std::string job;
  SegmentMode mode = SegmentMode::kTrain;
  int64_t step = 0;
  std::vector<Sequence> sequences;
  double learning_rate = 0;  // of a train unit
  bool save = false;         // of a train unit
};

struct WindowInput {
  int64_t capacity_tokens = 0;
  int64_t padding = 1;
  int stages = 1;
  int in_flight = 0;                                       // OrderInput::in_flight,
  PlacesInFlight before = {};                              // and OrderInput::before
  int64_t microbatch_cost_tokens = kMicrobatchCostTokens;  // TurnOptions'
  int64_t first_microbatch = 0;
  std::vector<std::string> frees;
  std::vector<std::pair<std::string, int64_t>> loads;  // (job, step)
  std::vector<std::pair<std::string, int64_t>> saves;  // (job, step) stepped in an earlier window
  std::vector<Unit> units;
  PackLimits pack = {};
};

// Train units are packed into microbatches of their own, evaluate units into others behind them,
// and generate units behind these, all by PackBatch. Of several stages the jobs that train take
// turns, in microbatches that may be shorter than the capacity (turns.h), and microbatches are
// levelled (pack_level.h). Deterministic unless `pack.cancelled` cuts it short; what is packed with
// what never changes a job's bits. INVALID_ARGUMENT where a sequence exceeds the capacity.
// `packings`, if given, gets how the train units of each turn were packed and then the evaluate and
// the generate units, where there are any.
//
// Of several stages the order runs on into the next window where there are units: `left`, which is
// to be given then, gets what is in flight (OrderOperations). Without units the pipeline drains.
// One stage leaves nothing. INTERNAL where the window is wrong, alone or behind what is in flight
// (VerifyWindowAmong).
absl::StatusOr<Window> PlanWindow(const WindowInput& input,
                                  std::vector<PackResult>* packings = nullptr,
                                  PlacesInFlight* left = nullptr);

struct WindowStatistics {
  int64_t microbatches = 0;
  int64_t bound_microbatches = 0;  // no packing has fewer (L2)
  int64_t tokens = 0;
  double adapters_per_microbatch = 0;
  double fill = 0;  // tokens / (microbatches * capacity)
};
WindowStatistics Describe(const Window& window, int64_t capacity_tokens);

}  // namespace lorad::planner
