#include "planner/schedule/why.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/schedule/shapes.h"
#include "sizes/bytes_text.h"

namespace lorad::planner {
namespace {

using sizes::NeededText;
using sizes::ThereText;

// The first group of its base model that would hold the job, and of which `is_such` is true. One
// that is kept for the job is not: its worker would, together with others.
const GroupState* FirstItCouldJoin(Round& round, const Waiter& job,
                                   absl::FunctionRef<bool(const GroupState&)> is_such) {
  const size_t base = round.sizes.of(job.job_class).base;
  const auto found = std::ranges::find_if(round.groups, [&](const GroupState& group) {
    const bool for_several = group.kept_for == &job && job.needs != nullptr;
    return group.base == base && !for_several && is_such(group) && round.FitsAlone(job, group);
  });
  return found == round.groups.end() ? nullptr : &*found;
}

std::string BeingChanged(const std::string& name) {
  return absl::StrCat(name, " is being formed or changed");
}

// Of those that have room for the job.
std::set<std::string> BaseModels(Round& round, const Waiter& job) {
  std::set<std::string> names;
  for (const GroupState& group : round.groups) {
    if (round.FitsAlone(job, group)) names.insert(group.base_model);
  }
  return names;
}

std::string Named(const std::string& kind, const std::string& name) {
  return name.starts_with(kind + "-") ? name : absl::StrCat(kind, " ", name);
}

std::string NameOf(const Waiter& waiter) {
  return waiter.job->asks ? absl::StrCat("an ask of '", waiter.job->base_model, "'")
                          : Named("job", waiter.job->job);
}

// By the placement that lacks the least.
std::string WhyNotOnSeveral(const Round& round, const QueuedJob& job) {
  const auto nearest = PlaceAloneNearest(job, round.view.workers, round.view.microbatch_tokens);
  if (!nearest) {
    return job.stages < 2 ? "" : WorkersLackFor(job.stages);
  }
  return absl::StrCat(
      job.stages < 2 ? ", and " : "needs ", "of ", nearest->workers.size(),
      " stages the tightest needs ", NeededText(nearest->bytes[nearest->tightest]),
      "; its worker offers ",
      BudgetText(round.view.workers[nearest->workers[nearest->tightest]].budget_bytes,
                 nearest->bytes[nearest->tightest]));
}

// Empty where the largest worker would hold it, or several.
std::string WhyNowhere(Round& round, const Waiter& job) {
  if (job.needs != nullptr) return "";
  if (job.job->stages > 1) return WhyNotOnSeveral(round, *job.job);
  int64_t budget = 0, needed = 0;
  for (const WorkerView& worker : round.view.workers) {
    if (worker.budget_bytes < budget) continue;
    budget = worker.budget_bytes;
    needed = round.sizes.AloneOn(job.job_class, round.KindOf(worker)).bytes[0];
  }
  if (Fits(needed, budget)) return "";
  for (const AwayWorker* away : {&round.view.away, &round.view.drained_away}) {
    if (!Fits(needed, away->budget_bytes)) continue;
    return absl::StrCat("needs ", NeededText(needed), "; waits for worker ", away->name,
                        ", which offers ", ThereText(away->budget_bytes),
                        away == &round.view.away ? " and is away" : ", is away and drained");
  }
  return absl::StrCat("needs ", NeededText(needed), "; the largest worker offers ",
                      BudgetText(budget, needed),
                      job.job->stages == 1 ? "" : WhyNotOnSeveral(round, *job.job));
}

// It needs several workers, and no group of its base model could hold it.
std::string WhyNotTogether(const Round& round, const Waiter& job) {
  const Placement& needs = *job.needs;
  std::string text =
      absl::StrCat("needs ", needs.workers.size(),
                   " workers of one numerics id, the tightest of whose stages takes ",
                   NeededText(needs.bytes[needs.tightest]), ": ");
  const auto waits = [&](const Waiter* other) {
    return other != nullptr && other->job->base_model == job.job->base_model;
  };
  std::vector<std::string> groups;
  for (const GroupState& group : round.groups) {
    if (waits(group.kept_for)) groups.push_back(NameOf(group));
  }
  const auto idle = std::ranges::count_if(
      round.idle, [&](const IdleWorker& worker) { return waits(worker.kept_for); });
  if (idle == 0 && groups.empty()) return absl::StrCat(text, "fewer take jobs now");
  return absl::StrCat(text, idle, idle == 1 ? " is" : " are", " idle; waits until the jobs of ",
                      absl::StrJoin(groups, ", "), " have ended");
}

std::string WhyNotIn(Round& round, const GroupState& group, const Waiter& job) {
  const std::string name = NameOf(group);
  if (group.rests) return absl::StrCat(name, " takes no jobs now");
  if (!group.open) return BeingChanged(name);
  // Others leave another group for this one: then one behind it is the first here.
  const Waiter* ahead = round.Ahead(group);
  if (ahead != nullptr && ahead < &job) {
    return absl::StrCat("behind ", NameOf(*ahead), ", for which ", name, " is draining");
  }
  if (group.full()) return absl::StrCat(name, " is full");
  const auto shape = ShapeToJoin(round.sizes, group, job.job_class, job.job->resumes);
  const bool one = group.jobs == 1;
  const std::string jobs =
      absl::StrCat(one ? "the one job" : absl::StrCat("the ", group.jobs, " jobs"), " of ", name);
  const std::string until =
      absl::StrCat("; waits until ", one ? "it" : "one of them", " ends",
                   round.view.policy.evict && !job.job->asks ? " or gives way" : "");
  if (shape && !round.Helps(group, *shape, *job.job, job.work)) {
    return absl::StrCat(jobs, one ? " uses" : " use", " all its worker can do", until);
  }
  return absl::StrCat("does not fit beside ", jobs, " in its worker's memory", until);
}

// Why it gets none of the workers that are idle; empty: there is none, or another reason.
std::string WhyNotOnIdle(Round& round, const Waiter& job) {
  std::string text;
  for (const IdleWorker& idle : round.idle) {
    if (idle.kept_for != nullptr && idle.kept_for != &job) {
      return absl::StrCat("worker ", idle.worker->name, " is kept for ", NameOf(*idle.kept_for),
                          ", which needs several");
    }
    if (idle.taken) continue;
    const int64_t needed = round.sizes.AloneOn(job.job_class, idle.worker_kind).bytes[0];
    if (Fits(needed, idle.worker->budget_bytes)) return "";
    if (text.empty()) {
      text =
          absl::StrCat("needs ", NeededText(needed), ", and worker ", idle.worker->name,
                       ", which is idle, offers ", BudgetText(idle.worker->budget_bytes, needed));
    }
  }
  return text;
}

}  // namespace

const GroupState* MakesRoomFor(const Round& round, const Waiter& job) {
  const auto found = std::ranges::find(round.groups, job.job->job, &GroupState::makes_room_for);
  return found == round.groups.end() ? nullptr : &*found;
}

const GroupState* Awaited(Round& round, const Waiter& job) {
  if (const GroupState* group = MakesRoomFor(round, job)) return group;
  return FirstItCouldJoin(round, job,
                          [](const GroupState& group) { return group.changes || group.forming; });
}

const GroupState* PartedFrom(Round& round, const Waiter& job) {
  return FirstItCouldJoin(
      round, job, [&](const GroupState& group) { return group.open && !Mix(group, *job.job); });
}

std::string NameOf(const GroupState& group) {
  return group.fresh() ? "the group being formed" : Named("group", group.name);
}

std::string MakingRoom(const GroupState& group) {
  return absl::StrCat(NameOf(group), " makes room for it");
}

std::string WhyWait(Round& round, const Waiter& job) {
  if (round.view.workers.empty()) return "no worker is connected";
  if (std::string why = WhyNowhere(round, job); !why.empty()) return why;
  if (const GroupState* group = PartedFrom(round, job)) {
    return absl::StrCat(
        "workers were lost, and it is being found out whose jobs end them; until then it is kept "
        "out "
        "of ",
        NameOf(*group));
  }
  if (const GroupState* group = MakesRoomFor(round, job)) return MakingRoom(*group);
  if (const GroupState* group = Awaited(round, job)) return BeingChanged(NameOf(*group));
  const auto any = [](const GroupState&) { return true; };
  if (const GroupState* group = FirstItCouldJoin(round, job, any)) {
    return WhyNotIn(round, *group, job);
  }
  if (job.needs != nullptr) return WhyNotTogether(round, job);
  const std::string of_idle = WhyNotOnIdle(round, job);
  const std::set<std::string> others = BaseModels(round, job);
  if (others.empty() && !of_idle.empty()) return absl::StrCat(of_idle, "; waits until one is free");
  if (others.empty()) return "no worker with room for it takes jobs now; waits until one does";
  const bool fits_all = of_idle.empty() && std::ranges::all_of(round.groups, [&](auto& group) {
                          return round.FitsAlone(job, group);
                        });
  return absl::StrCat(of_idle, of_idle.empty() ? "" : "; ",
                      fits_all ? "all workers" : "the workers with room for it",
                      " train other base models (", absl::StrJoin(others, ", "), ")",
                      "; waits until one is free");
}

}  // namespace lorad::planner
