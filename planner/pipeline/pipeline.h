// Global batches of several adapters through a pipeline of stages, whole: groups, packing,
// interleaving, cutting the model, order, proof and simulation. LoRAFusion 4.2 (its figure 20 is
// examples/plans/pipeline-lorafusion-*.json), mLoRA 3.2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/time.h"
#include "planner/pipeline/grouping.h"
#include "planner/pipeline/simulate.h"
#include "planner/stages/cut.h"
#include "planner/window/execute.h"
#include "planner/window/pack.h"
#include "planner/window/types.h"

namespace lorad::planner {

struct PipelineAdapter {
  std::string name;
  std::vector<std::vector<int64_t>> batches;  // tokens of each sequence of each global batch, > 0
  double trained_share = 1;                   // of its tokens that the head sees, 0 .. 1
};

// A part of the model that is not cut.
struct PipelineBlock {
  std::string name;  // "attention 3"
  TimeCoefficients forward, backward;
  bool trained_only = false;    // the head: computed on trained tokens alone
  double activation_bytes = 0;  // kept for Backward, of one token
};

// How the sequences of a group's global batch become microbatches, as few as pack_batch.h finds.
enum class PipelinePacking {
  kLevel,   // of equal lengths (pack_level.h): unequal neighbours make stages wait
  kPacked,  // full, but the last
  kMerged,  // full; the last filled up from the next global batch (pack_merge.h)
};

inline constexpr int kGroupsTried = 8;
inline constexpr int64_t kPipelinePlacesMax = 400000;  // microbatches * stages of a plan

struct PipelineInput {
  int stages = 1;
  // OrderInput::in_flight; where it is above `stages`, what simulates best between the two.
  int in_flight = 0;
  int groups = 0;  // 0: as many (up to kGroupsTried) as make the makespan least, the fewest of
                   // equals
  PackOptions pack;
  PipelinePacking packing = PipelinePacking::kLevel;
  int64_t pack_nodes = 20'000'000;  // of PackLimits, shared by all batches and groupings
  std::vector<PipelineAdapter> adapters;
  std::vector<PipelineBlock> blocks;
  std::vector<int> first_blocks;   // of each stage; empty: cut by time
  double transfer_latency_ms = 0;  // of a transfer between neighbours,
  double transfer_token_ms = 0;    // and for each token of the microbatch
  double step_ms = 0;
  Buffers buffers;
  // Steady: `measured` consecutive global batches of each job behind the first `skipped`. 0: all.
  int64_t skipped = 0;
  int64_t measured = 0;
};

struct PipelinePlan {
  Groups groups;
  Cut cut;        // stage_ms: the sum over all microbatches
  Window window;  // verified
  int64_t noops = 0;
  int64_t bound_microbatches = 0;  // no packing of these groups has fewer (L2)
  Simulation simulation;
  std::vector<double> activation_bytes;  // most that a stage keeps for its microbatches in flight
};

// Deterministic. INVALID_ARGUMENT where a sequence exceeds the capacity, nothing is to be done,
// groups, stages or blocks do not fit one another, or the plan has more than kPipelinePlacesMax
// places; otherwise as Execute and Simulate.
absl::StatusOr<PipelinePlan> PlanPipeline(const PipelineInput& input);

// Groups, cut, microbatches in short, and the simulation.
std::string ToText(const PipelinePlan& plan);

}  // namespace lorad::planner
