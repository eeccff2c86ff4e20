// A model on several workers: which of them, where it is cut, and in what shape. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "planner/cost/memory.h"
#include "planner/stages/stage_bytes.h"

namespace lorad::planner {

// As a stage keeps marks for each microbatch in flight, of which there are as many as stages.
inline constexpr int kStagesMax = sizes::kInFlightMax;

// A worker that may have a stage.
struct StageWorker {
  std::string name;
  DeviceShape device = {};
  int64_t budget_bytes = 0;
  std::string numerics_id = {};  // empty: it has no stage
  std::string transport = {};    // by which it reaches other stages, which have the same
  std::string host = {};
  bool nccl = false;                     // by which it alone exchanges tensors, on its own host too
  int64_t microbatch_tokens = 0;         // of a group that it is in; 0: as suits the device
  std::optional<StageRange> holds = {};  // of the model, from before: its blocks' weights
};

// Of a job alone. Borrowed.
struct StageJob {
  const ModelShape& model;
  const AdapterShape& adapter;
  int64_t longest_sequence = 0;
  int32_t stages = 0;  // so many; 0: the fewest, two at least
};

// A shape that is tried, with room for so many adapters like the job's.
struct ShapeChoice {
  GroupShape shape;
  int64_t adapters = 1;
};

// Those for a group on these workers, the best first. REQUIRES of the answer: not empty.
using ShapesOn =
    absl::FunctionRef<std::vector<ShapeChoice>(const std::vector<const StageWorker*>& workers)>;

// By stage.
struct Placement {
  std::vector<size_t> workers;  // indexes of those asked about
  std::vector<StageRange> ranges;
  GroupShape shape;     // with the device of the first one's
  StageBytes bytes;     // of its group and the job's slot
  bool fits = false;    // each of them its worker
  size_t tightest = 0;  // the stage that has the least room, or lacks the most, of its budget
};

// How many borders of each stage tensors may cross by NCCL: those between GPUs of two hosts, and of
// one where either worker was told to take no other way; none where these reach each other by MPI.
std::vector<int> BordersByNccl(const std::vector<const StageWorker*>& workers);

// The bytes of a group's stages, without slots, each on its worker's device; and those of a slot.
// `borders`: by NCCL.
StageBytes BytesOfStages(const ModelShape& model, const GroupShape& shape,
                         const std::vector<StageRange>& ranges,
                         const std::vector<DeviceShape>& devices, const std::vector<int>& borders);
StageBytes SlotBytesOfStages(const ModelShape& model, const AdapterShape& adapter,
                             const std::vector<StageRange>& ranges,
                             const std::vector<DeviceShape>& devices);

// The fewest workers (or as many as the job says), of one numerics id and transport, that hold the
// job. Of equally few those on the fewest hosts, then those that hold most of the model, GPUs
// before CPUs, the larger budgets, the first names. On each host the largest budgets are taken;
// where several hosts are needed, those that have the most workers, and if these will not do the
// largest budgets wherever they are. Stages lie on one host after another, on each by falling
// budget. The shape is the first of `shapes` in which the model can be cut so that every stage fits
// its worker with its blocks, what its microbatches in flight keep, its transfers and the slots;
// the cut is the fastest of those (blocks.h, cut.h). Of workers that are alike, on one host, each
// has the stage whose blocks it holds, so that what remains of a group that has lost a worker reads
// nothing again. None where nothing fits. O(stages * sets of workers * shapes * (log blocks +
// workers)), and the cut once.
std::optional<Placement> PlaceStages(const StageJob& job, const std::vector<StageWorker>& workers,
                                     ShapesOn shapes);

// For the one who asks why there is none: the placement, in its last shape, whose tightest stage
// lacks the least of its budget. None where there are no two workers of one numerics id and
// transport, or fewer than the job says.
std::optional<Placement> PlaceNearest(const StageJob& job, const std::vector<StageWorker>& workers,
                                      ShapesOn shapes);

// Where there is not even that for a base model that is registered for so many stages.
std::string WorkersLackFor(int32_t stages);

}  // namespace lorad::planner
