#include "planner/replay/site.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/schedule/schedule.h"

namespace lorad::planner {

Site::Site(const History& history, const SchedulePolicy& policy)
    : history_(history), workers_(history.workers.size()), jobs_(history.jobs.size()) {
  view_.policy = policy;
  view_.times = history.times;
  view_.load_s = history.load_s;
  view_.move_s = history.move_s;
  view_.microbatch_tokens = history.microbatch_tokens;
  for (size_t w = 0; w < workers_.size(); ++w) {
    const HistoryWorker& worker = history.workers[w];
    worker_names_[worker.view.name] = w;
    changes_.push_back({worker.comes_s, w, true});
    if (worker.goes_s < kNever) changes_.push_back({worker.goes_s, w, false});
  }
  std::ranges::stable_sort(changes_, {}, &Change::at_s);
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const QueuedJob& content = history.jobs[j].content;
    job_names_[content.job] = j;
    models_[content.base_model] = content.model;
    jobs_[j].step = StepOf(content);
    jobs_[j].steps_left = static_cast<double>(content.remaining_steps);
  }
  arrivals_.resize(jobs_.size());
  std::iota(arrivals_.begin(), arrivals_.end(), size_t{0});
  std::ranges::stable_sort(arrivals_, {}, [&](size_t j) { return history.jobs[j].comes_s; });
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    jobs_[arrivals_[i]].arrival = static_cast<int64_t>(i);
  }
  outcome_.jobs.resize(jobs_.size());
}

double Site::Next() const {
  double next = kNever;
  if (next_change_ < changes_.size()) next = changes_[next_change_].at_s;
  if (next_arrival_ < arrivals_.size()) {
    next = std::min(next, history_.jobs[arrivals_[next_arrival_]].comes_s);
  }
  if (!departures_.empty()) next = std::min(next, departures_.front().first);
  for (const Worker& worker : workers_) {
    if (!worker.group) continue;
    const Group& group = *worker.group;
    next = std::min(next, group.ends_s);
    if (group.forming) next = std::min(next, group.forms_s);
    if (group.cut) next = std::min(next, group.cut_ends_s);
    if (group.jobs.empty() && group.coming.empty()) {
      next = std::min(next, std::max(group.forms_s, group.empty_since_s + history_.empty_group_s));
    }
  }
  return std::max(next, now_s_);
}

bool Site::GoTo(double moment_s) {
  now_s_ = moment_s;
  bool happened = EndForming();
  happened |= EndJobs();
  happened |= EndDepartures();
  happened |= EndCuts();
  happened |= ChangeWorkers();
  happened |= LetJobsCome();
  happened |= DissolveEmpty();
  return happened;
}

bool Site::EndForming() {
  bool any = false;
  for (Worker& worker : workers_) {
    if (!worker.group || !worker.group->forming || worker.group->forms_s > now_s_) continue;
    worker.group->forming = false;
    worker.group->told_s = now_s_;
    Retime(*worker.group);
    any = true;
  }
  return any;
}

bool Site::EndJobs() {
  bool any = false;
  for (Worker& worker : workers_) {
    if (!worker.group || worker.group->ends_s > now_s_) continue;
    Group& group = *worker.group;
    Tell(group);
    double least = kNever;
    for (const size_t job : group.jobs) {
      if (!jobs_[job].leaving) least = std::min(least, jobs_[job].steps_left);
    }
    const std::vector<size_t> members = group.jobs;
    for (const size_t job : members) {
      if (!jobs_[job].leaving && jobs_[job].steps_left <= least + kNoStep) End(job);
    }
    any = true;
  }
  return any;
}

bool Site::EndDepartures() {
  bool any = false;
  while (!departures_.empty() && departures_.front().first <= now_s_) {
    const auto [at_s, job] = departures_.front();
    departures_.pop_front();
    Job& state = jobs_[job];
    if (!state.leaving || state.leaves_s != at_s) continue;
    Leave(job, 0);
    const size_t to = state.to;
    const bool moves = GiveUpMove(job);
    if (moves && IsThere(to, state.to_group) && !workers_[to].group->cut) {
      Enter(job, to);
    } else {
      const bool trained = state.steps_then - state.steps_left >= 1;
      if (trained && !moves) left_lately_.Add(history_.jobs[job].content.label_group, now_s_);
      Enqueue(job, moves);
    }
    any = true;
  }
  return any;
}

bool Site::EndCuts() {
  bool any = false;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w].group || !workers_[w].group->cut || workers_[w].group->cut_ends_s > now_s_) {
      continue;
    }
    const std::vector<size_t> members = workers_[w].group->jobs;
    for (const size_t job : members) {
      Leave(job, 0);
      GiveUpMove(job);
      Enqueue(job, true);
    }
    Dissolve(w);
    any = true;
  }
  return any;
}

bool Site::ChangeWorkers() {
  bool any = false;
  for (; next_change_ < changes_.size() && changes_[next_change_].at_s <= now_s_; ++next_change_) {
    const auto& [at_s, w, comes] = changes_[next_change_];
    any = true;
    workers_[w].here = comes;
    if (comes || !workers_[w].group) continue;
    Tell(*workers_[w].group);
    const std::vector<size_t> members = workers_[w].group->jobs;
    for (const size_t job : members) {
      const HistoryJob& content = history_.jobs[job];
      const auto all = static_cast<double>(content.content.remaining_steps);
      const auto every = static_cast<double>(content.checkpoint_steps);
      const double done = all - jobs_[job].steps_left;
      const double kept = every > 0 ? std::floor((done + kNoStep) / every) * every : 0;
      // What it did before it came into this group was saved.
      const double lost = std::max(0.0, done - std::max(kept, all - jobs_[job].steps_then));
      Leave(job, lost);
      GiveUpMove(job);
      jobs_[job].steps_left += lost;
      Enqueue(job, false);
    }
    Dissolve(w);
  }
  return any;
}

bool Site::LetJobsCome() {
  bool any = false;
  for (; next_arrival_ < arrivals_.size(); ++next_arrival_) {
    const size_t job = arrivals_[next_arrival_];
    if (history_.jobs[job].comes_s > now_s_) break;
    Enqueue(job, false);
    any = true;
  }
  return any;
}

bool Site::DissolveEmpty() {
  bool any = false;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w].group) continue;
    const Group& group = *workers_[w].group;
    if (group.forming || !group.jobs.empty() || !group.coming.empty() ||
        now_s_ < std::max(group.forms_s, group.empty_since_s + history_.empty_group_s)) {
      continue;
    }
    Dissolve(w);
    any = true;
  }
  return any;
}

}  // namespace lorad::planner
