// A failure that passes does not fail a job: the job waits, shows why, and is tried again
// (failures.h).
#include <algorithm>
#include <cassert>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/core/cluster/report_checks.h"
#include "server/core/rules/failures.h"
#include "server/core/rules/losses.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

constexpr size_t kWorkersThatAgree = 2;
// Of a job that no worker holds alone the same ones may be asked again, for so many words in all.
constexpr int kWordsThatDo = 3;
constexpr size_t kRowsNamedMax = 20;

std::string Listed(const std::set<int64_t>& numbers) {
  const std::vector<int64_t> all(numbers.begin(), numbers.end());
  const auto named = static_cast<std::ptrdiff_t>(std::min(all.size(), kRowsNamedMax));
  return absl::StrCat(absl::StrJoin(all.begin(), all.begin() + named, ", "),
                      all.size() > kRowsNamedMax ? ", .." : "");
}

// Lines of the dataset's file: those of the sequences that are reported, or where the loss of none
// is to blame, all of the batch. Empty: nobody knows.
std::set<int64_t> LinesToBlame(const Member& member, const worker::v1::NotFinite& report) {
  const auto batch = member.lines.find(report.step());
  if (batch == member.lines.end()) return {};
  const std::vector<int64_t>& lines = batch->second;
  if (report.sequences().empty()) return {lines.begin(), lines.end()};
  std::set<int64_t> named;
  for (const int64_t sequence : report.sequences()) {
    if (sequence >= 0 && sequence < std::ssize(lines)) named.insert(lines[sequence]);
  }
  return named;
}

// The rows of its batch: ", in line 3 of dataset 'x'".
std::string RowsToBlame(const std::set<int64_t>& lines, const std::string& dataset,
                        const worker::v1::NotFinite& report) {
  const bool all = report.sequences().empty();
  if (!lines.empty()) {
    return absl::StrCat(all ? "; its batch is of" : ", in", lines.size() > 1 ? " lines " : " line ",
                        Listed(lines), " of dataset '", dataset, "'");
  }
  if (all) return "";
  return absl::StrCat(", in sequences ",
                      Listed({report.sequences().begin(), report.sequences().end()}),
                      " of its batch");
}

// Before the first update the learning rate has no part in it, and B is zero but in an adapter that
// was given.
std::string WhatToDo(const v1::Job& job, const worker::v1::NotFinite& report) {
  const bool is_updated = report.step() > (report.what() == kValidationLoss ? 0 : 1);
  if (is_updated) return ": lower training.learning_rate, or look at those rows";
  return absl::StrCat(": nothing is trained yet, so look at those rows, and at the weights of ",
                      "base model '", job.base_model(), "'",
                      job.adapter().init_from().empty()
                          ? ""
                          : absl::StrCat(" and of '", job.adapter().init_from(), "'"));
}

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
  if (jobs == 1) jobs_.HoldAgainst(job, worker, JobState::kAvoidedFrom);
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

// ---- what is not finite ----

// The job's own doing, by its learning rate or its rows; but one worker's word fails no job where
// another can be asked, for its device may be broken.
void Core::State::OnNotFinite(GroupState& group, const worker::v1::NotFinite& report) {
  for (StageState& stage : group.stages) GiveUp(stage.orders, report.job());
  GroupTable::Leave(&group, report.job());
  JobState* job = jobs_.Find(report.job());
  if (job) job->cancel_until_us = 0;  // its slot is saved no more
  if (!group.members.contains(report.job()) || !job || !IsPlaced(job->state())) return;
  Member& member = group.members.at(report.job());
  if (AsksAnother(*job, group, report)) {
    Depart(*job,
           absl::StrCat(GroupTable::WorkersText(group), " says that the ", report.what(),
                        " of step ", report.step(), " is not finite: another worker is asked"),
           true);
    member.not_finite = true;
    turn_.Warn(absl::StrCat("job '", job->name(), "': ", member.why_departs));
    return;
  }
  const std::set<int64_t> lines = LinesToBlame(member, report);
  jobs_.Fail(*job, v1::JobError::USER, "NOT_FINITE",
             absl::StrCat("the ", report.what(), " of step ", report.step(), " is not finite",
                          RowsToBlame(lines, job->job().training_dataset(), report),
                          WhatToDo(job->job(), report)),
             "", lines.size() == 1 ? *lines.begin() : 0);
}

bool Core::State::AsksAnother(JobState& job, const GroupState& group,
                              const worker::v1::NotFinite& report) {
  if (!job.not_finite) job.not_finite = std::make_unique<NotFiniteWords>();
  NotFiniteWords& words = *job.not_finite;
  const auto is_new = [&](const StageState& stage) {
    return !words.workers.contains(stage.worker);
  };
  const bool agree = words.times > 0 && std::ranges::any_of(group.stages, is_new);
  for (const StageState& stage : group.stages) words.workers.insert(stage.worker);
  ++words.times;
  words.step = report.step();
  words.evaluates = report.what() == kValidationLoss;
  if (agree) return false;
  if (group.stages.size() > 1) return words.times < kWordsThatDo;
  jobs_.HoldAgainst(job, group.first().worker, JobState::kAvoidedFrom);
  return cluster_.AnotherHolds(Alone(job.job(), job.record.longest_tokens()), job.Avoided(),
                               Cluster::When::kSoon);
}

void Core::State::Refute(JobState& job, const GroupState& group, int64_t step, bool evaluates) {
  if (!job.not_finite || job.not_finite->evaluates != evaluates || step < job.not_finite->step) {
    return;
  }
  const NotFiniteWords words = *std::exchange(job.not_finite, nullptr);
  const WorkerState& here = WorkerOf(group.first());
  for (const std::string& name : words.workers) {
    WorkerState* said = cluster_.Find(name);
    // A group's own worker is not closed under its report; devices of other numerics may differ.
    if (!said || said->connection == 0 || said->group == group.name ||
        said->hello.numerics_id() != here.hello.numerics_id()) {
      continue;
    }
    CloseLiar(*said, absl::StrCat("step ", words.step, " of job '", job.name(),
                                  "' is not finite; worker '", here.hello.worker(),
                                  "' computed it, and it is"));
  }
}

}  // namespace lorad::server
