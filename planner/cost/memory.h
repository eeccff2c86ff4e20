// Bytes of a stage, or of a whole model on one, by the engine's own counting rules: those of
// worker/engine/model.h and worker/engine/slot.h as formulas, and the layouts of kernels/ (sizes/)
// as they are. tests/worker holds them equal to what the arena hands out, byte for byte.
#pragma once

#include <cstdint>

#include "sizes/group.h"

namespace lorad::planner {

using sizes::AdapterShape;
using sizes::DeviceKind;
using sizes::DeviceShape;
using sizes::GroupShape;
using sizes::ModelShape;
using sizes::Recomputation;
using sizes::StageRange;
using sizes::ToText;

// No tokens yet. On a CPU products are computed again, on a GPU nothing is at first. On a GPU the
// workspace is planned for 32 adapters of up to rank 64, and a group is formed for more where a job
// brings more.
GroupShape EmptyShape(const DeviceShape& device);

// The bytes of a group's stage, whoever trains on it.
struct GroupBytes {
  int64_t weights = 0;
  int64_t activations = 0;
  int64_t transfers = 0;  // what comes from a neighbouring stage, and what is on its way there
  int64_t workspace = 0;
  int64_t total() const { return weights + activations + transfers + workspace; }
};

// The bytes of one slot.
struct SlotBytes {
  int64_t adapters = 0;   // masters, and on a GPU the copies that products read
  int64_t optimizer = 0;  // moments and gradient accumulators
  int64_t staging = 0;    // what Save sends up; on a GPU not in its memory
  int64_t total() const { return adapters + optimizer + staging; }
};

int64_t AdapterParameters(const ModelShape& model, const AdapterShape& adapter);
// All blocks of a model: two a layer.
StageRange WholeModel(const ModelShape& model);

// Of one stage; without a range, of all blocks on one stage.
GroupBytes BytesOfGroup(const ModelShape& model, const GroupShape& group);
GroupBytes BytesOfGroup(const ModelShape& model, const GroupShape& group, const StageRange& range);
SlotBytes BytesOfSlot(const ModelShape& model, const AdapterShape& adapter,
                      const DeviceShape& device = {});
SlotBytes BytesOfSlot(const ModelShape& model, const AdapterShape& adapter,
                      const DeviceShape& device, const StageRange& range);

// What NCCL takes of a GPU for a stage that exchanges tensors by it over so many of its borders:
// once for itself, and a communicator for each direction of each border. Measured with 2.28.9 on
// H200s: 0.4 GiB, and 0.3 to 0.6 GiB each, of which this is the most.
int64_t BytesOfNccl(int borders);

// estimate * (1 + kMemoryMargin) <= budget.
inline constexpr double kMemoryMargin = 0.02;
bool Fits(int64_t bytes, int64_t budget_bytes);
// "40 MiB, of which 2 % are kept free" where that alone keeps such an estimate out, else "40 MiB".
std::string BudgetText(int64_t budget_bytes, int64_t bytes);

}  // namespace lorad::planner
