#include "server/core/jobs/job_queue.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/catalog/model_shape.h"

namespace lorad::server {
namespace {

// A decision looks at the first of every shape, and of few shapes more, so many of each and
// about so many in all.
constexpr size_t kQueueView = 1024;
constexpr size_t kOfShapeMax = 256;

}  // namespace

// A job that is tried alone goes before all others too: they wait for what comes of it (losses.h).
JobQueue::Key JobQueue::KeyOf(const JobState& job) {
  return {!Resumes(job), -job.job().priority(), job.record.order()};
}

std::string JobQueue::ShapeOf(const JobState& job) const {
  const v1::Job& content = job.job();
  return absl::StrCat(Resumes(job), "/", job.record.company_max(), "/", content.priority(), "/",
                      job.record.longest_tokens(), "/", job.adapter.ToText(), "/",
                      content.base_model(), "/", options_.LabelGroup(content.labels()), "/",
                      absl::StrJoin(quotas_.HeldBy(content.labels()), ","));
}

void JobQueue::Offer(JobState& job) {
  shapes_[ShapeOf(job)][KeyOf(job)] = &job;
  turn_.WantSchedule();
}

bool JobQueue::Withhold(JobState& job) {
  const auto shape = shapes_.find(ShapeOf(job));
  if (shape == shapes_.end()) return false;
  const bool offered = shape->second.erase(KeyOf(job)) > 0;
  if (shape->second.empty()) shapes_.erase(shape);
  return offered;
}

void JobQueue::Enter(JobState& job) {
  if (job.adapter.parts.empty()) job.adapter = ShapeOfAdapter(job.job().adapter());
  queue_[KeyOf(job)] = &job;
  Offer(job);
  places_known_ = false;
}

void JobQueue::Leave(JobState& job) {
  queue_.erase(KeyOf(job));
  Withhold(job);
  LosePlace(job);
  job.resumes = false;
  job.why.clear();
}

void JobQueue::Change(JobState& job, absl::FunctionRef<void()> change) {
  queue_.erase(KeyOf(job));
  const bool offered = Withhold(job);
  LosePlace(job);
  change();
  queue_[KeyOf(job)] = &job;
  if (offered) Offer(job);
}

void JobQueue::ChangeShapes(absl::FunctionRef<void()> change) {
  std::vector<JobState*> offered;
  for (const auto& [shape, jobs] : shapes_) {
    for (const auto& [key, job] : jobs) offered.push_back(job);
  }
  shapes_.clear();
  change();
  for (JobState* job : offered) Offer(*job);
}

// ---- places ----

void JobQueue::LosePlace(JobState& job) {
  std::erase(order_, &job);
  job.place = 0;
  places_known_ = false;
}

void JobQueue::Arrange(std::vector<JobState*> order) {
  for (const auto& [key, job] : queue_) job->place = 0;
  order_ = std::move(order);
  for (JobState* job : order_) job->place = 1;  // which one is counted when it is asked for
  places_known_ = false;
}

void JobQueue::CountPlaces() const {
  if (places_known_) return;
  std::vector<JobState*> order;
  order.reserve(queue_.size());
  auto next = order_.begin();
  for (const auto& [key, job] : queue_) {
    if (job->place > 0) continue;
    while (next != order_.end() && KeyOf(**next) < key) order.push_back(*next++);
    order.push_back(job);
  }
  order.insert(order.end(), next, order_.end());
  order_ = std::move(order);
  int place = 0;
  for (JobState* job : order_) job->place = ++place;
  places_known_ = true;
}

int JobQueue::PlaceOf(const JobState& job) const {
  CountPlaces();
  return job.place;
}

// ---- back-off ----

void JobQueue::Postpone(JobState& job, int64_t until_us) {
  if (job.state() == v1::Job::QUEUED) Withhold(job);
  postponed_.erase({job.passing->until_us, job.name()});
  job.passing->until_us = until_us;
  job.record.mutable_wait()->set_until_us(turn_.wall_us() + until_us - turn_.now_us());
  job.record.mutable_wait()->set_tries(job.passing->tries);
  job.record.mutable_wait()->set_why(job.why);
  postponed_.insert({until_us, job.name()});
  SetTimer();
}

void JobQueue::EndPassing(JobState& job) {
  if (!job.passing) return;
  postponed_.erase({job.passing->until_us, job.name()});
  job.passing.reset();
  job.record.clear_wait();
}

std::vector<std::string> JobQueue::TakeDue() {
  if (timer_us_ <= turn_.now_us()) timer_us_ = 0;
  std::vector<std::string> due;
  while (!postponed_.empty() && postponed_.begin()->first <= turn_.now_us()) {
    due.push_back(postponed_.begin()->second);
    postponed_.erase(postponed_.begin());
  }
  return due;
}

void JobQueue::SetTimer() {
  if (postponed_.empty()) return;
  const int64_t first_us = postponed_.begin()->first;
  if (timer_us_ != 0 && timer_us_ <= first_us) return;
  timer_us_ = first_us;
  turn_.Do(server::SetTimer{kPostponedEnds, first_us});
}

// ---- what a decision looks at ----

// The first of each shape, so that no crowd of jobs that have to wait hides one that does not; of
// few shapes more each, for they may be placed together. Those behind have their turn when these
// are placed.
std::vector<const JobState*> JobQueue::View(const std::set<std::string_view>& members) const {
  const size_t each = ViewOfShape();
  std::vector<std::pair<Key, const JobState*>> view;
  for (const auto& [shape, jobs] : shapes_) {
    size_t taken = 0;
    for (const auto& [key, job] : jobs) {
      if (taken == each) break;
      if (job->commits > 0) continue;  // goes on from the checkpoint that is being written
      if (job->reads_content) continue;
      if (members.contains(job->name())) continue;  // about to leave its group
      view.emplace_back(key, job);
      taken++;
    }
  }
  std::ranges::sort(view);
  std::vector<const JobState*> queue;
  for (const auto& [key, job] : view) queue.push_back(job);
  return queue;
}

size_t JobQueue::ViewOfShape() const {
  return std::clamp<size_t>(kQueueView / std::max<size_t>(shapes_.size(), 1), 1, kOfShapeMax);
}

size_t JobQueue::Beyond(const JobState& job) const {
  const auto shape = shapes_.find(ShapeOf(job));
  const size_t each = ViewOfShape();
  if (shape == shapes_.end() || shape->second.size() <= each) return 0;
  const auto first = std::next(shape->second.begin(), static_cast<int64_t>(each));
  return KeyOf(job) < first->first || !shape->second.contains(KeyOf(job)) ? 0 : each;
}

std::vector<JobState*> JobQueue::All() const {
  std::vector<JobState*> all;
  all.reserve(queue_.size());
  for (const auto& [key, job] : queue_) all.push_back(job);
  return all;
}

// ---- invariants ----

absl::Status JobQueue::CheckInvariants(const std::set<const JobState*>& queued,
                                       const std::map<std::string, const JobState*>& live) const {
  const auto broken = [](const std::string& what) { return absl::InternalError("queue: " + what); };
  if (queue_.size() != queued.size()) return broken("it has more or fewer jobs than are QUEUED");
  CountPlaces();
  if (order_.size() != queue_.size()) return broken("not everyone has one place");
  size_t offered = 0;
  for (const auto& [shape, in_shape] : shapes_) {
    if (in_shape.empty()) return broken("a shape without jobs");
    offered += in_shape.size();
  }
  std::set<std::string_view> postponed;
  for (const auto& [until_us, name] : postponed_) {
    postponed.insert(name);
    const auto job = live.find(name);
    if (job == live.end() || !job->second->passing || job->second->passing->until_us != until_us) {
      return broken(name + " is postponed by a back-off that is over");
    }
  }
  for (const auto& [key, job] : queue_) {
    if (!queued.contains(job)) return broken("it has a job that is not QUEUED");
    if (KeyOf(*job) != key) return broken(job->name() + " stands at another's place");
    if (order_[static_cast<size_t>(job->place) - 1] != job) {
      return broken(job->name() + " has another's place");
    }
    const auto shape = shapes_.find(ShapeOf(*job));
    if (shape != shapes_.end() && shape->second.contains(key)) {
      offered--;
    } else if (!postponed.contains(job->name()) && !job->reads_rows) {
      return broken(job->name() + " is not offered, and nothing will offer it");
    }
  }
  if (offered != 0) return broken("what is offered is not in the queue");
  if (!postponed_.empty() && (timer_us_ == 0 || timer_us_ > postponed_.begin()->first)) {
    return broken("no timer is set for the first that is postponed");
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
