#include "planner/schedule/state.h"

#include <algorithm>
#include <utility>

namespace lorad::planner {

GroupState StateOf(const GroupView& group, int64_t microbatch_tokens) {
  GroupState state;
  state.name = group.name;
  state.base_model = group.base_model;
  state.model = &group.model;
  state.shape = group.shape;
  state.bytes = BytesOfGroup(group.model, group.shape).total();
  state.budget_bytes = group.budget_bytes;
  state.microbatch_tokens =
      group.microbatch_tokens > 0 ? group.microbatch_tokens : microbatch_tokens;
  state.open = group.open;
  state.changes = group.changes;
  state.jobs = group.jobs.size();
  for (size_t i = 0; i < group.adapters.size(); ++i) {
    MemberState& member = state.members.emplace_back();
    member.job = group.jobs[i];
    member.slot_bytes = BytesOfSlot(group.model, group.adapters[i], group.shape.device).total();
    member.adapter = &group.adapters[i];
    state.slot_bytes += member.slot_bytes;
    if (group.running.empty()) continue;
    member.running = &group.running[i];
    state.step_tokens += member.running->step_tokens;
    state.Suspect(member.running->company_max, member.running->alone);
    state.lowest_priority = std::min(state.lowest_priority, member.running->priority);
  }
  return state;
}

bool Mix(const GroupState& group, const QueuedJob& job) {
  if (group.jobs == 0) return true;
  if (job.alone || group.alone) return false;
  return job.company_max == 0 || group.suspects < std::min(group.company_max, job.company_max);
}

bool FitsAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
               int64_t microbatch_tokens) {
  return Fits(AloneBytes(job, ShapeAlone(job, device, budget_bytes, microbatch_tokens)),
              budget_bytes);
}
bool FitsAlone(const QueuedJob& job, const GroupState& group) {
  return FitsAlone(job, group.shape.device, group.budget_bytes, group.microbatch_tokens);
}

void Begin(GroupState& group, const QueuedJob& job, const DeviceShape& device) {
  group.shape = ShapeAlone(job, device, group.budget_bytes, group.microbatch_tokens);
  Add(group, job, group.shape);
}

void Add(GroupState& group, const QueuedJob& job, const GroupShape& shape) {
  group.shape = shape;
  group.slot_bytes += SlotOf(job, shape.device);
  group.step_tokens += job.step_tokens;
  group.lowest_priority = std::min(group.lowest_priority, job.priority);
  group.Suspect(job.company_max, job.alone);
  ++group.jobs;
}

GroupState FormedAgain(const GroupState& group, const QueuedJob& job) {
  std::vector<QueuedJob> jobs;
  for (const MemberState& member : group.members) {
    QueuedJob& entry = jobs.emplace_back();
    entry.model = *group.model;
    entry.adapter = *member.adapter;
    entry.longest_sequence = group.shape.longest_sequence;
    if (member.running == nullptr) continue;
    entry.longest_sequence = member.running->longest_sequence;
    entry.priority = member.running->priority;
    entry.arrival = member.running->arrival;
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const QueuedJob& a, const QueuedJob& b) {
    return std::make_pair(-int64_t{a.priority}, a.arrival) <
           std::make_pair(-int64_t{b.priority}, b.arrival);
  });
  jobs.push_back(job);
  GroupState formed;
  formed.base_model = group.base_model;
  formed.model = group.model;
  formed.budget_bytes = group.budget_bytes;
  formed.microbatch_tokens = group.microbatch_tokens;
  for (const QueuedJob& next : jobs) {
    if (formed.jobs == 0) {
      if (!FitsAlone(next, group)) return formed;
      Begin(formed, next, group.shape.device);
      continue;
    }
    const GroupShape shape = ShapeWith(formed, next);
    if (formed.full() || !FitsIn(formed, shape, next)) return formed;
    Add(formed, next, shape);
  }
  return formed;
}

}  // namespace lorad::planner
