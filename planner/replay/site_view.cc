// The site as the service shows its cluster to the policy (site.h).
#include <algorithm>
#include <cmath>

#include "planner/replay/site.h"

namespace lorad::planner {

int64_t Site::SecondsSince(double moment_s) const {
  return static_cast<int64_t>(std::max(0.0, now_s_ - moment_s));
}

int64_t Site::StepsLeft(size_t job) const {
  return std::max(int64_t{1}, static_cast<int64_t>(std::ceil(jobs_[job].steps_left - kNoStep)));
}

const ClusterView& Site::View() {
  view_.workers.clear();
  view_.groups.clear();
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w].here) continue;
    WorkerView& worker = view_.workers.emplace_back(history_.workers[w].view);
    worker.idle = !workers_[w].group;
    worker.loaded_base_model.clear();
    if (!workers_[w].group) continue;
    Tell(*workers_[w].group);
    view_.groups.push_back(ViewOf(*workers_[w].group));
  }
  if (view_.policy.fair_share) view_.left_lately = left_lately_.Counts(now_s_);
  for (size_t place = 0; place < view_.queue.size(); ++place) {
    view_.queue[place].waited_s = SecondsSince(jobs_[queued_jobs_[place]].since_s);
  }
  return view_;
}

GroupView Site::ViewOf(const Group& group) const {
  const HistoryWorker& worker = history_.workers[WorkerOf(group)];
  GroupView view;
  view.name = group.name;
  view.base_model = group.base_model;
  view.model = models_.at(group.base_model);
  view.shape = group.shape;
  view.budget_bytes = worker.view.budget_bytes;
  view.open = !group.cut;
  view.microbatch_tokens = worker.view.microbatch_tokens;
  view.changes = group.cut || group.forming;
  view.worker = worker.view.name;
  view.device_name = worker.view.device_name;
  view.forming = group.forming;
  view.formed_s = SecondsSince(group.forms_s);
  for (const size_t job : group.jobs) AddTo(view, job, false);
  for (const size_t job : group.coming) AddTo(view, job, true);
  return view;
}

void Site::AddTo(GroupView& view, size_t job, bool coming) const {
  const QueuedJob& content = history_.jobs[job].content;
  const Job& state = jobs_[job];
  view.jobs.push_back(content.job);
  view.adapters.push_back(*content.adapter);
  RunningJob& running = view.running.emplace_back();
  running.priority = content.priority;
  running.arrival = state.arrival;
  const bool trains = !coming && state.steps_then - state.steps_left >= 1;
  if (trains) {
    const double formed_s = workers_[state.worker].group->forms_s;
    running.running_s = SecondsSince(std::max(state.since_s, formed_s));
  }
  running.longest_sequence = content.longest_sequence;
  running.step_tokens = content.step_tokens;
  running.step_squared_lengths = content.step_squared_lengths;
  running.remaining_steps = StepsLeft(job);
  running.label_group = content.label_group;
  running.leaving = state.leaving && !coming;
  running.coming = coming;
  if (state.moved_at_s >= 0) running.moved_s = SecondsSince(state.moved_at_s);
}

}  // namespace lorad::planner
