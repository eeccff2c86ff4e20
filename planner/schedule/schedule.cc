#include "planner/schedule/schedule.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/schedule/state.h"

namespace lorad::planner {
namespace {

// Two jobs of which the policy, unless it evicts, knows no difference but their order.
bool FareAlike(const QueuedJob& a, const QueuedJob& b) {
  const auto key = [](const QueuedJob& job) {
    return std::tie(job.base_model, job.priority, job.longest_sequence, job.adapter.rank,
                    job.adapter.targets, job.step_tokens, job.label_group, job.resumes,
                    job.company_max, job.alone);
  };
  return key(a) == key(b);
}

class Scheduler {
 public:
  explicit Scheduler(const ClusterView& view) : view_(view) {
    for (const GroupView& group : view.groups) {
      groups_.push_back(StateOf(group, view.microbatch_tokens));
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
    const QueuedJob* before = nullptr;
    int alike = 0;  // that wait, one right behind the other
    for (size_t i : QueueOrder(view_)) {
      const QueuedJob& job = view_.queue[i];
      if (before == nullptr || view_.policy.evict || !FareAlike(*before, job)) alike = 0;
      // The second waits behind the first, and so does the third: nothing else has changed.
      alike = (alike >= 2 ? WaitLike(*before, job) : Place(job)) ? alike + 1 : 0;
      before = &job;
    }
    return std::move(decisions_);
  }

 private:
  // Whether it waits, and nothing was decided but that.
  bool Place(const QueuedJob& job) {
    const size_t decided = decisions_.size();
    PlaceOrWait(job);
    return decisions_.size() == decided + 1 && decisions_.back().kind == Decision::Kind::kWait;
  }

  // As the one before it, which waits. A crowd of one shape costs no more than two of them.
  bool WaitLike(const QueuedJob& before, const QueuedJob& job) {
    waiting_.push_back(&job);
    if (settled_.count(&before) > 0) settled_.insert(&job);
    const std::string why = decisions_.back().why;
    Decide(Decision::Kind::kWait, job).why = why;
    return true;
  }

  void PlaceOrWait(const QueuedJob& job) {
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

  // A job that does not fit beside the group's jobs in any shape waits for one to end.
  bool Reform(const QueuedJob& job) {
    for (GroupState& group : groups_) {
      // A job ahead decides what becomes of the group.
      if (!group.open || group.fresh() || group.base_model != job.base_model ||
          Ahead(group) != &job) {
        continue;
      }
      const GroupState formed = FormedAgain(group, job);
      if (formed.jobs != group.jobs + 1 || !Helps(group, formed.shape, job)) continue;
      group.open = false;
      group.changes = true;
      Decision& decision = Decide(Decision::Kind::kReform, job);
      decision.group = group.name;
      decision.shape = formed.shape;
      return true;
    }
    return false;
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

  // Evicts from groups that do not drain for a job ahead of it.
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

}  // namespace

std::vector<Decision> Schedule(const ClusterView& view) { return Scheduler(view).Run(); }

}  // namespace lorad::planner
