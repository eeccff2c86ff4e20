#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/engine/slot.h"

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
  bool failed = false;         // not finite, or not loaded: nothing of it is done any more
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

// Consecutive loss rows of one segment.
struct LossSpan {
  Resident* resident = nullptr;
  const v1::Segment* segment = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

// A microbatch from its Forward or Evaluate until what it gave is reported.
struct Flight {
  const v1::Microbatch* microbatch = nullptr;
  int lane = 0;  // of the way back (way_back.h)
  bool backward = false;
  int64_t rows = 0;
  int64_t squared_lengths = 0;
  std::vector<int32_t> ids;
  std::vector<kernels::Segment> segments;
  std::vector<kernels::LossRow> loss_rows;
  std::vector<LossSpan> spans;
  std::unique_ptr<kernels::Batch> batch;
};

}  // namespace lorad::worker
