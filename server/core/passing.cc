// A failure that passes does not fail a job: the job waits, shows why, and is tried again
// (failures.h).
#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/rules/failures.h"
#include "server/core/rules/losses.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

constexpr size_t kWorkersThatAgree = 2;

}  // namespace

void Core::State::TakeFailure(JobState& job, const std::string& reason,
                              const std::string& message) {
  const FailureKind kind = KindOf(reason);
  if (kind == FailureKind::kPassing) return Postpone(job, reason, message);
  jobs_.Fail(job, CategoryOf(kind), reason, message);
}

// A worker's word against our count: nobody knows who is right. The job is tried in less and less
// company, and fails once two workers have said so of it alone.
void Core::State::TakeTooLarge(JobState& job, const GroupState& group, const std::string& worker,
                               const std::string& message) {
  const auto jobs = static_cast<int32_t>(group.members.size());
  job.record.set_company_max(HalfOf(job.record.company_max(), jobs));
  job.record.set_alone(jobs == 1);
  Postpone(job, kMemory, message);
  if (jobs > 1) return;
  std::set<std::string>& workers = job.passing->too_large;
  workers.insert(worker);
  if (workers.size() >= kWorkersThatAgree) jobs_.Fail(job, v1::JobError::SERVER, kMemory, message);
}

void Core::State::Postpone(JobState& job, const std::string& reason, const std::string& message,
                           int64_t first_ms) {
  if (!job.passing) job.passing = std::make_unique<Passing>();
  const int64_t ms = first_ms > 0 ? first_ms : options_.postpone_ms;
  PauseFor(job, reason, message,
           std::min(ms << std::min(job.passing->tries++, 20), options_.postpone_max_ms));
}

void Core::State::PauseFor(JobState& job, const std::string& reason, const std::string& message,
                           int64_t ms) {
  assert(IsLive(job.state()) && job.state() != v1::Job::CANCELLING);
  if (!job.passing) job.passing = std::make_unique<Passing>();
  const Passing& passing = *job.passing;
  if (IsPlaced(job.state())) {
    jobs_.Unplace(job, absl::StrCat(reason, ": ", message));
  }
  jobs_.CountFailure(job, reason, message);
  const int64_t pause_us = ms * kMillisecond;
  const int times = std::max(passing.event.count(), 1);
  const absl::Time again = absl::FromUnixMicros(turn_.wall_us() + pause_us);
  job.why = absl::StrCat(reason, ": ", message,
                         times > 1 ? absl::StrCat(" (", times, " times)") : "", "; tried again at ",
                         absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", again, absl::UTCTimeZone()));
  jobs_.Postpone(job, turn_.now_us() + pause_us);
}

void Core::State::WaitOn(JobState& job) {
  const records::WaitRecord wait = job.record.wait();
  // What is left of it; a clock that was set back makes nobody wait for longer than a failure does.
  const int64_t left_us =
      std::min(wait.until_us() - turn_.wall_us(), options_.postpone_max_ms * kMillisecond);
  job.passing = std::make_unique<Passing>();
  job.passing->tries = wait.tries();
  if (left_us <= 0 || job.state() != v1::Job::QUEUED) return;
  job.why = wait.why();
  jobs_.Postpone(job, turn_.now_us() + left_us);
}

void Core::State::TryPostponed() {
  for (const std::string& name : jobs_.TakeDue()) {
    JobState* job = jobs_.Find(name);
    if (!job) continue;
    if (job->state() == v1::Job::QUEUED && !job->reads_rows) jobs_.Offer(*job);
    if (job->reads_rows) ReadRowsAgain(*job);
    if (job->state() == v1::Job::VALIDATING && rows_.Ensure(job->job())) SettleJob(*job);
  }
  jobs_.SetPostponedTimer();
}

}  // namespace lorad::server
