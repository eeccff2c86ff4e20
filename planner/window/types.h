// The words of the planner: what a window holds, without a row's tokens. worker.v1's Window is the
// same thing on the wire, with the tokens filled in by the data feed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lorad::planner {

enum class SegmentMode { kTrain, kEvaluate, kReference, kGenerate };

// Whether a microbatch of such segments has a backward pass.
constexpr bool Trains(SegmentMode mode) {
  return mode == SegmentMode::kTrain || mode == SegmentMode::kReference;
}

// Consecutive tokens of one sequence in a microbatch, all of one adapter.
struct Segment {
  std::string job = {};
  SegmentMode mode = SegmentMode::kTrain;
  int64_t step = 0;      // train: the step its batch belongs to, from 1; evaluate: steps done
  int64_t sequence = 0;  // its index in the global batch, in the validation set, or among answers
  int64_t first_position = 0;
  int64_t tokens = 0;

  bool operator==(const Segment&) const = default;
};

// The unit of pipeline work: segments of one or more adapters.
struct Microbatch {
  int64_t number = 0;  // counts up within an epoch
  std::vector<Segment> segments;

  bool operator==(const Microbatch&) const = default;
};

enum class OperationKind {
  kRecv,
  kSend,
  kForward,
  kBackward,
  kEvaluate,
  kNormUp,
  kClipDown,
  kStep,
  kSave,
  kLoadSlot,
  kFreeSlot,
  kNoop,
  kGenerate,
};

// One entry of a stage's list. Fields that a kind does not use stay at their defaults.
struct Operation {
  OperationKind kind = OperationKind::kNoop;
  int64_t microbatch = -1;   // Recv, Send, Forward, Backward, Evaluate, Generate, Noop
  std::string job = {};      // NormUp, ClipDown, Step, Save, LoadSlot, FreeSlot
  int64_t step = 0;          // the same but FreeSlot
  double learning_rate = 0;  // Step
  int peer = -1;             // Recv, Send: the other stage
  bool gradient = false;     // Recv, Send: a gradient backward, else activations forward

  bool operator==(const Operation&) const = default;
};

// One job's global batch in a window.
struct Batch {
  std::string job = {};
  int64_t step = 0;
  int64_t sequences = 0;
  int64_t trained_tokens = 0;
  int64_t tokens = 0;

  bool operator==(const Batch&) const = default;
};

// The end of a global batch: a Step after the last Backward of any of its microbatches.
struct BatchEnd {
  std::string job = {};
  int64_t step = 0;
  double learning_rate = 0;
  bool save = false;  // Save stands directly after Step

  bool operator==(const BatchEnd&) const = default;
};

// A place in the pipeline: a microbatch, or a Noop that keeps one free.
struct Place {
  int64_t number = 0;
  OperationKind kind = OperationKind::kNoop;  // kForward, kEvaluate, kGenerate or kNoop
  std::vector<BatchEnd> ends = {};            // batches whose last microbatch it is
  int64_t tokens = 0;                         // of the microbatch

  bool operator==(const Place&) const = default;
};

// What a window leaves in the pipeline: its newest places, oldest first, forwarded on every stage
// but not yet all backwarded and stepped. Where a cut has dropped some of them these are Noops, in
// their places, and the ends of what has lost something are gone.
using PlacesInFlight = std::vector<Place>;

struct Window {
  std::vector<Microbatch> microbatches;
  std::vector<Batch> batches;
  std::vector<std::vector<Operation>> stages;  // operations of each stage

  bool operator==(const Window&) const = default;
};

int64_t Tokens(const Microbatch& microbatch);
// Different adapters in it.
int64_t Adapters(const Microbatch& microbatch);

// For logs and tests. "F3", "B3", "E3", "G3", "STEP a/2 lr=0.001", "SAVE a/2", "LOAD a/2",
// "FREE a", "NORM_UP a/2", "CLIP_DOWN a/2", "NOOP 3", "SEND F3>1", "RECV B3<1".
std::string ToText(const Operation& operation);
// Joined by "; ".
std::string ToText(const std::vector<Operation>& operations);
// "3: train a/2#0[17] a/2#1[40], evaluate b/1#7[9]"
std::string ToText(const Microbatch& microbatch);
// "a/2: 3 sequences, 50 of 90 tokens trained"
std::string ToText(const Batch& batch);
// One line for each batch, microbatch and stage.
std::string ToText(const Window& window);

}  // namespace lorad::planner
