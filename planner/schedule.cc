#include "planner/schedule.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/schedule_state.h"

namespace lorad::planner {
namespace {

class Scheduler {
 public:
  explicit Scheduler(const ClusterView& view) : view_(view) {
    for (const GroupView& group : view.groups) {
      GroupState& state = groups_.emplace_back();
      state.name = group.name;
      state.base_model = group.base_model;
      state.model = &group.model;
      state.shape = group.shape;
      state.bytes = BytesOfGroup(group.model, group.shape).total();
      state.budget_bytes = group.budget_bytes;
      state.microbatch_tokens =
          group.microbatch_tokens > 0 ? group.microbatch_tokens : view.microbatch_tokens;
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
    }
    for (const WorkerView& worker : view.workers) {
      if (worker.idle) idle_.push_back(&worker);
    }
    const auto order = [](const WorkerView* worker) {
      return std::make_pair(worker->device.kind != DeviceKind::kCuda, -worker->budget_bytes);
    };
    std::stable_sort(idle_.begin(), idle_.end(),
                     [&](const WorkerView* a, const WorkerView* b) { return order(a) < order(b); });
  }

  std::vector<Decision> Run() {
    for (size_t i : QueueOrder(view_)) Place(view_.queue[i]);
    return std::move(decisions_);
  }

 private:
  void Place(const QueuedJob& job) {
    // A suspect had better not be where others already are.
    if (job.company_max > 0 ? Form(job) || Join(job) : Join(job) || Form(job)) return;
    waiting_.push_back(&job);
    if (Awaited(job) == nullptr && Dissolve(job)) return;
    if (const GroupState* group = PartedFrom(job)) {
      if (!job.alone) settled_.insert(&job);
      Decide(Decision::Kind::kWait, job).why = absl::StrCat(
          "workers were lost, and it is being found out whose jobs end them; until "
          "then it is kept out of ",
          NameOf(*group));
      return;
    }
    if (Awaited(job) == nullptr && (Reform(job) || Evict(job))) return;
    Decide(Decision::Kind::kWait, job).why = WhyWait(job);
  }

  // Until it is known what becomes of that group, no other is changed for the job.
  const GroupState* Awaited(const QueuedJob& job) const {
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const GroupState& group) {
      return group.changes && group.base_model == job.base_model && FitsAlone(job, group);
    });
    return found == groups_.end() ? nullptr : &*found;
  }

  // Whether suspicion lets the job into the group.
  static bool Mix(const GroupState& group, const QueuedJob& job) {
    if (group.jobs == 0) return true;
    if (job.alone || group.alone) return false;
    return job.company_max == 0 || group.suspects < std::min(group.company_max, job.company_max);
  }

  // A group of its base model that takes newcomers, but not this one, for suspicion alone.
  const GroupState* PartedFrom(const QueuedJob& job) const {
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const GroupState& group) {
      return group.open && group.base_model == job.base_model && !Mix(group, job) &&
             FitsAlone(job, group);
    });
    return found == groups_.end() ? nullptr : &*found;
  }

  static std::string NameOf(const GroupState& group) {
    return group.fresh() ? "the group being formed" : "group " + group.name;
  }

  Decision& Decide(Decision::Kind kind, const QueuedJob& job) {
    Decision& decision = decisions_.emplace_back();
    decision.kind = kind;
    decision.jobs = {job.job};
    if (kind != Decision::Kind::kAdmit && kind != Decision::Kind::kFormGroup) {
      decision.place = static_cast<int>(waiting_.size());
    }
    return decision;
  }

  int64_t TokensOn(const WorkerView& worker) const {
    return worker.microbatch_tokens > 0 ? worker.microbatch_tokens : view_.microbatch_tokens;
  }

  static bool FitsAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
                        int64_t microbatch_tokens) {
    return Fits(AloneBytes(job, ShapeAlone(job, device, budget_bytes, microbatch_tokens)),
                budget_bytes);
  }
  static bool FitsAlone(const QueuedJob& job, const GroupState& group) {
    return FitsAlone(job, group.shape.device, group.budget_bytes, group.microbatch_tokens);
  }

  // A job that waits ahead and could run on the group's worker alone: the group is to drain for it.
  const QueuedJob* Ahead(const GroupState& group) const {
    for (size_t& i = group.not_ahead; i < waiting_.size(); ++i) {
      const QueuedJob* job = waiting_[i];
      if (settled_.count(job) > 0) continue;
      if (FitsAlone(*job, group)) return job;
    }
    return nullptr;
  }

  bool Join(const QueuedJob& job) {
    for (GroupState& group : groups_) {
      if (!group.open || group.base_model != job.base_model || group.full() || !Mix(group, job)) {
        continue;
      }
      const GroupShape shape = group.fresh() ? ShapeWith(group, job) : group.shape;
      if (!Covers(shape, job.longest_sequence, job.adapter.rank) || !FitsIn(group, shape, job) ||
          Ahead(group) != nullptr || !Helps(group, shape, job)) {
        continue;
      }
      // An idle worker like it is better than shorter microbatches.
      const bool shorter = shape.capacity_tokens < group.shape.capacity_tokens;
      if (shorter && IdleFor(job, shape.device.kind) != idle_.end()) continue;
      Add(group, job, shape);
      if (group.fresh()) {
        decisions_[group.decision].jobs.push_back(job.job);
        decisions_[group.decision].shape = shape;
      } else {
        Decide(Decision::Kind::kAdmit, job).group = group.name;
      }
      return true;
    }
    return false;
  }

  // Tokens a second rise by least_gain, or someone of less priority is to be slowed down.
  bool Helps(const GroupState& group, const GroupShape& shape, const QueuedJob& job) const {
    if (view_.policy.least_gain <= 0 || group.jobs == 0 || job.resumes) return true;
    const auto times = view_.times.find(group.base_model);
    if (times == view_.times.end() || group.step_tokens == 0 || job.step_tokens == 0) return true;
    if (group.lowest_priority < job.priority) return true;
    const double now = GroupThroughput(times->second, group.step_tokens, shape.capacity_tokens);
    const double then =
        GroupThroughput(times->second, group.step_tokens + job.step_tokens, shape.capacity_tokens);
    return then >= now * (1 + view_.policy.least_gain);
  }

  // The first idle worker, of that kind, that would take the job alone.
  std::vector<const WorkerView*>::const_iterator IdleFor(const QueuedJob& job,
                                                         std::optional<DeviceKind> kind) const {
    return std::find_if(idle_.begin(), idle_.end(), [&](const WorkerView* idle) {
      return (!kind || idle->device.kind == *kind) &&
             FitsAlone(job, idle->device, idle->budget_bytes, TokensOn(*idle));
    });
  }

  bool Form(const QueuedJob& job) {
    const auto worker = IdleFor(job, std::nullopt);
    if (worker == idle_.end()) return false;
    GroupState& group = groups_.emplace_back();
    group.base_model = job.base_model;
    group.model = &job.model;
    group.budget_bytes = (*worker)->budget_bytes;
    group.microbatch_tokens = TokensOn(**worker);
    group.open = true;
    Begin(group, job, (*worker)->device);
    group.decision = decisions_.size();
    Decision& decision = Decide(Decision::Kind::kFormGroup, job);
    decision.worker = (*worker)->name;
    decision.base_model = job.base_model;
    decision.shape = group.shape;
    idle_.erase(worker);
    return true;
  }

  // The first job of a group that is being formed.
  static void Begin(GroupState& group, const QueuedJob& job, const DeviceShape& device) {
    group.shape = ShapeAlone(job, device, group.budget_bytes, group.microbatch_tokens);
    Add(group, job, group.shape);
  }

  static void Add(GroupState& group, const QueuedJob& job, const GroupShape& shape) {
    group.shape = shape;
    group.slot_bytes += SlotOf(job, shape.device);
    group.step_tokens += job.step_tokens;
    group.lowest_priority = std::min(group.lowest_priority, job.priority);
    group.Suspect(job.company_max, job.alone);
    ++group.jobs;
  }

  // What does not fit beside the group's jobs in any shape waits for one to end.
  bool Reform(const QueuedJob& job) {
    for (GroupState& group : groups_) {
      // A job ahead decides what becomes of the group.
      if (!group.open || group.fresh() || group.base_model != job.base_model ||
          Ahead(group) != &job) {
        continue;
      }
      const GroupState anew = FormedAnew(group, job);
      if (anew.jobs != group.jobs + 1 || !Helps(group, anew.shape, job)) continue;
      group.open = false;
      group.changes = true;
      Decision& decision = Decide(Decision::Kind::kReform, job);
      decision.group = group.name;
      decision.shape = anew.shape;
      return true;
    }
    return false;
  }

  // The group as it would be formed anew, its jobs first (QueuedJob::resumes): with fewer of them
  // where not all would fit.
  static GroupState FormedAnew(const GroupState& group, const QueuedJob& job) {
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
    GroupState anew;
    anew.base_model = group.base_model;
    anew.model = group.model;
    anew.budget_bytes = group.budget_bytes;
    anew.microbatch_tokens = group.microbatch_tokens;
    for (const QueuedJob& next : jobs) {
      if (anew.jobs == 0) {
        if (!FitsAlone(next, group)) return anew;
        Begin(anew, next, group.shape.device);
        continue;
      }
      const GroupShape shape = ShapeWith(anew, next);
      if (anew.full() || !FitsIn(anew, shape, next)) return anew;
      Add(anew, next, shape);
    }
    return anew;
  }

  bool Dissolve(const QueuedJob& job) {
    for (GroupState& group : groups_) {
      if (!group.open || group.fresh() || group.jobs > 0 || !FitsAlone(job, group)) {
        continue;
      }
      group.open = false;
      Decide(Decision::Kind::kDissolve, job).group = group.name;
      return true;
    }
    return false;
  }

  // Of groups that do not drain for a job ahead of it.
  bool Evict(const QueuedJob& job) {
    if (!view_.policy.evict) return false;
    std::vector<bool> allowed;
    for (const GroupState& group : groups_) allowed.push_back(Ahead(group) == &job);
    const double points = PointsOf(view_.policy, job.waited_s) - ShareOf(job);
    const std::optional<Eviction> eviction = ChooseEviction(view_, groups_, allowed, job, points);
    if (!eviction) return false;
    GroupState& group = groups_[eviction->group];
    group.open = false;
    settled_.insert(&job);
    for (const Eviction::Leaver& leaver : eviction->leavers) {
      Decision& decision = decisions_.emplace_back();
      decision.kind = leaver.to ? Decision::Kind::kReplace : Decision::Kind::kEvict;
      decision.jobs = {group.members[leaver.member].job};
      decision.group = group.name;
      decision.why_job = job.job;
      if (!leaver.to) continue;
      GroupState& to = groups_[*leaver.to];
      decision.to = to.name;
      to.slot_bytes += group.members[leaver.member].slot_bytes;
      to.step_tokens += group.members[leaver.member].running->step_tokens;
      ++to.jobs;
    }
    Decision& decision = Decide(Decision::Kind::kWait, job);
    decision.why = absl::StrCat("group ", group.name, " makes room for it");
    return true;
  }

  // Running jobs of its label group, which count against it.
  double ShareOf(const QueuedJob& job) const {
    if (!view_.policy.fair_share) return 0;
    double share = 0;
    for (const GroupView& group : view_.groups) {
      for (const RunningJob& running : group.running) {
        share += running.label_group == job.label_group;
      }
    }
    return share;
  }

  std::string WhyWait(const QueuedJob& job) const {
    if (view_.workers.empty()) return "no worker is connected";
    int64_t budget = 0, needed = 0;
    for (const WorkerView& worker : view_.workers) {
      if (worker.budget_bytes < budget) continue;
      budget = worker.budget_bytes;
      needed = AloneBytes(job, ShapeAlone(job, worker.device, budget, TokensOn(worker)));
    }
    if (!Fits(needed, budget)) {
      return absl::StrCat("needs ", needed, " bytes; the largest worker offers ", budget);
    }
    const auto changes = [](const std::string& name) {
      return absl::StrCat(name, " is being formed or changed");
    };
    if (const GroupState* group = Awaited(job)) return changes("group " + group->name);
    for (const GroupState& group : groups_) {
      if (group.base_model != job.base_model) continue;
      const std::string name = NameOf(group);
      if (!group.open) return changes(name);
      if (const QueuedJob* ahead = Ahead(group); ahead != nullptr && ahead != &job) {
        return absl::StrCat("behind job ", ahead->job, ", for which ", name, " is draining");
      }
      if (group.full()) return absl::StrCat(name, " is full");
      const GroupShape shape = group.fresh() ? ShapeWith(group, job) : group.shape;
      const bool one = group.jobs == 1;
      const std::string jobs = absl::StrCat(
          one ? "the one job" : absl::StrCat("the ", group.jobs, " jobs"), " of ", name);
      const char* until = one ? "; waits until it ends" : "; waits until one of them ends";
      if (Covers(shape, job.longest_sequence, job.adapter.rank) && FitsIn(group, shape, job) &&
          !Helps(group, shape, job)) {
        return absl::StrCat(jobs, one ? " uses" : " use", " all its worker can do", until);
      }
      return absl::StrCat("does not fit beside ", jobs, " in its worker's memory", until);
    }
    return absl::StrCat("all workers train other base models (", BaseModels(),
                        "); waits until one is free");
  }

  std::string BaseModels() const {
    std::vector<std::string> names;
    for (const GroupState& group : groups_) names.push_back(group.base_model);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names.empty() ? "none" : absl::StrJoin(names, ", ");
  }

  const ClusterView& view_;
  std::vector<GroupState> groups_;
  std::vector<const WorkerView*> idle_;  // GPUs first, then by largest budget
  std::vector<const QueuedJob*> waiting_;
  std::set<const QueuedJob*> settled_;  // of those, who have a group that makes room for them
  std::vector<Decision> decisions_;
};

// Of a microbatch, whose sequences may want more.
struct TokenRange {
  int64_t least = 0;
  int64_t most = 0;
};
TokenRange TokensOf(const DeviceShape& device, int64_t microbatch_tokens) {
  if (microbatch_tokens > 0) return {microbatch_tokens, microbatch_tokens};
  return {kMicrobatchTokens,
          device.kind == DeviceKind::kCuda ? kMicrobatchTokensOfGpu : kMicrobatchTokens};
}

GroupShape Grown(const GroupShape& shape, const QueuedJob& job, int64_t microbatch_tokens) {
  GroupShape larger = shape;
  larger.longest_sequence = std::max(shape.longest_sequence, job.longest_sequence);
  larger.capacity_tokens =
      std::max(shape.capacity_tokens, CapacityFor(microbatch_tokens, larger.longest_sequence));
  while (larger.rank_max < job.adapter.rank) larger.rank_max *= 2;
  return larger;
}

}  // namespace

int64_t SlotOf(const QueuedJob& job, const DeviceShape& device) {
  return BytesOfSlot(job.model, job.adapter, device).total();
}

bool Covers(const GroupShape& shape, int64_t longest_sequence, int64_t rank) {
  return longest_sequence <= shape.longest_sequence && rank <= shape.rank_max;
}

int64_t AloneBytes(const QueuedJob& job, const GroupShape& shape) {
  return BytesOfGroup(job.model, shape).total() + SlotOf(job, shape.device);
}

GroupShape ShapeAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
                      int64_t microbatch_tokens) {
  const TokenRange tokens = TokensOf(device, microbatch_tokens);
  const int64_t others_bytes = (kAdaptersOfGpu - 1) * SlotOf(job, device);
  for (int64_t many = tokens.most; many > tokens.least; many /= 2) {
    const GroupShape shape = Grown(EmptyShape(device), job, many);
    if (Fits(AloneBytes(job, shape) + others_bytes, budget_bytes)) return shape;
  }
  GroupShape shape = Grown(EmptyShape(device), job, tokens.least);
  for (const Recomputation more : {Recomputation::kProducts, Recomputation::kBlocks}) {
    if (Fits(AloneBytes(job, shape), budget_bytes)) break;
    shape.recomputation = std::max(shape.recomputation, more);
  }
  return shape;
}

GroupShape ShapeWith(const GroupState& group, const QueuedJob& job) {
  const int64_t least = TokensOf(group.shape.device, group.microbatch_tokens).least;
  GroupShape shape = Grown(group.shape, job, least);
  const GroupShape alone =
      ShapeAlone(job, shape.device, group.budget_bytes, group.microbatch_tokens);
  shape.recomputation = std::max(shape.recomputation, alone.recomputation);
  const int64_t shortest = CapacityFor(least, shape.longest_sequence);
  while (shape.capacity_tokens > shortest && !FitsIn(group, shape, job)) {
    shape.capacity_tokens = std::max(shortest, shape.capacity_tokens / 2);
  }
  // One of its jobs may have ended since it was decided to form the group anew: nobody is put out.
  for (const Recomputation more : {Recomputation::kProducts, Recomputation::kBlocks}) {
    if (!job.resumes || FitsIn(group, shape, job)) break;
    shape.recomputation = std::max(shape.recomputation, more);
  }
  return shape;
}

bool FitsIn(const GroupState& group, const GroupShape& shape, const QueuedJob& job) {
  return Fits(
      BytesOfGroup(*group.model, shape).total() + group.slot_bytes + SlotOf(job, shape.device),
      group.budget_bytes);
}

std::vector<Decision> Schedule(const ClusterView& view) { return Scheduler(view).Run(); }

int64_t CapacityFor(int64_t microbatch_tokens, int64_t longest_sequence) {
  return std::max(microbatch_tokens, longest_sequence);
}

// "form w1 base=m 1024/900: a b", "admit g1: a", "wait #1: a (no worker is connected)",
// "evict g1: a for b", "replace g1 -> g2: a for b"
const char* ToText(Decision::Kind kind) {
  switch (kind) {
    case Decision::Kind::kAdmit:
      return "admit";
    case Decision::Kind::kFormGroup:
      return "form";
    case Decision::Kind::kReform:
      return "reform";
    case Decision::Kind::kDissolve:
      return "dissolve";
    case Decision::Kind::kEvict:
      return "evict";
    case Decision::Kind::kReplace:
      return "replace";
    case Decision::Kind::kWait:
      return "wait";
  }
  assert(false);
  return "";
}

std::string ToText(const Decision& decision) {
  std::string text = ToText(decision.kind);
  if (decision.place > 0) absl::StrAppend(&text, " #", decision.place);
  if (!decision.worker.empty()) {
    absl::StrAppend(&text, " ", decision.worker, " base=", decision.base_model);
  }
  if (!decision.group.empty()) absl::StrAppend(&text, " ", decision.group);
  if (!decision.to.empty()) absl::StrAppend(&text, " -> ", decision.to);
  if (decision.shape.capacity_tokens > 0) {
    absl::StrAppend(&text, " ", decision.shape.capacity_tokens, "/",
                    decision.shape.longest_sequence);
    if (decision.shape.recomputation == Recomputation::kBlocks) {
      absl::StrAppend(&text, " recomputing blocks");
    }
  }
  absl::StrAppend(&text, ": ", absl::StrJoin(decision.jobs, " "));
  if (!decision.why_job.empty()) absl::StrAppend(&text, " for ", decision.why_job);
  if (!decision.why.empty()) absl::StrAppend(&text, " (", decision.why, ")");
  return text;
}

}  // namespace lorad::planner
