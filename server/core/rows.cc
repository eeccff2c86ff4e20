// Row checks, and what waits for them.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/core/failures.h"
#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

int64_t StepsOfEpoch(const v1::Job& job, int64_t rows) {
  const int64_t batch = job.training().batch_size();
  return (rows + batch - 1) / batch;
}

int64_t TotalSteps(const v1::Job& job, int64_t rows) {
  if (job.training().max_steps() > 0) return job.training().max_steps();
  return StepsOfEpoch(job, rows) * job.training().epochs();
}

// Exact where epochs decide; where max_steps cuts an epoch short, its rows count as average ones.
int64_t TotalTokens(const v1::Job& job, const records::RowsSummary& rows) {
  const int64_t steps = TotalSteps(job, rows.rows());
  const int64_t of_epoch = StepsOfEpoch(job, rows.rows());
  const int64_t rest = steps % of_epoch * job.training().batch_size();
  return steps / of_epoch * rows.tokens() +
         static_cast<int64_t>(std::llround(static_cast<double>(rows.tokens()) * rest /
                                           std::max<int64_t>(rows.rows(), 1)));
}

}  // namespace

RowSource Core::State::SourceOf(const v1::Job& job, const std::string& dataset) const {
  const records::DatasetRecord& record = catalog_.Dataset(dataset);
  RowSource source;
  source.dataset = dataset;
  source.dataset_path = record.path();
  source.dataset_sha256 = record.dataset().sha256();
  const v1::Model& model = catalog_.Model(job.base_model()).record.model();
  source.model_path = model.path();
  source.model_fingerprint = model.fingerprint();
  source.max_length = job.training().max_length();
  source.refuse_overflow = job.training().overflow() == v1::TrainingConfig::ERROR;
  source.rows = record.dataset().rows();
  source.bytes = record.dataset().size_bytes();
  return source;
}

std::string Core::State::RowsKey(const v1::Job& job, const std::string& dataset) const {
  return absl::StrCat(catalog_.Dataset(dataset).dataset().sha256(), "/",
                      catalog_.Model(job.base_model()).record.model().fingerprint(), "/",
                      job.training().max_length(), "/",
                      job.training().overflow() == v1::TrainingConfig::ERROR ? "refuse" : "cut");
}

const records::RowsSummary* Core::State::FindRows(const std::string& key) const {
  const auto found = rows_.find(key);
  return found == rows_.end() ? nullptr : &found->second;
}

std::vector<std::string> Core::State::RowsKeys(const v1::Job& job) const {
  std::vector<std::string> keys;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (!dataset->empty()) keys.push_back(RowsKey(job, *dataset));
  }
  return keys;
}

// A job that is not stored yet, or never will be, has no name.
void Core::State::Check(const std::string& key, const v1::Job& job, const std::string& dataset) {
  const auto [check, is_new] = checks_.try_emplace(key);
  if (!job.name().empty()) check->second.insert(job.name());
  if (is_new) turn_.Do(CheckRows{key, SourceOf(job, dataset)});
}

bool Core::State::EnsureRows(const v1::Job& job) {
  bool all = true;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (dataset->empty()) continue;
    const std::string key = RowsKey(job, *dataset);
    if (FindRows(key)) continue;
    all = false;
    Check(key, job, *dataset);
  }
  return all;
}

void Core::State::ReadRowsAgain(JobState& job) {
  if (job.state() != v1::Job::QUEUED) return;
  job.reads_rows = true;
  for (const std::string* dataset :
       {&job.job().training_dataset(), &job.job().validation_dataset()}) {
    if (!dataset->empty()) Check(RowsKey(job.job(), *dataset), job.job(), *dataset);
  }
}

void Core::State::LeaveChecks(const v1::Job& job) {
  if (checks_.empty()) return;
  for (const std::string& key : RowsKeys(job)) {
    const auto check = checks_.find(key);
    if (check == checks_.end() || check->second.erase(job.name()) == 0) continue;
    CancelUnwaited(key);
  }
}

void Core::State::CancelUnwaited(const std::string& key) {
  const auto waits = [&](const auto& waiting) {
    return std::ranges::any_of(waiting,
                               [&](const auto& entry) { return Concerns(entry.second.job, key); });
  };
  if (!checks_.at(key).empty() || waits(waiting_.validations) || waits(waiting_.estimates)) return;
  turn_.Do(CancelRows{key});
}

void Core::State::On(uint64_t request, const GiveUpRequest& content) {
  std::vector<v1::Job> left;
  const auto leave = [&](auto& waiting) {
    std::erase_if(waiting, [&](const auto& entry) {
      if (entry.first != content.request) return false;
      left.push_back(entry.second.job);
      return true;
    });
  };
  leave(waiting_.validations);
  leave(waiting_.estimates);
  std::erase_if(held_estimates_, [&](const HeldEstimate& held) {
    if (held.request != content.request) return false;
    left.push_back(held.content.job);
    return true;
  });
  if (!left.empty()) turn_.Fail(content.request, absl::CancelledError("the caller has left"));
  for (const auto& [key, jobs] : checks_) {
    const bool concerned =
        std::ranges::any_of(left, [&](const v1::Job& job) { return Concerns(job, key); });
    if (concerned) CancelUnwaited(key);
  }
  turn_.Answer(request, std::monostate());
}

absl::Status Core::State::SumUpRows(records::JobRecord& record, v1::JobError* error) const {
  v1::Job& job = *record.mutable_job();
  error->set_category(v1::JobError::USER);
  int64_t longest = 0;
  int64_t truncated = 0;
  const std::pair<const char*, const std::string*> datasets[] = {
      {"training_dataset", &job.training_dataset()},
      {"validation_dataset", &job.validation_dataset()}};
  for (const auto& [field, dataset] : datasets) {
    if (dataset->empty()) continue;
    const records::RowsSummary& rows = *FindRows(RowsKey(job, *dataset));
    if (rows.error_count() > 0) {
      error->set_reason("INVALID_ROWS");
      error->set_field(field);
      error->set_line(rows.error_line());
      error->set_message(absl::StrCat("dataset '", *dataset, "' has ", rows.error_count(),
                                      " bad row", rows.error_count() > 1 ? "s" : "",
                                      " for this model and length, the first in line ",
                                      rows.error_line(), ": ", rows.error_reason(),
                                      "; 'lora dataset validate' lists them all"));
      return Error(absl::StatusCode::kInvalidArgument, error->reason(), error->message(),
                   {{"field", field}, {"line", absl::StrCat(rows.error_line())}});
    }
    longest = std::max<int64_t>(longest, rows.longest_tokens());
    truncated += rows.truncated_rows();
  }
  const records::RowsSummary& rows = *FindRows(RowsKey(job, job.training_dataset()));
  if (!job.validation_dataset().empty()) {
    record.set_validation_rows(FindRows(RowsKey(job, job.validation_dataset()))->rows());
  }
  record.set_training_rows(rows.rows());
  record.set_training_row_tokens(rows.tokens());
  record.set_longest_tokens(longest);
  job.set_truncated_rows(truncated);
  job.set_total_steps(TotalSteps(job, rows.rows()));
  job.set_total_tokens(TotalTokens(job, rows));
  return absl::OkStatus();
}

absl::Status Core::State::AcceptRows(records::JobRecord& record, v1::JobError* error) const {
  if (absl::Status status = SumUpRows(record, error); !status.ok()) return status;
  // After a restart the one that it fits may not be back yet: then the job waits in the queue and says why.
  const bool all_back = turn_.starts() == 1 || turn_.run_us() >= options_.lease_ms * 1000;
  if (!all_back || workers_.empty()) return absl::OkStatus();
  const LoneGroup alone = GroupAlone(record.job(), record.longest_tokens());
  if (planner::Fits(alone.total(), alone.budget_bytes)) return absl::OkStatus();
  error->set_reason("MEMORY_NEVER_FITS");
  error->set_field("adapter");
  error->set_message(absl::StrCat(
      "alone on the worker with the most room for it, and with blocks computed again, the job "
      "needs ",
      alone.total(), " bytes (weights ", alone.group.weights, ", activations ",
      alone.group.activations, ", workspace ", alone.group.workspace + alone.slot.staging,
      ", adapter ", alone.slot.adapters, ", optimizer ", alone.slot.optimizer,
      "), and the worker has ", alone.budget_bytes,
      ": lower adapter.rank or training.max_length, or give a worker more memory"));
  return Error(
      absl::StatusCode::kInvalidArgument, error->reason(), error->message(),
      {{"bytes", absl::StrCat(alone.total())}, {"budget_bytes", absl::StrCat(alone.budget_bytes)}});
}

void Core::State::FailRows(JobState& job, const v1::JobError& error) {
  FailJob(job, error.category(), error.reason(), error.message(), error.field(), error.line());
}

void Core::State::SettleJob(JobState& job) {
  v1::JobError error;
  if (absl::Status status = AcceptRows(job.record, &error); !status.ok()) {
    return FailRows(job, error);
  }
  job.passing.reset();
  job.why.clear();
  Transition(job, v1::Job::QUEUED, "its rows are good");
}

void Core::State::TakeRows(JobState& job, const absl::Status& status) {
  if (absl::IsCancelled(status)) {  // it came when the check had been given up already
    job.reads_rows ? ReadRowsAgain(job) : static_cast<void>(EnsureRows(job.job()));
  } else if (!status.ok()) {
    TakeFailure(job, ReasonOf(status, kRowsNotRead), std::string(status.message()));
  } else if (EnsureRows(job.job())) {
    job.reads_rows ? GoOnWithRows(job) : SettleJob(job);
  }
}

void Core::State::GoOnWithRows(JobState& job) {
  const bool more = std::ranges::any_of(
      RowsKeys(job.job()), [&](const std::string& key) { return checks_.contains(key); });
  if (more) return;
  records::JobRecord record = job.record;
  v1::JobError error;
  if (!SumUpRows(record, &error).ok()) return FailRows(job, error);
  job.reads_rows = false;
  if (job.passing->until_us <= turn_.now_us()) EnterShapes(job);
}

void Core::State::PruneRows() {
  if (static_cast<int64_t>(rows_.size()) <= options_.rows_max) return;
  std::set<std::string> needed;
  const auto need = [&](const v1::Job& job) {
    if (!catalog_.HasModel(job.base_model())) return;
    for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
      if (catalog_.HasDataset(*dataset)) needed.insert(RowsKey(job, *dataset));
    }
  };
  for (const std::string& name : live_) {
    const JobState& job = *jobs_.at(name);
    if (job.state() == v1::Job::VALIDATING || job.reads_rows) need(job.job());
  }
  for (const auto& [request, content] : waiting_.validations) need(content.job);
  for (const auto& [request, content] : waiting_.estimates) need(content.job);
  std::erase_if(rows_, [&](const auto& entry) {
    if (needed.contains(entry.first)) return false;
    turn_.Put(storage::DeleteRecord(kRowsKind, entry.first));
    return true;
  });
}

void Core::State::OnRows(const RowsChecked& checked) {
  auto check = checks_.extract(checked.key);
  assert(!check.empty());
  if (checked.summary.ok()) {
    rows_[checked.key] = *checked.summary;
    turn_.Put(storage::PutRecord(kRowsKind, checked.key, checked.summary->SerializeAsString()));
    PruneRows();
  }
  for (const std::string& name : check.mapped()) {
    JobState* job = FindJob(name);
    if (job && (job->state() == v1::Job::VALIDATING || job->reads_rows)) {
      TakeRows(*job, checked.summary.status());
    }
  }
  AskAgain(checked.key, checked.summary.status());
}

bool Core::State::Concerns(const v1::Job& job, const std::string& key) const {
  if (!catalog_.HasModel(job.base_model())) return false;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (catalog_.HasDataset(*dataset) && RowsKey(job, *dataset) == key) return true;
  }
  return false;
}

// Requests are asked again as if they had just come: what they name may have gone meanwhile.
void Core::State::AskAgain(const std::string& key, const absl::Status& status) {
  const auto ask = [&](uint64_t request, const auto& content) {
    if (status.ok() || absl::IsCancelled(status) || !Concerns(content.job, key)) {
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
  const PendingRows waiting = std::exchange(waiting_, {});
  for (const auto& [request, content] : waiting.validations) ask(request, content);
  for (const auto& [request, content] : waiting.estimates) ask(request, content);
}

}  // namespace lorad::server
