#include "planner/foresight/line.h"

#include <algorithm>
#include <functional>
#include <memory>

namespace lorad::planner {

Line::Line(Round& round, size_t evicted_max) : round_(round), original_(round.queue.size()) {
  round_.queue.reserve(original_ + evicted_max);
  for (size_t i = 0; i < original_; ++i) {
    ranks_.push_back(static_cast<double>(i));
    since_s_.push_back(-static_cast<double>(round_.queue[i].job->waited_s));
    const size_t job_class = round_.queue[i].job_class;
    if (waiting_.size() <= job_class) waiting_.resize(job_class + 1);
    waiting_[job_class].push_back(i);
  }
}

void Line::AddTo(Fronts& fronts, const Hold& hold, size_t job_class) {
  const auto [worker_kind, base] = hold;
  const bool is_of_base = base == kAnyBase || round_.sizes.of(job_class).base == base;
  fronts.holds.push_back(is_of_base && round_.sizes.FitsAlone(job_class, worker_kind));
  const size_t front = FirstOf(job_class);
  if (fronts.holds.back() && front != kNobody) fronts.first.emplace(ranks_[front], front);
}

size_t Line::FirstOn(size_t worker_kind, size_t base) {
  const Hold hold(worker_kind, base);
  const auto [entry, is_new] = fronts_.try_emplace(hold);
  Fronts& fronts = entry->second;
  for (size_t c = 0; is_new && c < waiting_.size(); ++c) AddTo(fronts, hold, c);
  return fronts.first.empty() ? kNobody : fronts.first.begin()->second;
}

size_t Line::FirstInNeed() const {
  size_t first = kNobody;
  for (size_t c = 0; c < waiting_.size(); ++c) {
    const size_t job = FirstOf(c);
    if (job != kNobody && round_.queue[job].needs != nullptr && IsBefore(job, first)) first = job;
  }
  return first;
}

// `before` was the first of the class until now.
void Line::ChangeFront(size_t job_class, size_t before) {
  const size_t front = FirstOf(job_class);
  if (front == before) return;
  for (auto& [hold, fronts] : fronts_) {
    if (!fronts.holds[job_class]) continue;
    if (before != kNobody) fronts.first.erase({ranks_[before], before});
    if (front != kNobody) fronts.first.emplace(ranks_[front], front);
  }
}

void Line::Leave(size_t job) {
  const size_t job_class = round_.queue[job].job_class;
  waiting_[job_class].pop_front();
  ChangeFront(job_class, job);
}

// The first of the original queue that it goes before.
size_t Line::BehindOf(const QueuedJob& job) const {
  const bool gathers = round_.view.policy.points_per_hour > 0;
  const auto goes_before = [&](const Waiter& other) {
    if (other.job->resumes || other.job->priority > job.priority) return false;
    if (other.job->priority < job.priority) return true;
    return !other.job->first_of_equals && !gathers && other.job->arrival > job.arrival;
  };
  const auto end = round_.queue.begin() + static_cast<ptrdiff_t>(original_);
  const auto first = std::partition_point(round_.queue.begin(), end, std::not_fn(goes_before));
  return static_cast<size_t>(first - round_.queue.begin());
}

size_t Line::PutBack(const GroupState& group, const MemberState& member, double now_s) {
  const RunningJob& running = *member.running;
  const Footprint& footprint = round_.sizes.of(member.job_class);
  QueuedJob& job = evicted_.emplace_back();
  job.job = member.job;
  job.base_model = group.base_model;
  job.model = {std::shared_ptr<const void>(), footprint.model};  // the view owns it
  job.priority = running.priority;
  job.arrival = running.arrival;
  job.longest_sequence = running.longest_sequence;
  job.adapter = {std::shared_ptr<const void>(), footprint.adapter};
  job.step_tokens = running.step_tokens;
  job.step_squared_lengths = running.step_squared_lengths;
  job.label_group = running.label_group;
  job.company_max = running.company_max;
  job.alone = running.alone;
  job.stages = footprint.stages;
  // Between the ranks of two that were there, in the order of evictions.
  const double turn = 1 - 1 / (1 + static_cast<double>(evicted_.size()));
  ranks_.push_back(static_cast<double>(BehindOf(job)) - 1 + turn);
  since_s_.push_back(now_s);
  Waiter& waiter = round_.queue.emplace_back();
  waiter.job = &job;
  waiter.job_class = member.job_class;
  waiter.work = member.work;
  waiter.needs = NeedsOf(round_, member.job_class);
  const size_t number = round_.queue.size() - 1;
  while (waiting_.size() <= member.job_class) {
    waiting_.emplace_back();
    for (auto& [hold, fronts] : fronts_) AddTo(fronts, hold, waiting_.size() - 1);
  }
  const size_t front = FirstOf(member.job_class);
  std::deque<size_t>& jobs = waiting_[member.job_class];
  const auto is_before = [&](size_t a, size_t b) { return IsBefore(a, b); };
  jobs.insert(std::ranges::upper_bound(jobs, number, is_before), number);
  ChangeFront(member.job_class, front);
  return number;
}

}  // namespace lorad::planner
