#include "planner/schedule/why.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/schedule/shapes.h"

namespace lorad::planner {
namespace {

std::string BeingChanged(const std::string& name) {
  return absl::StrCat(name, " is being formed or changed");
}

std::string BaseModels(const Round& round) {
  std::vector<std::string> names;
  for (const GroupState& group : round.groups) names.push_back(group.base_model);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// Empty where the largest worker would hold it.
std::string WhyNowhere(Round& round, const Waiter& job) {
  int64_t budget = 0, needed = 0;
  for (const WorkerView& worker : round.view.workers) {
    if (worker.budget_bytes < budget) continue;
    budget = worker.budget_bytes;
    const int64_t tokens =
        worker.microbatch_tokens > 0 ? worker.microbatch_tokens : round.view.microbatch_tokens;
    const size_t kind = round.sizes.KindOf({worker.device, budget, tokens});
    needed = round.sizes.AloneOn(job.job_class, kind).bytes;
  }
  if (Fits(needed, budget)) return "";
  return absl::StrCat("needs ", needed, " bytes; the largest worker offers ", budget);
}

std::string WhyNotIn(Round& round, const GroupState& group, const Waiter& job) {
  const std::string name = NameOf(group);
  if (!group.open) return BeingChanged(name);
  if (const Waiter* ahead = round.Ahead(group); ahead != nullptr && ahead != &job) {
    return absl::StrCat("behind job ", ahead->job->job, ", for which ", name, " is draining");
  }
  if (group.full()) return absl::StrCat(name, " is full");
  const GroupShape shape =
      group.fresh() ? ShapeWith(round.sizes, group, job.job_class, job.job->resumes) : group.shape;
  const bool one = group.jobs == 1;
  const std::string jobs =
      absl::StrCat(one ? "the one job" : absl::StrCat("the ", group.jobs, " jobs"), " of ", name);
  const char* until = one ? "; waits until it ends" : "; waits until one of them ends";
  if (Covers(shape, round.sizes.of(job.job_class)) &&
      FitsIn(round.sizes, group, shape, job.job_class) &&
      !round.Helps(group, shape, *job.job, job.work)) {
    return absl::StrCat(jobs, one ? " uses" : " use", " all its worker can do", until);
  }
  return absl::StrCat("does not fit beside ", jobs, " in its worker's memory", until);
}

}  // namespace

const GroupState* Awaited(Round& round, const Waiter& job) {
  const size_t base = round.sizes.of(job.job_class).base;
  const auto found = std::ranges::find_if(round.groups, [&](const GroupState& group) {
    return (group.changes || group.forming) && group.base == base && round.FitsAlone(job, group);
  });
  return found == round.groups.end() ? nullptr : &*found;
}

const GroupState* PartedFrom(Round& round, const Waiter& job) {
  const size_t base = round.sizes.of(job.job_class).base;
  const auto found = std::ranges::find_if(round.groups, [&](const GroupState& group) {
    return group.open && group.base == base && !Mix(group, *job.job) && round.FitsAlone(job, group);
  });
  return found == round.groups.end() ? nullptr : &*found;
}

std::string NameOf(const GroupState& group) {
  return group.fresh() ? "the group being formed" : "group " + group.name;
}

std::string WhyWait(Round& round, const Waiter& job) {
  if (round.view.workers.empty()) return "no worker is connected";
  if (std::string why = WhyNowhere(round, job); !why.empty()) return why;
  if (const GroupState* group = Awaited(round, job)) return BeingChanged("group " + group->name);
  const size_t base = round.sizes.of(job.job_class).base;
  for (const GroupState& group : round.groups) {
    if (group.base == base) return WhyNotIn(round, group, job);
  }
  return absl::StrCat("all workers train other base models (", BaseModels(round),
                      "); waits until one is free");
}

}  // namespace lorad::planner
