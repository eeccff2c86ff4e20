// What decisions do to the site, and what coming and going does to groups (site.h).
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/replay/site.h"
#include "planner/schedule/ends.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {

bool Site::Carry(const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kAdmit:
      Admit(decision.jobs, GroupNamed(decision.group));
      return false;
    case Decision::Kind::kFormGroup:
      Admit(decision.jobs, Form(decision));
      return false;
    case Decision::Kind::kDissolve:
      Dissolve(worker_of_.at(decision.group));
      return true;
    case Decision::Kind::kReform:
      Reform(GroupNamed(decision.group));
      return false;
    case Decision::Kind::kEvict:
    case Decision::Kind::kReplace:
      Depart(decision);
      return false;
    case Decision::Kind::kWait:
      break;
  }
  return false;
}

Site::Group& Site::Form(const Decision& decision) {
  const size_t w = worker_names_.at(decision.worker);
  Worker& worker = workers_[w];
  if (worker.group) {
    assert(decision.kind == Decision::Kind::kReplace);  // formed by a decision before it
    return *worker.group;
  }
  assert(worker.here);
  Group& group = worker.group.emplace(Group());
  group.number = next_group_++;
  group.name = absl::StrCat("g", group.number);
  group.base_model = decision.base_model;
  group.shape = decision.shape;
  const auto load =
      history_.load_s.find({decision.base_model, history_.workers[w].view.device_name});
  group.forms_s = now_s_ + (load == history_.load_s.end() ? 0 : load->second);
  group.empty_since_s = group.told_s = now_s_;
  worker_of_[group.name] = w;
  ++outcome_.groups;
  return group;
}

void Site::Admit(const std::vector<std::string>& jobs, Group& group) {
  for (const std::string& name : jobs) {
    const size_t job = job_names_.at(name);
    Dequeue(job);
    Enter(job, WorkerOf(group));
  }
}

void Site::Depart(const Decision& decision) {
  for (const std::string& name : decision.jobs) {
    const size_t job = job_names_.at(name);
    Job& state = jobs_[job];
    assert(!state.leaving && workers_[state.worker].group->name == decision.group);
    Group& group = *workers_[state.worker].group;
    Tell(group);
    state.leaving = true;
    state.leaves_s = now_s_ + history_.move_s;
    departures_.emplace_back(state.leaves_s, job);
    Retime(group);
    if (decision.kind == Decision::Kind::kEvict) {
      ++outcome_.evictions;
      continue;
    }
    Group& to = decision.to.empty() ? Form(decision) : GroupNamed(decision.to);
    to.coming.push_back(job);
    state.to = WorkerOf(to);
    state.to_group = to.number;
    state.moved_at_s = now_s_;
    ++outcome_.moves;
  }
}

void Site::Reform(Group& group) {
  Tell(group);
  group.cut = true;
  group.cut_ends_s = now_s_ + history_.move_s;
  Retime(group);
  ++outcome_.reforms;
}

// ---- jobs and groups ----

bool Site::IsThere(size_t worker, int64_t group) const {
  return workers_[worker].group && workers_[worker].group->number == group;
}

TimeCoefficients Site::TimesOf(const Group& group) const {
  const WorkerView& worker = history_.workers[WorkerOf(group)].view;
  return worker.slowness * history_.times.at({group.base_model, worker.device_name});
}

void Site::Tell(Group& group) {
  const double passed_s = now_s_ - group.told_s;
  group.told_s = now_s_;
  if (group.round_ms <= 0 || passed_s <= 0) return;
  outcome_.training_s += passed_s;
  const double rounds = 1000 * passed_s / group.round_ms;
  for (const size_t job : group.jobs) {
    if (jobs_[job].leaving) continue;
    jobs_[job].steps_left = std::max(0.0, jobs_[job].steps_left - rounds);
  }
}

void Site::Retime(Group& group) {
  Workload round;
  double least = kNever;
  for (const size_t job : group.jobs) {
    if (jobs_[job].leaving) continue;
    round += jobs_[job].step;
    least = std::min(least, jobs_[job].steps_left);
  }
  if (group.forming || group.cut || least == kNever) {
    group.round_ms = 0;
    group.ends_s = kNever;
    return;
  }
  const Recomputation usual = EmptyShape(group.shape.device).recomputation;
  group.round_ms = RoundMs(TimesOf(group), round, group.shape.capacity_tokens) *
                   RecomputationFactor(group.shape.recomputation) / RecomputationFactor(usual);
  group.ends_s = now_s_ + least * group.round_ms / 1000;
}

void Site::Enqueue(size_t job, bool resumes) {
  Job& state = jobs_[job];
  assert(state.queue_place == kNowhere && state.worker == kNowhere);
  state.since_s = now_s_;
  state.queue_place = view_.queue.size();
  view_.queue.push_back(history_.jobs[job].content);
  QueuedJob& queued = view_.queue.back();
  queued.arrival = state.arrival;
  queued.remaining_steps = StepsLeft(job);
  queued.resumes = resumes;
  queued_jobs_.push_back(job);
}

void Site::Dequeue(size_t job) {
  Job& state = jobs_[job];
  const size_t place = std::exchange(state.queue_place, kNowhere);
  assert(place != kNowhere);
  outcome_.jobs[job].waited_s += now_s_ - state.since_s;
  if (place + 1 < view_.queue.size()) {
    view_.queue[place] = std::move(view_.queue.back());
    queued_jobs_[place] = queued_jobs_.back();
    jobs_[queued_jobs_[place]].queue_place = place;
  }
  view_.queue.pop_back();
  queued_jobs_.pop_back();
}

void Site::Enter(size_t job, size_t worker) {
  Group& group = *workers_[worker].group;
  assert(!group.cut && history_.jobs[job].content.base_model == group.base_model);
  Tell(group);
  group.jobs.push_back(job);
  jobs_[job].worker = worker;
  jobs_[job].since_s = now_s_;
  jobs_[job].steps_then = jobs_[job].steps_left;
  Retime(group);
}

void Site::Leave(size_t job, double lost) {
  Job& state = jobs_[job];
  const size_t worker = std::exchange(state.worker, kNowhere);
  Group& group = *workers_[worker].group;
  Tell(group);
  std::erase(group.jobs, job);
  if (group.jobs.empty()) group.empty_since_s = now_s_;
  Retime(group);
  outcome_.stays.push_back({.job = job,
                            .worker = worker,
                            .group = group.number,
                            .from_s = state.since_s,
                            .to_s = now_s_,
                            .steps = state.steps_then - state.steps_left,
                            .lost = lost});
  state.leaving = false;
}

bool Site::GiveUpMove(size_t job) {
  Job& state = jobs_[job];
  const size_t to = std::exchange(state.to, kNowhere);
  if (to == kNowhere) return false;
  if (IsThere(to, state.to_group)) std::erase(workers_[to].group->coming, job);
  return true;
}

void Site::Dissolve(size_t worker) {
  assert(workers_[worker].group->jobs.empty());
  worker_of_.erase(workers_[worker].group->name);
  workers_[worker].group.reset();
}

void Site::End(size_t job) {
  jobs_[job].steps_left = 0;
  Leave(job, 0);
  outcome_.jobs[job].ends_s = now_s_;
  left_lately_.Add(history_.jobs[job].content.label_group, now_s_);
  ++ended_;
}

}  // namespace lorad::planner
