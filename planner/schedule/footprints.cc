#include "planner/schedule/footprints.h"

#include <algorithm>
#include <tuple>

#include "planner/schedule/shapes.h"

namespace lorad::planner {

size_t Footprints::BaseOf(const std::string& base_model) {
  return bases_.try_emplace(base_model, bases_.size()).first->second;
}

size_t Footprints::ClassOf(const std::string& base_model, const ModelShape& model,
                           const AdapterShape& adapter, int64_t longest_sequence, int32_t stages) {
  const size_t base = BaseOf(base_model);
  const auto found = numbers_.find(std::tie(base, longest_sequence, stages, adapter));
  if (found != numbers_.end()) return found->second;
  classes_.push_back({{.base = base,
                       .model = &model,
                       .adapter = &adapter,
                       .longest_sequence = longest_sequence,
                       .stages = stages,
                       .adapter_parameters = AdapterParameters(model, adapter)},
                      {},
                      {}});
  return numbers_[{base, longest_sequence, stages, adapter}] = classes_.size() - 1;
}

size_t Footprints::KindOf(const WorkerKind& kind) {
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  if (found != kinds_.end()) return static_cast<size_t>(found - kinds_.begin());
  kinds_.push_back(kind);
  return kinds_.size() - 1;
}

StageBytes Footprints::SlotBytes(size_t job_class, size_t worker_kind) {
  Class& entry = classes_[job_class];
  if (entry.slot_bytes.size() <= worker_kind) entry.slot_bytes.resize(kinds_.size());
  StageBytes& bytes = entry.slot_bytes[worker_kind];
  if (bytes.size() > 0) return bytes;
  const Footprint& job = entry.footprint;
  const WorkerKind& kind = kinds_[worker_kind];
  if (kind.stages.empty()) {
    bytes = StageBytes(BytesOfSlot(*job.model, *job.adapter, kind.device).total());
  }
  for (const WorkerKind::Stage& stage : kind.stages) {
    bytes.Append(BytesOfSlot(*job.model, *job.adapter, stage.device, stage.range).total());
  }
  return bytes;
}

StageBytes Footprints::GroupBytes(size_t base, const ModelShape& model, const GroupShape& shape,
                                  size_t worker_kind) {
  const WorkerKind& kind = kinds_[worker_kind];
  const bool several = !kind.stages.empty();
  const DeviceShape& device = shape.device;
  const ShapeKey key{base,
                     several ? worker_kind + 1 : 0,
                     shape.capacity_tokens,
                     shape.longest_sequence,
                     static_cast<int>(device.kind),
                     device.threads,
                     device.multiprocessors,
                     device.value_bytes,
                     static_cast<int>(shape.recomputation),
                     shape.rank_max,
                     shape.slots_max};
  const auto [found, is_new] = group_bytes_.try_emplace(key);
  StageBytes& bytes = found->second;
  if (!is_new) return bytes;
  if (!several) bytes = StageBytes(BytesOfGroup(model, shape).total());
  for (const WorkerKind::Stage& stage : kind.stages) {
    GroupShape there = shape;
    there.device = stage.device;
    bytes.Append(BytesOfGroup(model, there, stage.range).total() +
                 BytesOfNccl(stage.borders_by_nccl));
  }
  return bytes;
}

bool Footprints::Fit(const StageBytes& bytes, size_t worker_kind) const {
  const WorkerKind& kind = kinds_[worker_kind];
  if (kind.stages.empty()) return Fits(bytes[0], kind.budget_bytes);
  for (size_t s = 0; s < kind.stages.size(); ++s) {
    if (!Fits(bytes[s], kind.stages[s].budget_bytes)) return false;
  }
  return true;
}

const Footprints::Alone& Footprints::AloneOn(size_t job_class, size_t worker_kind) {
  Class& entry = classes_[job_class];
  if (entry.alone.size() <= worker_kind) entry.alone.resize(kinds_.size());
  std::optional<Alone>& alone = entry.alone[worker_kind];
  if (alone) return *alone;
  alone.emplace();
  const Footprint& job = entry.footprint;
  const WorkerKind& kind = kinds_[worker_kind];
  const auto stages = static_cast<int32_t>(std::max<size_t>(1, kind.stages.size()));
  if (!kind.stages.empty() && kind.base != job.base) return *alone;
  alone->shape = ShapeAlone(*this, job_class, worker_kind);
  alone->bytes = GroupBytes(job.base, *job.model, alone->shape, worker_kind) +
                 SlotBytes(job_class, worker_kind);
  alone->fits = (job.stages == 0 || job.stages == stages) && Fit(alone->bytes, worker_kind);
  return *alone;
}

}  // namespace lorad::planner
