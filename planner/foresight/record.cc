#include "planner/foresight/record.h"

namespace lorad::planner {

Foresight Record::Take() {
  Foresight seen;
  for (size_t i = 0; i < running_.size(); ++i) {
    Foreseen& job = seen.running[std::move(running_[i])];
    job.end_s = std::max(job.end_s, jobs_[waiting_ + i].end_s);
  }
  jobs_.resize(waiting_);
  seen.waiting = std::move(jobs_);
  return seen;
}

const Foreseen* Foresight::Find(const ClusterView& view, const std::string& job) const {
  if (const auto found = running.find(job); found != running.end()) {
    return found->second.end_s < kNever ? &found->second : nullptr;
  }
  const auto queued = std::ranges::find(view.queue, job, &QueuedJob::job);
  if (queued == view.queue.end()) return nullptr;
  const Foreseen& seen = waiting[static_cast<size_t>(queued - view.queue.begin())];
  return seen.end_s < kNever ? &seen : nullptr;
}

}  // namespace lorad::planner
