#include "planner/schedule/shapes.h"

#include <algorithm>
#include <utility>

#include "planner/schedule/schedule.h"

namespace lorad::planner {
namespace {

// The tokens of a microbatch, whose sequences may want more.
struct TokenRange {
  int64_t least = 0;
  int64_t most = 0;
};
TokenRange TokensOf(const WorkerKind& kind) {
  if (kind.microbatch_tokens > 0) return {kind.microbatch_tokens, kind.microbatch_tokens};
  const bool gpu = kind.device.kind == DeviceKind::kCuda;
  return {kMicrobatchTokens, gpu ? kMicrobatchTokensOfGpu : kMicrobatchTokens};
}

GroupShape EmptyOn(const WorkerKind& kind) {
  GroupShape shape = EmptyShape(kind.device);
  shape.in_flight = std::max(1, static_cast<int>(kind.stages.size()));
  return shape;
}

GroupShape Grown(const GroupShape& shape, const Footprint& job, int64_t microbatch_tokens) {
  GroupShape larger = shape;
  larger.longest_sequence = std::max(shape.longest_sequence, job.longest_sequence);
  larger.capacity_tokens =
      std::max(shape.capacity_tokens, CapacityFor(microbatch_tokens, larger.longest_sequence));
  while (larger.rank_max < job.adapter->rank_max()) larger.rank_max *= 2;
  return larger;
}

bool FitsWith(Footprints& sizes, const GroupState& group, StageBytes bytes, size_t job_class) {
  if (sizes.Avoids(job_class, group.worker_kind)) return false;
  bytes += group.slot_bytes;
  bytes += sizes.SlotBytes(job_class, group.worker_kind);
  return sizes.Fit(bytes, group.worker_kind);
}

// Whether a group that becomes of that shape has the bytes for the job, its number of slots aside.
bool FitsIn(Footprints& sizes, const GroupState& group, const GroupShape& shape, size_t job_class) {
  return FitsWith(sizes, group,
                  sizes.GroupBytes(group.base, *group.model, shape, group.worker_kind), job_class);
}

// A group of the same worker without jobs, to be filled.
GroupState EmptyOf(const GroupState& group) {
  GroupState empty;
  empty.base_model = group.base_model;
  empty.model = group.model;
  empty.base = group.base;
  empty.worker_kind = group.worker_kind;
  empty.budget_bytes = group.budget_bytes;
  return empty;
}

}  // namespace

int64_t CapacityFor(int64_t microbatch_tokens, int64_t longest_sequence) {
  return std::max(microbatch_tokens, longest_sequence);
}

bool Covers(const GroupShape& shape, const Footprint& job) {
  return job.longest_sequence <= shape.longest_sequence &&
         job.adapter->rank_max() <= shape.rank_max;
}

std::vector<ShapeChoice> ShapesAlone(const Footprint& job, const WorkerKind& kind) {
  const TokenRange tokens = TokensOf(kind);
  std::vector<ShapeChoice> shapes;
  for (int64_t many = tokens.most; many > tokens.least; many /= 2) {
    shapes.push_back({Grown(EmptyOn(kind), job, many), kAdaptersOfGpu});
  }
  GroupShape shape = Grown(EmptyOn(kind), job, tokens.least);
  shapes.push_back({shape, 1});
  for (const Recomputation more : {Recomputation::kProducts, Recomputation::kBlocks}) {
    if (more <= shape.recomputation) continue;
    shape.recomputation = more;
    shapes.push_back({shape, 1});
  }
  return shapes;
}

GroupShape ShapeAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
                      int64_t microbatch_tokens) {
  Footprints sizes;
  const size_t job_class =
      sizes.ClassOf(job.base_model, *job.model, *job.adapter, job.longest_sequence, job.stages);
  return sizes.AloneOn(job_class, sizes.KindOf({device, budget_bytes, microbatch_tokens})).shape;
}

bool FitsAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
               int64_t microbatch_tokens) {
  Footprints sizes;
  const size_t job_class =
      sizes.ClassOf(job.base_model, *job.model, *job.adapter, job.longest_sequence, job.stages);
  return sizes.FitsAlone(job_class, sizes.KindOf({device, budget_bytes, microbatch_tokens}));
}

GroupShape ShapeWith(Footprints& sizes, const GroupState& group, size_t job_class, bool resumes) {
  const WorkerKind& kind = sizes.kind(group.worker_kind);
  const int64_t least = TokensOf(kind).least;
  GroupShape shape = Grown(group.shape, sizes.of(job_class), least);
  const GroupShape& alone = sizes.AloneOn(job_class, group.worker_kind).shape;
  shape.recomputation = std::max(shape.recomputation, alone.recomputation);
  const int64_t shortest = CapacityFor(least, shape.longest_sequence);
  while (shape.capacity_tokens > shortest && !FitsIn(sizes, group, shape, job_class)) {
    shape.capacity_tokens = std::max(shortest, shape.capacity_tokens / 2);
  }
  // One of its jobs may have ended since it was decided to form the group again: nobody is put out.
  for (const Recomputation more : {Recomputation::kProducts, Recomputation::kBlocks}) {
    if (!resumes || FitsIn(sizes, group, shape, job_class)) break;
    shape.recomputation = std::max(shape.recomputation, more);
  }
  return shape;
}

bool FitsIn(Footprints& sizes, const GroupState& group, size_t job_class) {
  return FitsWith(sizes, group, group.bytes, job_class);
}

std::optional<GroupShape> ShapeToJoin(Footprints& sizes, const GroupState& group, size_t job_class,
                                      bool resumes) {
  if (!group.fresh()) {
    const bool fits = Covers(group.shape, sizes.of(job_class)) && FitsIn(sizes, group, job_class);
    return fits ? std::optional(group.shape) : std::nullopt;
  }
  const GroupShape shape = ShapeWith(sizes, group, job_class, resumes);
  return FitsIn(sizes, group, shape, job_class) ? std::optional(shape) : std::nullopt;
}

std::optional<GroupShape> ShapeOf(Footprints& sizes, const GroupState& group,
                                  const std::vector<ShapeFor>& jobs) {
  GroupState formed = EmptyOf(group);
  for (const ShapeFor& next : jobs) {
    if (formed.jobs == 0) {
      if (!sizes.FitsAlone(next.job_class, group.worker_kind)) return std::nullopt;
      formed.shape = sizes.AloneOn(next.job_class, group.worker_kind).shape;
    } else {
      const GroupShape shape = ShapeWith(sizes, formed, next.job_class, next.resumes);
      if (formed.full() || !FitsIn(sizes, formed, shape, next.job_class)) return std::nullopt;
      formed.shape = shape;
    }
    formed.slot_bytes += sizes.SlotBytes(next.job_class, group.worker_kind);
    ++formed.jobs;
  }
  return formed.shape;
}

std::optional<GroupShape> ShapeFormedAgain(Footprints& sizes, const GroupState& group,
                                           std::optional<ShapeFor> newcomer) {
  struct Entry {
    std::pair<int64_t, int64_t> order = {0, 0};
    size_t job_class = 0;
  };
  std::vector<Entry> members;
  for (const MemberState& member : group.members) {
    Entry& entry = members.emplace_back();
    entry.job_class = member.job_class;
    if (member.running == nullptr) continue;
    entry.order = {-int64_t{member.running->priority}, member.running->arrival};
  }
  std::stable_sort(members.begin(), members.end(),
                   [](const Entry& a, const Entry& b) { return a.order < b.order; });
  std::vector<ShapeFor> jobs;
  for (const Entry& member : members) jobs.push_back({member.job_class, false});
  if (newcomer) jobs.push_back(*newcomer);
  return ShapeOf(sizes, group, jobs);
}

}  // namespace lorad::planner
