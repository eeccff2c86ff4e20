#include "planner/schedule/footprints.h"

#include <algorithm>
#include <tuple>

#include "planner/schedule/shapes.h"

namespace lorad::planner {

size_t Footprints::BaseOf(const std::string& base_model) {
  return bases_.try_emplace(base_model, bases_.size()).first->second;
}

size_t Footprints::ClassOf(const std::string& base_model, const ModelShape& model,
                           const AdapterShape& adapter, int64_t longest_sequence) {
  const size_t base = BaseOf(base_model);
  const auto found = numbers_.find(std::tie(base, longest_sequence, adapter));
  if (found != numbers_.end()) return found->second;
  classes_.push_back({{base, &model, &adapter, longest_sequence}, {}, {}});
  return numbers_[{base, longest_sequence, adapter}] = classes_.size() - 1;
}

size_t Footprints::KindOf(const WorkerKind& kind) {
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  if (found != kinds_.end()) return static_cast<size_t>(found - kinds_.begin());
  kinds_.push_back(kind);
  return kinds_.size() - 1;
}

int64_t Footprints::SlotBytes(size_t job_class, size_t worker_kind) {
  Class& entry = classes_[job_class];
  if (entry.slot_bytes.size() <= worker_kind) entry.slot_bytes.resize(kinds_.size(), -1);
  int64_t& bytes = entry.slot_bytes[worker_kind];
  if (bytes < 0) {
    bytes =
        BytesOfSlot(*entry.footprint.model, *entry.footprint.adapter, kinds_[worker_kind].device)
            .total();
  }
  return bytes;
}

int64_t Footprints::GroupBytes(size_t base, const ModelShape& model, const GroupShape& shape) {
  const DeviceShape& device = shape.device;
  const ShapeKey key{base,
                     shape.capacity_tokens,
                     shape.longest_sequence,
                     static_cast<int>(device.kind),
                     device.threads,
                     device.multiprocessors,
                     device.value_bytes,
                     static_cast<int>(shape.recomputation),
                     shape.rank_max,
                     shape.slots_max};
  const auto [found, is_new] = group_bytes_.try_emplace(key, 0);
  if (is_new) found->second = BytesOfGroup(model, shape).total();
  return found->second;
}

const Footprints::Alone& Footprints::AloneOn(size_t job_class, size_t worker_kind) {
  Class& entry = classes_[job_class];
  if (entry.alone.size() <= worker_kind) entry.alone.resize(kinds_.size());
  std::optional<Alone>& alone = entry.alone[worker_kind];
  if (!alone) {
    const WorkerKind& kind = kinds_[worker_kind];
    alone.emplace();
    alone->shape = ShapeAlone(*this, job_class, worker_kind);
    const Footprint& job = entry.footprint;
    alone->bytes =
        GroupBytes(job.base, *job.model, alone->shape) + SlotBytes(job_class, worker_kind);
    alone->fits = Fits(alone->bytes, kind.budget_bytes);
  }
  return *alone;
}

}  // namespace lorad::planner
