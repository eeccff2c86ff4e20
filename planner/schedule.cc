#include "planner/schedule.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorad::planner {
namespace {

// A group as it will stand once the decisions so far are carried out.
struct GroupState {
  std::string name;  // empty: formed by a decision of this round
  std::string base_model;
  const ModelShape* model = nullptr;
  GroupShape shape;
  int64_t budget_bytes = 0;
  bool open = false;
  int64_t slot_bytes = 0;
  size_t jobs = 0;
  size_t decision = 0;  // of a group formed in this round

  bool fresh() const { return name.empty(); }
};

class Scheduler {
 public:
  explicit Scheduler(const ClusterView& view) : view_(view) {
    for (const GroupView& group : view.groups) {
      GroupState& state = groups_.emplace_back();
      state.name = group.name;
      state.base_model = group.base_model;
      state.model = &group.model;
      state.shape = group.shape;
      state.budget_bytes = group.budget_bytes;
      state.open = group.open;
      state.jobs = group.jobs.size();
      for (const AdapterShape& adapter : group.adapters) {
        state.slot_bytes += BytesOfSlot(group.model, adapter).total();
      }
    }
    for (const WorkerView& worker : view.workers) {
      if (worker.idle) idle_.push_back(&worker);
    }
    std::stable_sort(idle_.begin(), idle_.end(), [](const WorkerView* a, const WorkerView* b) {
      return a->budget_bytes > b->budget_bytes;
    });
  }

  std::vector<Decision> Run() {
    std::vector<const QueuedJob*> queue;
    for (const QueuedJob& job : view_.queue) queue.push_back(&job);
    std::sort(queue.begin(), queue.end(), [](const QueuedJob* a, const QueuedJob* b) {
      return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
    });
    for (const QueuedJob* job : queue) Place(*job);
    return std::move(decisions_);
  }

 private:
  void Place(const QueuedJob& job) {
    if (Join(job) || Form(job)) return;
    waiting_.push_back(&job);
    if (Reform(job) || Dissolve(job)) return;
    Decision& decision = Decide(Decision::Kind::kWait, job);
    decision.why = WhyWait(job);
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

  GroupShape ShapeWith(const GroupShape& shape, const QueuedJob& job) const {
    GroupShape larger = shape;
    larger.longest_sequence = std::max(shape.longest_sequence, job.longest_sequence);
    larger.capacity_tokens = std::max(
        shape.capacity_tokens, CapacityFor(view_.microbatch_tokens, larger.longest_sequence));
    return larger;
  }

  static int64_t SlotOf(const QueuedJob& job) {
    return BytesOfSlot(job.model, job.adapter).total();
  }

  bool FitsIn(const GroupState& group, const GroupShape& shape, const QueuedJob& job) const {
    return Fits(BytesOfGroup(*group.model, shape).total() + group.slot_bytes + SlotOf(job),
                group.budget_bytes);
  }

  int64_t AloneBytes(const QueuedJob& job, int threads) const {
    const GroupShape shape = ShapeWith({0, 0, threads, 1}, job);
    return BytesOfGroup(job.model, shape).total() + SlotOf(job);
  }

  // A job that waits ahead and could run on the group's worker alone: the group is to drain for it.
  const QueuedJob* Ahead(const GroupState& group) const {
    for (const QueuedJob* job : waiting_) {
      if (Fits(AloneBytes(*job, group.shape.threads), group.budget_bytes)) return job;
    }
    return nullptr;
  }

  bool Join(const QueuedJob& job) {
    for (GroupState& group : groups_) {
      if (!group.open || group.base_model != job.base_model || group.jobs >= kJobsPerGroupMax) {
        continue;
      }
      const GroupShape shape = group.fresh() ? ShapeWith(group.shape, job) : group.shape;
      if (job.longest_sequence > shape.longest_sequence || !FitsIn(group, shape, job) ||
          Ahead(group) != nullptr) {
        continue;
      }
      group.shape = shape;
      group.slot_bytes += SlotOf(job);
      ++group.jobs;
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

  bool Form(const QueuedJob& job) {
    const auto worker = std::find_if(idle_.begin(), idle_.end(), [&](const WorkerView* idle) {
      return Fits(AloneBytes(job, idle->threads), idle->budget_bytes);
    });
    if (worker == idle_.end()) return false;
    GroupState& group = groups_.emplace_back();
    group.base_model = job.base_model;
    group.model = &job.model;
    group.shape = ShapeWith({0, 0, (*worker)->threads, 1}, job);
    group.budget_bytes = (*worker)->budget_bytes;
    group.open = true;
    group.slot_bytes = SlotOf(job);
    group.jobs = 1;
    group.decision = decisions_.size();
    Decision& decision = Decide(Decision::Kind::kFormGroup, job);
    decision.worker = (*worker)->name;
    decision.base_model = job.base_model;
    decision.shape = group.shape;
    idle_.erase(worker);
    return true;
  }

  // Only for longer sequences: what does not fit beside the group's jobs waits for one to end.
  bool Reform(const QueuedJob& job) {
    if (waiting_.size() > 1) return false;  // a job ahead decides what becomes of the groups
    for (GroupState& group : groups_) {
      if (!group.open || group.fresh() || group.base_model != job.base_model ||
          group.jobs >= kJobsPerGroupMax || job.longest_sequence <= group.shape.longest_sequence) {
        continue;
      }
      const GroupShape shape = ShapeWith(group.shape, job);
      if (!FitsIn(group, shape, job)) continue;
      group.open = false;
      Decision& decision = Decide(Decision::Kind::kReform, job);
      decision.group = group.name;
      decision.shape = shape;
      return true;
    }
    return false;
  }

  bool Dissolve(const QueuedJob& job) {
    for (GroupState& group : groups_) {
      if (!group.open || group.fresh() || group.jobs > 0 ||
          !Fits(AloneBytes(job, group.shape.threads), group.budget_bytes)) {
        continue;
      }
      group.open = false;
      Decide(Decision::Kind::kDissolve, job).group = group.name;
      return true;
    }
    return false;
  }

  std::string WhyWait(const QueuedJob& job) const {
    if (view_.workers.empty()) return "no worker is connected";
    int64_t budget = 0, needed = 0;
    for (const WorkerView& worker : view_.workers) {
      if (worker.budget_bytes < budget) continue;
      budget = worker.budget_bytes;
      needed = AloneBytes(job, worker.threads);
    }
    if (!Fits(needed, budget)) {
      return absl::StrCat("needs ", needed, " bytes; the largest worker offers ", budget);
    }
    for (const GroupState& group : groups_) {
      if (group.base_model != job.base_model) continue;
      const std::string name = group.fresh() ? "the group being formed" : "group " + group.name;
      if (!group.open) return absl::StrCat(name, " is being formed or changed");
      if (const QueuedJob* ahead = Ahead(group); ahead != nullptr && ahead != &job) {
        return absl::StrCat("behind job ", ahead->job, ", for which ", name, " is draining");
      }
      if (group.jobs >= kJobsPerGroupMax) return absl::StrCat(name, " is full");
      return absl::StrCat("does not fit beside the ", group.jobs, " jobs of ", name,
                          " in its worker's memory; waits until one of them ends");
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
  std::vector<const WorkerView*> idle_;  // largest budget first
  std::vector<const QueuedJob*> waiting_;
  std::vector<Decision> decisions_;
};

const char* Name(Decision::Kind kind) {
  switch (kind) {
    case Decision::Kind::kAdmit:
      return "admit";
    case Decision::Kind::kFormGroup:
      return "form";
    case Decision::Kind::kReform:
      return "reform";
    case Decision::Kind::kDissolve:
      return "dissolve";
    case Decision::Kind::kWait:
      return "wait";
  }
  assert(false);
  return "";
}

}  // namespace

std::vector<Decision> Schedule(const ClusterView& view) { return Scheduler(view).Run(); }

int64_t CapacityFor(int64_t microbatch_tokens, int64_t longest_sequence) {
  return std::max(microbatch_tokens, longest_sequence);
}

// "form w1 base=m 1024/900: a b", "admit g1: a", "wait #1: a (no worker is connected)"
std::string ToText(const Decision& decision) {
  std::string text = Name(decision.kind);
  if (decision.place > 0) absl::StrAppend(&text, " #", decision.place);
  if (!decision.worker.empty()) {
    absl::StrAppend(&text, " ", decision.worker, " base=", decision.base_model);
  }
  if (!decision.group.empty()) absl::StrAppend(&text, " ", decision.group);
  if (decision.shape.capacity_tokens > 0) {
    absl::StrAppend(&text, " ", decision.shape.capacity_tokens, "/",
                    decision.shape.longest_sequence);
  }
  absl::StrAppend(&text, ": ", absl::StrJoin(decision.jobs, " "));
  if (!decision.why.empty()) absl::StrAppend(&text, " (", decision.why, ")");
  return text;
}

}  // namespace lorad::planner
