#include "planner/sweep/groups.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace lorad::planner {
namespace {

void Add(SweepMembers* members, int32_t kind, int32_t count) {
  const auto at = std::lower_bound(
      members->begin(), members->end(), kind,
      [](const std::pair<int32_t, int32_t>& entry, int32_t k) { return entry.first < k; });
  if (at != members->end() && at->first == kind) {
    at->second += count;
    assert(at->second >= 0);
    if (at->second == 0) members->erase(at);
  } else {
    assert(count > 0);
    members->insert(at, {kind, count});
  }
}

double ByteSteps(const SweepProblem::Kind& kind) {
  return static_cast<double>(kind.bytes) * static_cast<double>(kind.steps);
}

}  // namespace

SweepGroups::SweepGroups(const SweepProblem& problem, bool replace)
    : problem_(&problem), replace_(replace) {
  int gpu = 0;
  for (size_t d = problem.degrees().size(); d-- > 0;) {
    for (; gpu + problem.degrees()[d].gpus <= problem.gpus(); gpu += problem.degrees()[d].gpus) {
      Build(d, gpu, -1);
    }
  }
}

void SweepGroups::Build(size_t degree, int first_gpu, int parent) {
  const auto& degrees = problem_->degrees();
  const auto index = static_cast<int>(groups_.size());
  SweepGroup& group = groups_.emplace_back();
  group.degree = &degrees[degree];
  group.first_gpu = first_gpu;
  group.parent = parent;
  if (degree == 0) return;
  const int step = degrees[degree - 1].gpus;
  for (int at = 0; at < degrees[degree].gpus; at += step) {
    Build(degree - 1, first_gpu + at, index);
  }
  groups_[index].groups = static_cast<int>(groups_.size()) - index;
}

double SweepGroups::Makespan() const {
  double seconds = 0;
  for (size_t i = 0; i < groups_.size(); i += groups_[i].groups) {
    seconds = std::max(seconds, groups_[i].seconds + groups_[i].rest_s);
  }
  return seconds;
}

double SweepGroups::BoundSeconds(int group, int32_t out, int32_t in) const {
  const SweepGroup& g = groups_[group];
  double byte_steps = g.byte_steps, work_s = g.work_s, longest = 0;
  if (out >= 0) {
    byte_steps -= ByteSteps(problem_->kinds()[out]);
    work_s -= g.degree->work_s[out];
  }
  if (in >= 0) {
    byte_steps += ByteSteps(problem_->kinds()[in]);
    work_s += g.degree->work_s[in];
    longest = static_cast<double>(problem_->kinds()[in].steps);
  }
  const auto capacity = static_cast<double>(std::max<int64_t>(g.degree->capacity_bytes, 1));
  return g.degree->fixed_s * std::max(byte_steps / capacity, longest) + work_s;
}

void SweepGroups::Count(SweepGroup* group, int32_t kind, int32_t count) const {
  Add(&group->members, kind, count);
  group->byte_steps += count * ByteSteps(problem_->kinds()[kind]);
  group->work_s += count * group->degree->work_s[kind];
  if (group->members.empty()) group->byte_steps = group->work_s = 0;  // without what was rounded
}

void SweepGroups::Measure(SweepGroup* group, bool well) const {
  const int64_t iterations = LayOut(*problem_, *group->degree, group->members, replace_, well);
  group->seconds = group->degree->fixed_s * static_cast<double>(iterations) + group->work_s;
}

SweepGroup SweepGroups::Changed(int group, int32_t out, int32_t in) const {
  SweepGroup changed = groups_[group];
  if (out >= 0) Count(&changed, out, -1);
  if (in >= 0) Count(&changed, in, 1);
  Measure(&changed, true);
  return changed;
}

SweepGroup SweepGroups::With(int group, const std::vector<int32_t>& kinds) const {
  SweepGroup with = groups_[group];
  for (int32_t kind : kinds) Count(&with, kind, 1);
  Measure(&with, false);
  return with;
}

double SweepGroups::RestWithout(int outer, int except) const {
  double rest = 0;
  for (int i = outer + 1; i < outer + groups_[outer].groups; i += groups_[i].groups) {
    if (i != except) rest = std::max(rest, groups_[i].seconds + groups_[i].rest_s);
  }
  return rest;
}

double SweepGroups::EndWith(int a, double a_seconds, int b, double b_seconds) const {
  if (b < a) return EndWith(b, b_seconds, a, a_seconds);
  if (b >= a + groups_[a].groups) return std::max(EndWith(a, a_seconds), EndWith(b, b_seconds));
  double rest = b_seconds + groups_[b].rest_s;
  int at = b;
  for (int outer = groups_[at].parent; outer != a; at = outer, outer = groups_[at].parent) {
    rest = groups_[outer].seconds + std::max(rest, RestWithout(outer, at));
  }
  return groups_[a].begin_s + a_seconds + std::max(rest, RestWithout(a, at));
}

void SweepGroups::Set(int group, SweepGroup with) {
  with.begin_s = groups_[group].begin_s;
  with.rest_s = groups_[group].rest_s;
  groups_[group] = std::move(with);
  for (int i = group + 1; i < group + groups_[group].groups; ++i) {
    const SweepGroup& outer = groups_[groups_[i].parent];
    groups_[i].begin_s = outer.begin_s + outer.seconds;
  }
  for (int i = groups_[group].parent; i >= 0; i = groups_[i].parent) {
    groups_[i].rest_s = RestWithout(i, -1);
  }
}

void SweepGroups::Clear() {
  for (SweepGroup& group : groups_) {
    group.members.clear();
    group.seconds = group.byte_steps = group.work_s = group.begin_s = group.rest_s = 0;
  }
}

SweepPlan SweepGroups::Plan() const {
  SweepPlan plan;
  plan.by = replace_ ? "search with replacement" : "search";
  std::vector<std::vector<int>> indexes = FreeIndexes(*problem_);
  for (const SweepGroup& group : groups_) {
    if (group.members.empty()) continue;
    std::vector<int> gpus(group.degree->gpus);
    std::iota(gpus.begin(), gpus.end(), group.first_gpu);
    std::vector<SweepRun> runs;
    LayOut(*problem_, *group.degree, group.members, replace_, true, &runs);
    for (SweepJob& job : JobsOf(*problem_, *group.degree, runs, gpus, group.begin_s, &indexes)) {
      plan.jobs.push_back(std::move(job));
    }
  }
  FinishPlan(*problem_, &plan);
  return plan;
}

}  // namespace lorad::planner
