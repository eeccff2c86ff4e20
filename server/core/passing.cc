// What passes does not fail a job: it waits, is told why, and is tried again (failures.h).
#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/failures.h"
#include "server/core/losses.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

constexpr int64_t kMillisecond = 1000;  // in microseconds
constexpr size_t kWorkersThatAgree = 2;

}  // namespace

void Core::State::TakeFailure(JobState& job, const std::string& reason,
                              const std::string& message) {
  const FailureKind kind = KindOf(reason);
  if (kind == FailureKind::kPassing) return Postpone(job, reason, message);
  FailJob(job, CategoryOf(kind), reason, message);
}

// A worker's word against our count: nobody can tell who is right. The job is tried in less and
// less company, and fails once two workers have said so of it alone.
void Core::State::TakeTooLarge(JobState& job, const GroupState& group, const std::string& message) {
  const auto jobs = static_cast<int32_t>(group.members.size());
  job.record.set_company_max(HalfOf(job.record.company_max(), jobs));
  job.record.set_alone(jobs == 1);
  Postpone(job, kMemory, message);
  if (jobs > 1) return;
  std::set<std::string>& workers = job.passing->too_large;
  workers.insert(group.worker);
  if (workers.size() >= kWorkersThatAgree) FailJob(job, v1::JobError::SERVER, kMemory, message);
}

void Core::State::Postpone(JobState& job, const std::string& reason, const std::string& message,
                           int64_t first_ms) {
  assert(IsLive(job.state()) && job.state() != v1::Job::CANCELLING);
  if (!job.passing) job.passing = std::make_unique<Passing>();
  Passing& passing = *job.passing;
  const int64_t pause_us =
      std::min(first_ms << std::min(passing.tries, 20), options_.postpone_max_ms) * kMillisecond;
  passing.tries++;
  postponed_.erase({passing.until_us, job.name()});
  passing.until_us = turn_.now_us() + pause_us;
  if (IsPlaced(job.state())) {
    FallBack(job);
    Transition(job, v1::Job::QUEUED, absl::StrCat(reason, ": ", message));
  }
  if (job.state() == v1::Job::QUEUED) LeaveShapes(job);
  CountFailure(job, reason, message);
  const int times = std::max(passing.event.count(), 1);
  const absl::Time again = absl::FromUnixMicros(turn_.wall_us() + pause_us);
  job.why = absl::StrCat(reason, ": ", message,
                         times > 1 ? absl::StrCat(" (", times, " times)") : "", "; tried again at ",
                         absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", again, absl::UTCTimeZone()));
  postponed_.insert({passing.until_us, job.name()});
  SetPostponedTimer();
}

// A failure that comes again is counted in the event that told of it first, and what was tried in
// between leaves no events: a night without a share makes a few of them, not thousands.
void Core::State::CountFailure(JobState& job, const std::string& reason,
                               const std::string& message) {
  Passing& passing = *job.passing;
  if (passing.event.reason() != reason) {
    passing.event = AddEvent(job, reason, message);
    passing.changes.clear();
    return;
  }
  for (const int64_t revision : passing.changes) {
    turn_.Put(storage::DeleteEntry(kEventSeries, job.name(), revision));
  }
  passing.changes.clear();
  v1::Event& event = passing.event;
  event.set_count(std::max(event.count(), 1) + 1);
  event.set_message(Utf8(message));
  turn_.Stamp(event.mutable_time());
  turn_.Put(
      storage::PutEntry(kEventSeries, job.name(), event.revision(), event.SerializeAsString()));
  Touch(job);
}

void Core::State::SetPostponedTimer() {
  if (postponed_.empty()) return;
  const int64_t first_us = postponed_.begin()->first;
  if (postponed_timer_us_ != 0 && postponed_timer_us_ <= first_us) return;
  postponed_timer_us_ = first_us;
  turn_.Do(SetTimer{kPostponedEnds, first_us});
}

void Core::State::TryPostponed() {
  if (postponed_timer_us_ <= turn_.now_us()) postponed_timer_us_ = 0;
  while (!postponed_.empty() && postponed_.begin()->first <= turn_.now_us()) {
    JobState* job = FindJob(postponed_.begin()->second);
    postponed_.erase(postponed_.begin());
    if (!job) continue;
    if (job->state() == v1::Job::QUEUED && !job->reads_rows) EnterShapes(*job);
    if (job->reads_rows) ReadRowsAgain(*job);
    if (job->state() == v1::Job::VALIDATING && rows_.Ensure(job->job())) SettleJob(*job);
  }
  SetPostponedTimer();
}

}  // namespace lorad::server
