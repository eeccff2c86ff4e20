// Jobs and requests, when the rows that they wait for are checked.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/rules/failures.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "sizes/bytes_text.h"

namespace lorad::server {

namespace {

using sizes::NeededText;

constexpr char kNeverFits[] = "MEMORY_NEVER_FITS";
constexpr int64_t kJudgedEveryUs = 1'000'000;

absl::Status NeverFits(const planner::QueuedJob& job, const LoneGroup& alone,
                       const std::optional<planner::Placement>& on_several,
                       const std::vector<planner::WorkerView>& workers, v1::JobError* error) {
  std::vector<std::string> where;
  int64_t bytes = alone.total(), budget_bytes = alone.budget_bytes;
  if (job.stages < 2) {
    where.push_back(absl::StrCat(
        "alone on the worker with the most room for it, and with blocks computed again, the job "
        "needs ",
        NeededText(bytes), " (weights ", NeededText(alone.group.weights), ", activations ",
        NeededText(alone.group.activations), ", workspace ",
        NeededText(alone.group.workspace + alone.slot.staging), ", adapter ",
        NeededText(alone.slot.adapters), ", optimizer ", NeededText(alone.slot.optimizer),
        "), and the worker has ", planner::BudgetText(budget_bytes, bytes)));
  }
  if (on_several) {
    const size_t s = on_several->tightest;
    bytes = on_several->bytes[s];
    budget_bytes = workers[on_several->workers[s]].budget_bytes;
    where.push_back(absl::StrCat(
        "on ", on_several->workers.size(), " workers of one numerics id the tightest stage needs ",
        NeededText(bytes), ", and its worker has ", planner::BudgetText(budget_bytes, bytes)));
  }
  error->set_reason(kNeverFits);
  error->set_field("adapter");
  error->set_message(
      absl::StrCat(absl::StrJoin(where, "; "),
                   ": lower adapter.rank or training.max_length, or give a worker more memory"));
  return Error(absl::StatusCode::kInvalidArgument, error->reason(), error->message(),
               {{"bytes", absl::StrCat(bytes)}, {"budget_bytes", absl::StrCat(budget_bytes)}});
}

}  // namespace

// Empty where the job is to be on one worker, or there are too few of one kind.
std::optional<planner::Placement> Core::State::StagesAlone(
    const planner::QueuedJob& job, const std::vector<planner::WorkerView>& workers) const {
  if (job.stages == 1) return std::nullopt;
  auto placement = planner::PlaceAlone(job, workers, options_.microbatch_tokens);
  return placement ? placement
                   : planner::PlaceAloneNearest(job, workers, options_.microbatch_tokens);
}

void Core::State::ReadRowsAgain(JobState& job) {
  if (job.state() != v1::Job::QUEUED) return;
  job.reads_rows = true;
  rows_.CheckAgain(job.job());
}

absl::Status Core::State::AcceptRows(records::JobRecord& record, v1::JobError* error) const {
  if (absl::Status status = rows_.SumUp(record, error); !status.ok()) return status;
  if (cluster_.empty()) return absl::OkStatus();
  const planner::QueuedJob job = Alone(record.job(), record.longest_tokens());
  const LoneGroup alone = cluster_.GroupAlone(job);
  if (job.stages < 2 && planner::Fits(alone.total(), alone.budget_bytes)) return absl::OkStatus();
  const std::vector<planner::WorkerView> workers = cluster_.Views();
  const auto on_several = StagesAlone(job, workers);
  // Registered for more stages than there are workers of one kind, it waits for them.
  if (on_several ? on_several->fits : job.stages > 1) return absl::OkStatus();
  return NeverFits(job, alone, on_several, workers, error);
}

void Core::State::FailRows(JobState& job, const v1::JobError& error) {
  jobs_.Fail(job, error.category(), error.reason(), error.message(), error.field(), error.line());
}

// After a restart one that it fits may not be back yet, though nobody remembers it; and one that comes
// back in another process, with more memory, has its name again after a lease (Cluster::WhyTaken).
int64_t Core::State::JudgedFromUs() const {
  const int64_t started_us = turn_.now_us() - turn_.run_us();
  const int64_t back_us = turn_.starts() == 1 ? 0 : started_us + options_.lease_ms * kMillisecond;
  return std::max(cluster_.grown_us(), back_us) + options_.join_ms * kMillisecond;
}

bool Core::State::MayFitLater(const v1::JobError& error) const {
  return error.reason() == kNeverFits && turn_.now_us() < JudgedFromUs();
}

void Core::State::SettleJob(JobState& job) {
  v1::JobError error;
  if (absl::Status status = AcceptRows(job.record, &error); !status.ok()) {
    if (!MayFitLater(error)) return FailRows(job, error);
    if (!job.passing) job.passing = std::make_unique<Passing>();
    job.why = absl::StrCat("workers still join: ", error.message());
    return jobs_.Postpone(job, std::min(JudgedFromUs(), turn_.now_us() + kJudgedEveryUs));
  }
  jobs_.EndPassing(job);
  job.why.clear();
  const auto& warnings = job.job().warnings();
  jobs_.Transition(job, v1::Job::QUEUED,
                   absl::StrCat("its rows are good", warnings.empty() ? "" : "; ",
                                absl::StrJoin(warnings, "; ")));
}

void Core::State::TakeRows(JobState& job, const absl::Status& status) {
  if (absl::IsCancelled(status)) {  // it came when the check had been given up already
    job.reads_rows ? ReadRowsAgain(job) : static_cast<void>(rows_.Ensure(job.job()));
  } else if (!status.ok()) {
    TakeFailure(job, ReasonOf(status, kRowsNotRead), std::string(status.message()));
  } else if (rows_.Ensure(job.job())) {
    job.reads_rows ? GoOnWithRows(job) : SettleJob(job);
  }
}

void Core::State::GoOnWithRows(JobState& job) {
  if (rows_.IsUnderWay(job.job())) return;
  records::JobRecord record = job.record;
  v1::JobError error;
  if (!rows_.SumUp(record, &error).ok()) return FailRows(job, error);
  job.reads_rows = false;
  if (job.passing->until_us <= turn_.now_us()) jobs_.Offer(job);
}

void Core::State::OnRows(const RowsChecked& checked) {
  const std::set<std::string> waiting = rows_.End(checked);
  if (checked.summary.ok() && rows_.AreTooMany()) {
    std::vector<const v1::Job*> jobs;
    for (const std::string& name : jobs_.live()) {
      const JobState& job = *jobs_.FindWhole(name);
      if (job.state() == v1::Job::VALIDATING || job.reads_rows) jobs.push_back(&job.job());
    }
    rows_.Prune(jobs);
  }
  for (const std::string& name : waiting) {
    JobState* job = jobs_.Find(name);
    if (job && (job->state() == v1::Job::VALIDATING || job->reads_rows)) {
      TakeRows(*job, checked.summary.status());
    }
  }
  AskAgain(checked.key, checked.summary.status());
}

// Requests are asked again as if they had just come: what they name may have gone meanwhile.
void Core::State::AskAgain(const std::string& key, const absl::Status& status) {
  const auto ask = [&](uint64_t request, const auto& content) {
    if (status.ok() || absl::IsCancelled(status) || !rows_.Concerns(content.job, key)) {
      return On(request, content);
    }
    const std::string reason = ReasonOf(status, kRowsNotRead);
    const std::string message(status.message());
    turn_.Fail(request,
               KindOf(reason) == FailureKind::kPassing
                   ? Unavailable(reason, message, options_.postpone_ms)
                   : PreconditionFailed(reason, absl::StrCat("model ", content.job.base_model()),
                                        message));
  };
  const RowChecks::Waiting waiting = rows_.TakeWaiting();
  for (const auto& [request, content] : waiting.validations) ask(request, content);
  for (const auto& [request, content] : waiting.estimates) ask(request, content);
  for (const auto& [request, content] : waiting.validations) rows_.EndUnwaited(content.job);
  for (const auto& [request, content] : waiting.estimates) rows_.EndUnwaited(content.job);
}

}  // namespace lorad::server
