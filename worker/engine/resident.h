#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/engine/sampling.h"
#include "worker/engine/slot.h"
#include "worker/transport/transport.h"

// The engine's records of a job that has a slot, and of a microbatch that is on the device.

namespace lorad::worker {

struct SequenceLoss {
  double sum = 0;  // of -log p
  int64_t trained_tokens = 0;
};

// One job's global batch between its first Forward and its Step.
struct OpenBatch {
  v1::Batch expected;                      // by the window
  std::map<int64_t, SequenceLoss> losses;  // by sequence index: the order they are added in
  int64_t tokens = 0;
  double started_ms = 0;
};

// The decision of stage 0 on all norms, which ClipDown brings to all.
struct Verdict {
  int64_t step = 0;
  double norm = 0;
  double clip_factor = 1;
};

struct Resident {
  std::unique_ptr<Slot> slot;  // null if it could not be loaded
  int32_t index = -1;          // in the adapter table
  // Not finite, or not loaded, as far as this stage knows: what its rows give is void. They are
  // computed with the adapter off, for the other stages may not know yet,
  bool failed = false;
  // until a ClipDown tells all of them: from there on its rows are left out.
  bool dropped = false;
  std::optional<OpenBatch> batch;
  std::optional<int64_t> normed_step;  // of the batch whose norm is on its way back
  std::optional<Verdict> verdict;

  // The batch ends, with its step or without.
  void CloseBatch() {
    batch.reset();
    normed_step.reset();
    verdict.reset();
  }
};

// Consecutive loss rows of one segment; of one that generates the row whose logits are wanted.
struct LossSpan {
  // Null: a cut has dropped the batch that it is of, or it generates without an adapter.
  Resident* resident = nullptr;
  const v1::Segment* segment = nullptr;
  int64_t first = 0;
  int64_t count = 0;  // 0 of a segment that generates: its rows are left out
  int32_t index = 0;  // of the segment in its microbatch
  bool lost = false;  // what it gives is void, here or on a stage before
};

// A microbatch from its coming, its Forward or Evaluate until what it gave is reported.
struct Flight {
  std::shared_ptr<const v1::Window> window;  // shared: may end before its microbatches do
  const v1::Microbatch* microbatch = nullptr;
  size_t place = 0;        // of the model (Model::Pass)
  int lane = -1;           // of the way back (way_back.h), from its Forward on
  bool evaluates = false;  // there is no way back: Evaluate, or Generate
  bool backward = false;
  int64_t gradient_rows = 0;  // that have come from the stage behind
  int64_t rows = 0;
  int64_t squared_lengths = 0;
  std::vector<int32_t> ids;
  std::vector<kernels::Segment> segments;
  std::vector<kernels::LossRow> loss_rows;
  std::vector<LossSpan> spans;
  std::vector<int32_t> logit_rows;  // of the segments that generate, in their order
  std::vector<ChosenToken> chosen;  // of these, as far as their logits have been read
  std::unique_ptr<kernels::Batch> batch;
  std::optional<Landing> activations, gradient;  // that have come, of several stages

  int64_t number() const { return microbatch->number(); }
  bool forward() const { return lane >= 0; }
  int64_t LogitRows() const { return static_cast<int64_t>(logit_rows.size()); }
  int64_t LossRows() const { return static_cast<int64_t>(loss_rows.size()); }
};

}  // namespace lorad::worker
