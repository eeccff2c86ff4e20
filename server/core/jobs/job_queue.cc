#include "server/core/jobs/job_queue.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <ranges>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/catalog/model_shape.h"

namespace lorad::server {
namespace {

// A decision looks at the first of every shape, and of few shapes more, so many of each and
// about so many in all.
constexpr size_t kQueueView = 384;
constexpr size_t kOfShapeMax = 256;

// Up by an eighth at most: of jobs that are nearly as long one is looked at first, or else thousands
// of rows' lengths would be as many shapes.
int64_t RoundedUp(int64_t length) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(length, 1));
  const uint64_t step = std::max<uint64_t>(std::bit_floor(value) / 8, 1);
  return static_cast<int64_t>((value + step - 1) / step * step);
}

constexpr size_t kAhead = 8;  // of jobs that are walked over

void Prefetch(const void* what, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(what) + at);
  }
}

void PrefetchBetween(const void* begin, const void* end) {
  Prefetch(begin,
           static_cast<size_t>(static_cast<const char*>(end) - static_cast<const char*>(begin)));
}

// JobState says what lies where.
void PrefetchAsked(const JobState& job) { PrefetchBetween(&job.adapter, &job.why); }
void PrefetchTold(const JobState& job) { PrefetchBetween(&job.stand, &job + 1); }

}  // namespace

JobQueue::Key JobQueue::KeyOf(const JobState& job) {
  return {!job.resumes, -job.job().priority(), !LeadsEquals(job), job.record.order()};
}

std::string JobQueue::ShapeOf(const JobState& job) const {
  const v1::Job& content = job.job();
  return absl::StrCat(job.resumes, LeadsEquals(job), "/", job.record.company_max(), "/",
                      content.priority(), "/", RoundedUp(job.record.longest_tokens()), "/",
                      job.adapter->ToText(), "/", content.base_model(), "/",
                      absl::StrJoin(quotas_.HeldBy(content.labels()), ","), "/",
                      absl::StrJoin(job.Avoided(), ","));
}

void JobQueue::Offer(JobState& job) {
  Alike& alike = shapes_[ShapeOf(job)][options_.LabelGroup(job.job().labels())];
  alike.jobs[KeyOf(job)] = &job;
  alike.first = alike.jobs.begin()->second->stand;
  job.viewed = views_;  // the next one says
  turn_.WantSchedule();
}

bool JobQueue::Withhold(JobState& job) {
  job.viewed = JobState::kNotOffered;
  const auto shape = shapes_.find(ShapeOf(job));
  if (shape == shapes_.end()) return false;
  const auto alike = shape->second.find(options_.LabelGroup(job.job().labels()));
  if (alike == shape->second.end()) return false;
  auto& jobs = alike->second.jobs;
  const bool offered = jobs.erase(KeyOf(job)) > 0;
  if (jobs.empty()) {
    shape->second.erase(alike);
    if (shape->second.empty()) shapes_.erase(shape);
  } else {
    alike->second.first = jobs.begin()->second->stand;
  }
  return offered;
}

std::shared_ptr<const planner::AdapterShape> JobQueue::Shared(planner::AdapterShape shape) {
  const auto found = adapters_.find(shape);
  if (found != adapters_.end()) return found->second;
  std::erase_if(adapters_, [](const auto& entry) { return entry.second.use_count() == 1; });
  return adapters_[shape] = std::make_shared<const planner::AdapterShape>(shape);
}

std::vector<JobQueue::Place>::iterator JobQueue::Find(const Key& key) {
  return std::ranges::lower_bound(queue_, key, {}, &Place::key);
}

void JobQueue::TakeStand(JobState& job) {
  if (free_stands_.empty()) {
    job.stand = static_cast<int32_t>(places_.size());
    places_.push_back(0);
  } else {
    job.stand = free_stands_.back();
    free_stands_.pop_back();
  }
  const Place place{KeyOf(job), job.stand, &job};
  queue_.insert(Find(place.key), place);
  newcomers_.push_back(place);
  places_known_ = false;
}

void JobQueue::LeaveStand(JobState& job) {
  queue_.erase(Find(KeyOf(job)));
  for (std::vector<Place>* standing : {&order_, &newcomers_}) {
    std::erase_if(*standing, [&](const Place& place) { return place.stand == job.stand; });
  }
  free_stands_.push_back(std::exchange(job.stand, -1));
  places_known_ = false;
}

void JobQueue::Enter(JobState& job) {
  if (!job.adapter) job.adapter = Shared(ShapeOfAdapter(job.job().adapter()));
  TakeStand(job);
  Offer(job);
}

void JobQueue::Leave(JobState& job) {
  Withhold(job);
  LeaveStand(job);
  job.resumes = false;
  job.record.clear_first_of_equals();
  job.goes_to.clear();
  job.trained_on.clear();
  job.why.clear();
}

void JobQueue::Change(JobState& job, absl::FunctionRef<void()> change) {
  const bool offered = Withhold(job);
  LeaveStand(job);
  change();
  TakeStand(job);
  if (offered) Offer(job);
}

void JobQueue::ChangeShapes(absl::FunctionRef<void()> change) {
  std::vector<JobState*> offered;
  for (const auto& [text, shape] : shapes_) {
    for (const auto& [label, alike] : shape) {
      for (const auto& [key, job] : alike.jobs) offered.push_back(job);
    }
  }
  shapes_.clear();
  change();
  for (JobState* job : offered) Offer(*job);
}

// ---- places ----

void JobQueue::Arrange(const std::vector<size_t>& order) {
  assert(order.size() == queue_.size());
  order_.clear();
  order_.reserve(order.size());
  for (const size_t i : order) order_.push_back(queue_[i]);
  newcomers_.clear();
  places_known_ = false;
}

void JobQueue::CountPlaces() const {
  if (places_known_) return;
  if (!newcomers_.empty()) {  // they come between the others
    std::ranges::sort(newcomers_, {}, &Place::key);
    std::vector<Place> order;
    order.reserve(queue_.size());
    auto next = order_.begin();
    for (const Place& newcomer : newcomers_) {
      while (next != order_.end() && next->key < newcomer.key) order.push_back(*next++);
      order.push_back(newcomer);
    }
    order.insert(order.end(), next, order_.end());
    order_ = std::move(order);
    newcomers_.clear();
  }
  int number = 0;
  for (const Place& place : order_) places_[static_cast<size_t>(place.stand)] = ++number;
  places_known_ = true;
}

int JobQueue::PlaceOf(const JobState& job) const {
  CountPlaces();
  return places_[static_cast<size_t>(job.stand)];
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
std::vector<JobState*> JobQueue::View() const {
  ++views_;
  CountPlaces();
  std::vector<std::pair<Key, JobState*>> view;
  for (const auto& [text, shape] : shapes_) {
    size_t of_each = 0;
    const std::vector<const Alike*> looked_at = LookedAt(shape, &of_each);
    for (const Alike* alike : looked_at) {
      for (const auto& [key, job] : alike->jobs | std::views::take(of_each)) PrefetchAsked(*job);
    }
    for (const Alike* alike : looked_at) {
      size_t taken = 0;
      for (const auto& [key, job] : alike->jobs) {
        if (taken == of_each) break;
        job->viewed = views_;
        if (job->commits > 0) continue;  // goes on from the checkpoint that is being written
        if (job->reads_content) continue;
        view.emplace_back(key, job);
        taken++;
      }
    }
  }
  std::ranges::sort(view);
  std::vector<JobState*> queue;
  queue.reserve(view.size());
  for (const auto& [key, job] : view) queue.push_back(job);
  return queue;
}

// Of many label groups those whose first job stands in front: that is where fair share has it.
// REQUIRES: places are counted.
std::vector<const JobQueue::Alike*> JobQueue::LookedAt(const Shape& shape, size_t* of_each) const {
  const size_t each = ViewOfShape();
  *of_each = std::max<size_t>(each / shape.size(), 1);
  std::vector<const Alike*> labels;
  labels.reserve(shape.size());
  for (const auto& [label, alike] : shape) labels.push_back(&alike);
  if (labels.size() <= each) return labels;
  const auto place = [&](const Alike* alike) { return places_[static_cast<size_t>(alike->first)]; };
  std::ranges::nth_element(labels, labels.begin() + static_cast<ptrdiff_t>(each), {}, place);
  labels.resize(each);
  return labels;
}

size_t JobQueue::ViewOfShape() const {
  return std::clamp<size_t>(kQueueView / std::max<size_t>(shapes_.size(), 1), 1, kOfShapeMax);
}

std::vector<JobState*> JobQueue::All() const {
  std::vector<JobState*> all;
  all.reserve(queue_.size());
  for (const Place& place : queue_) all.push_back(place.job);
  return all;
}

void JobQueue::PrefetchAfter(const std::vector<JobState*>& jobs, size_t i) {
  if (i + 2 * kAhead < jobs.size()) {
    const JobState& job = *jobs[i + 2 * kAhead];
    Prefetch(&job.record, sizeof(job.record));
    PrefetchAsked(job);
  }
  if (i + kAhead < jobs.size()) Prefetch(&jobs[i + kAhead]->job(), sizeof(v1::Job));
  if (i + kAhead / 2 < jobs.size()) {  // by then the job itself is there to be read
    const JobState& job = *jobs[i + kAhead / 2];
    Prefetch(&job.job().training(), sizeof(v1::TrainingConfig));
    Prefetch(job.name().data(), 1);
  }
}

void JobQueue::PrefetchToldAfter(const std::vector<JobState*>& jobs, size_t i) {
  if (i + kAhead < jobs.size()) PrefetchTold(*jobs[i + kAhead]);
}

// ---- invariants ----

absl::Status JobQueue::CheckInvariants(const std::set<const JobState*>& queued,
                                       const std::map<std::string, const JobState*>& live) const {
  const auto broken = [](const std::string& what) { return absl::InternalError("queue: " + what); };
  if (queue_.size() != queued.size()) return broken("it has more or fewer jobs than are QUEUED");
  CountPlaces();
  if (order_.size() != queue_.size()) return broken("not everyone has one place");
  std::set<const JobState*> offered;
  for (const auto& [text, shape] : shapes_) {
    for (const auto& [label, alike] : shape) {
      if (alike.jobs.empty()) return broken("a label group without jobs");
      if (alike.first != alike.jobs.begin()->second->stand) {
        return broken("another leads " + alike.jobs.begin()->second->name() + "'s equals");
      }
      for (const auto& [key, job] : alike.jobs) {
        if (text != ShapeOf(*job) || label != options_.LabelGroup(job->job().labels()) ||
            key != KeyOf(*job)) {
          return broken(job->name() + " is offered as what it is not");
        }
        offered.insert(job);
      }
    }
    if (shape.empty()) return broken("a shape without jobs");
  }
  std::set<std::string_view> postponed;
  for (const auto& [until_us, name] : postponed_) {
    postponed.insert(name);
    const auto job = live.find(name);
    if (job == live.end() || !job->second->passing || job->second->passing->until_us != until_us) {
      return broken(name + " is postponed by a back-off that is over");
    }
  }
  if (queue_.size() + free_stands_.size() != places_.size()) return broken("a stand is lost");
  if (!std::ranges::is_sorted(queue_, {}, &Place::key)) return broken("it is not in its order");
  for (const Place& waits : queue_) {
    const JobState* job = waits.job;
    const Key& key = waits.key;
    if (!queued.contains(job)) return broken("it has a job that is not QUEUED");
    if (KeyOf(*job) != key) return broken(job->name() + " stands at another's place");
    const Place& place = order_[static_cast<size_t>(PlaceOf(*job)) - 1];
    if (waits.stand != job->stand || place.stand != job->stand || place.key != key) {
      return broken(job->name() + " has another's place");
    }
    if (offered.erase(job) == 0 && !postponed.contains(job->name()) && !job->reads_rows) {
      return broken(job->name() + " is not offered, and nothing will offer it");
    }
  }
  if (!offered.empty()) return broken("what is offered is not in the queue");
  if (!postponed_.empty() && (timer_us_ == 0 || timer_us_ > postponed_.begin()->first)) {
    return broken("no timer is set for the first that is postponed");
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
