#include "planner/schedule/footprints.h"

#include <algorithm>
#include <tuple>

#include "planner/schedule/shapes.h"

namespace lorad::planner {
namespace {

WorkerKind WithoutBudgets(WorkerKind kind) {
  kind.budget_bytes = 0;
  kind.avoided.clear();
  for (WorkerKind::Stage& stage : kind.stages) stage.budget_bytes = 0;
  return kind;
}

}  // namespace

const std::vector<std::string> Footprints::kAvoidsNobody;

size_t Footprints::BaseOf(const std::string& base_model) {
  return bases_.try_emplace(base_model, bases_.size()).first->second;
}

size_t Footprints::ClassOf(const std::string& base_model, const ModelShape& model,
                           const AdapterShape& adapter, int64_t longest_sequence, int32_t stages,
                           const std::vector<std::string>& avoids) {
  const size_t base = BaseOf(base_model);
  if (!avoids.empty()) return ClassOf(base, model, adapter, longest_sequence, stages, avoids);
  const auto [found, is_new] = of_shared_.try_emplace({base, &adapter, longest_sequence, stages});
  if (is_new) {
    found->second = ClassOf(base, model, adapter, longest_sequence, stages, avoids);
  }
  return found->second;
}

size_t Footprints::ClassOf(size_t base, const ModelShape& model, const AdapterShape& adapter,
                           int64_t longest_sequence, int32_t stages,
                           const std::vector<std::string>& avoids) {
  const auto found = numbers_.find(std::tie(base, longest_sequence, stages, adapter, avoids));
  if (found != numbers_.end()) return found->second;
  classes_.emplace_back().footprint = {.base = base,
                                       .model = &model,
                                       .adapter = &adapter,
                                       .longest_sequence = longest_sequence,
                                       .stages = stages,
                                       .adapter_parameters = AdapterParameters(model, adapter),
                                       .avoids = &avoids};
  return numbers_[{base, longest_sequence, stages, adapter, avoids}] = classes_.size() - 1;
}

void Footprints::Avoid(const std::vector<std::string>& workers) {
  avoided_.insert(workers.begin(), workers.end());
}

bool Footprints::Avoids(size_t job_class, size_t worker_kind) const {
  const std::string& worker = kinds_[worker_kind].kind.avoided;
  return !worker.empty() &&
         std::ranges::binary_search(*classes_[job_class].footprint.avoids, worker);
}

size_t Footprints::KindOf(WorkerKind kind, const std::string& worker) {
  if (avoided_.contains(worker)) kind.avoided = worker;
  const auto found = std::ranges::find(kinds_, kind, &Kind::kind);
  if (found != kinds_.end()) return static_cast<size_t>(found - kinds_.begin());
  const WorkerKind layout = WithoutBudgets(kind);
  const auto alike = std::ranges::find_if(
      kinds_, [&](const Kind& other) { return WithoutBudgets(other.kind) == layout; });
  kinds_.push_back({kind, static_cast<size_t>(alike - kinds_.begin())});
  return kinds_.size() - 1;
}

StageBytes Footprints::SlotBytes(size_t job_class, size_t worker_kind) {
  Class& entry = classes_[job_class];
  const auto& [kind, layout] = kinds_[worker_kind];
  if (entry.slot_bytes.size() <= layout) entry.slot_bytes.resize(layout + 1);
  StageBytes& bytes = entry.slot_bytes[layout];
  if (bytes.size() > 0) return bytes;
  const Footprint& job = entry.footprint;
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
  const auto& [kind, layout] = kinds_[worker_kind];
  const bool several = !kind.stages.empty();
  const DeviceShape& device = shape.device;
  const ShapeKey key{base,
                     several ? layout + 1 : 0,
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
  const WorkerKind& kind = kinds_[worker_kind].kind;
  if (kind.stages.empty()) return Fits(bytes[0], kind.budget_bytes);
  for (size_t s = 0; s < kind.stages.size(); ++s) {
    if (!Fits(bytes[s], kind.stages[s].budget_bytes)) return false;
  }
  return true;
}

const std::vector<Footprints::Rung>& Footprints::LadderOf(Class& entry, size_t worker_kind) {
  const auto& [kind, layout] = kinds_[worker_kind];
  if (entry.ladder.size() <= layout) entry.ladder.resize(layout + 1);
  std::vector<Rung>& ladder = entry.ladder[layout];
  if (!ladder.empty()) return ladder;
  const Footprint& job = entry.footprint;
  if (!kind.stages.empty() && kind.base != job.base) return ladder = {Rung()};
  const StageBytes slot = SlotBytes(static_cast<size_t>(&entry - classes_.data()), worker_kind);
  for (const ShapeChoice& choice : ShapesAlone(job, kind)) {
    Rung& rung = ladder.emplace_back();
    rung.alone.shape = choice.shape;
    rung.alone.bytes = rung.wanted = GroupBytes(job.base, *job.model, choice.shape, worker_kind);
    rung.alone.bytes += slot;
    for (int64_t i = 0; i < choice.adapters; ++i) rung.wanted += slot;
  }
  return ladder;
}

Footprints::Choice Footprints::ChoiceOn(size_t job_class, size_t worker_kind) {
  Class& entry = classes_[job_class];
  if (entry.alone.size() <= worker_kind) entry.alone.resize(kinds_.size());
  Choice& choice = entry.alone[worker_kind];
  if (choice.rung >= 0) return choice;
  const WorkerKind& kind = kinds_[worker_kind].kind;
  const Footprint& job = entry.footprint;
  const std::vector<Rung>& ladder = LadderOf(entry, worker_kind);
  const bool is_own = kind.stages.empty() || kind.base == job.base;
  size_t rung = 0;
  while (is_own && rung + 1 < ladder.size() && !Fit(ladder[rung].wanted, worker_kind)) ++rung;
  choice.rung = static_cast<int8_t>(rung);
  const auto stages = static_cast<int32_t>(std::max<size_t>(1, kind.stages.size()));
  choice.fits = is_own && (job.stages == 0 || job.stages == stages) &&
                !Avoids(job_class, worker_kind) && Fit(ladder[rung].alone.bytes, worker_kind);
  return choice;
}

const Footprints::Alone& Footprints::AloneOn(size_t job_class, size_t worker_kind) {
  const Choice choice = ChoiceOn(job_class, worker_kind);
  return LadderOf(classes_[job_class], worker_kind)[static_cast<size_t>(choice.rung)].alone;
}

bool Footprints::FitsAlone(size_t job_class, size_t worker_kind) {
  return ChoiceOn(job_class, worker_kind).fits;
}

}  // namespace lorad::planner
