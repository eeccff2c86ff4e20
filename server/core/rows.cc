// Row checks, what waits for them, and what a job will cost.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/core/failures.h"
#include "server/core/model_shape.h"
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
  const records::DatasetRecord& record = datasets_.at(dataset);
  RowSource source;
  source.dataset = dataset;
  source.dataset_path = record.path();
  source.dataset_sha256 = record.dataset().sha256();
  const v1::Model& model = models_.at(job.base_model()).record.model();
  source.model_path = model.path();
  source.model_fingerprint = model.fingerprint();
  source.max_length = job.training().max_length();
  source.refuse_overflow = job.training().overflow() == v1::TrainingConfig::ERROR;
  source.rows = record.dataset().rows();
  source.bytes = record.dataset().size_bytes();
  return source;
}

std::string Core::State::RowsKey(const v1::Job& job, const std::string& dataset) const {
  return absl::StrCat(datasets_.at(dataset).dataset().sha256(), "/",
                      models_.at(job.base_model()).record.model().fingerprint(), "/",
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
  if (is_new) Do(CheckRows{key, SourceOf(job, dataset)});
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
    if (!check->second.empty()) continue;
    const auto waits = [&](const auto& waiting) {
      return std::ranges::any_of(
          waiting, [&](const auto& entry) { return Concerns(entry.second.job, key); });
    };
    if (!waits(waiting_.validations) && !waits(waiting_.estimates)) Do(CancelRows{key});
  }
}

absl::Status Core::State::AcceptRows(records::JobRecord& record, v1::JobError* error) const {
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

  if (LargestWorker() == nullptr) return absl::OkStatus();
  const LoneGroup alone = GroupAlone(job, longest);
  if (planner::Fits(alone.total(), alone.budget_bytes)) return absl::OkStatus();
  error->set_reason("MEMORY_NEVER_FITS");
  error->set_field("adapter");
  error->set_message(absl::StrCat(
      "alone on the largest worker, and with blocks computed again, the job needs ", alone.total(),
      " bytes (weights ", alone.group.weights, ", activations ", alone.group.activations,
      ", workspace ", alone.group.workspace + alone.slot.staging, ", adapter ", alone.slot.adapters,
      ", optimizer ", alone.slot.optimizer, "), and the worker has ", alone.budget_bytes,
      ": lower adapter.rank or training.max_length, or give a worker more memory"));
  return Error(
      absl::StatusCode::kInvalidArgument, error->reason(), error->message(),
      {{"bytes", absl::StrCat(alone.total())}, {"budget_bytes", absl::StrCat(alone.budget_bytes)}});
}

void Core::State::SettleJob(JobState& job) {
  v1::JobError error;
  if (absl::Status status = AcceptRows(job.record, &error); !status.ok()) {
    return FailJob(job, error.category(), error.reason(), error.message(), error.field(),
                   error.line());
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
  } else if (job.state() == v1::Job::VALIDATING) {
    if (EnsureRows(job.job())) SettleJob(job);
  } else {
    job.reads_rows = std::ranges::any_of(
        RowsKeys(job.job()), [&](const std::string& key) { return checks_.contains(key); });
    schedule_ = true;
  }
}

void Core::State::OnRows(const RowsChecked& checked) {
  auto check = checks_.extract(checked.key);
  assert(!check.empty());
  if (checked.summary.ok()) {
    rows_[checked.key] = *checked.summary;
    Put(storage::PutRecord(kRowsKind, checked.key, checked.summary->SerializeAsString()));
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
  if (!models_.contains(job.base_model())) return false;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (datasets_.contains(*dataset) && RowsKey(job, *dataset) == key) return true;
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
    Fail(request, KindOf(reason) == FailureKind::kPassing
                      ? Unavailable(reason, message, options_.postpone_ms)
                      : PreconditionFailed(reason, absl::StrCat("model ", content.job.base_model()),
                                           message));
  };
  const PendingRows waiting = std::exchange(waiting_, {});
  for (const auto& [request, content] : waiting.validations) ask(request, content);
  for (const auto& [request, content] : waiting.estimates) ask(request, content);
}

// ---- estimates ----

const WorkerState* Core::State::LargestWorker() const {
  const WorkerState* largest = nullptr;
  for (const auto& [name, worker] : workers_) {
    if (!largest || worker.hello.memory_bytes() > largest->hello.memory_bytes()) {
      largest = &worker;
    }
  }
  return largest;
}

Core::State::LoneGroup Core::State::GroupAlone(const v1::Job& job, int64_t longest_tokens) const {
  const WorkerState* worker = LargestWorker();
  planner::QueuedJob queued;
  queued.model = models_.at(job.base_model()).shape;
  queued.longest_sequence = longest_tokens;
  queued.adapter = ShapeOfAdapter(job.adapter());
  LoneGroup alone;
  if (worker) {
    alone.device = DeviceOf(worker->hello);
    alone.budget_bytes = worker->hello.memory_bytes();
  }
  alone.shape = planner::ShapeAlone(
      queued, alone.device, worker ? alone.budget_bytes : std::numeric_limits<int64_t>::max(),
      worker ? TokensOf(*worker) : options_.microbatch_tokens);
  alone.group = planner::BytesOfGroup(queued.model, alone.shape);
  alone.slot = planner::BytesOfSlot(queued.model, queued.adapter, alone.device);
  return alone;
}

planner::TimeModel& Core::State::TimesOf(const std::string& base_model) {
  const auto found = times_.find(base_model);
  if (found != times_.end()) return found->second;
  const WorkerState* worker = LargestWorker();
  const planner::DeviceShape device = worker ? DeviceOf(worker->hello) : planner::DeviceShape{};
  const planner::TimePrior prior = planner::PriorOf(WorkOf(models_.at(base_model).shape, device));
  return times_.emplace(base_model, planner::TimeModel(prior)).first->second;
}

void Core::State::On(uint64_t request, const EstimateJob& content) {
  if (absl::Status status = CheckReferences(content.job); !status.ok()) {
    return Fail(request, status);
  }
  if (!EnsureRows(content.job)) {
    waiting_.estimates.push_back({request, content});
    return;
  }
  absl::StatusOr<v1::JobEstimate> estimate = Estimate(content.job);
  estimate.ok() ? Answer(request, *std::move(estimate)) : Fail(request, estimate.status());
}

absl::StatusOr<v1::JobEstimate> Core::State::Estimate(const v1::Job& job) {
  records::JobRecord record;
  *record.mutable_job() = job;
  v1::JobError error;
  if (absl::Status status = AcceptRows(record, &error);
      !status.ok() && error.reason() != "MEMORY_NEVER_FITS") {
    return status;
  }
  const LoneGroup alone = GroupAlone(job, record.longest_tokens());
  v1::JobEstimate estimate;
  v1::MemoryEstimate& memory = *estimate.mutable_peak_memory_bytes();
  memory.set_weights(alone.group.weights);
  memory.set_adapters(alone.slot.adapters);
  memory.set_optimizer(alone.slot.optimizer);
  memory.set_activations(alone.group.activations);
  memory.set_workspace(alone.group.workspace + alone.slot.staging);
  memory.set_total(alone.total());
  estimate.set_budget_bytes(alone.budget_bytes);
  estimate.set_fits(planner::Fits(memory.total(), estimate.budget_bytes()));
  estimate.set_recomputation(ToProto(alone.shape.recomputation));

  const v1::Job& complete = record.job();
  estimate.set_total_steps(complete.total_steps());
  estimate.set_total_tokens(complete.total_tokens());
  estimate.set_truncated_rows(complete.truncated_rows());
  const records::RowsSummary& rows = *FindRows(RowsKey(job, job.training_dataset()));
  const double passes = static_cast<double>(complete.total_tokens()) /
                        static_cast<double>(std::max<int64_t>(rows.tokens(), 1));
  const double of_step = static_cast<double>(complete.total_tokens()) /
                         static_cast<double>(std::max<int64_t>(complete.total_steps(), 1));
  const planner::TimeModel& times = TimesOf(job.base_model());
  const auto trained = static_cast<double>(complete.total_tokens());
  const double squares = rows.squared_lengths() * passes;
  const double microbatches = static_cast<double>(complete.total_steps()) *
                              std::ceil(of_step / static_cast<double>(alone.shape.capacity_tokens));
  double ms = times.TrainMs(trained, squares, microbatches);
  if (alone.shape.recomputation == planner::Recomputation::kBlocks) {
    ms += times.EvaluateMs(trained, squares, microbatches);  // forward twice
  }
  if (!job.validation_dataset().empty()) {
    const records::RowsSummary& validation = *FindRows(RowsKey(job, job.validation_dataset()));
    const int64_t every = job.training().eval_every_steps();
    const int64_t between = every > 0 ? (complete.total_steps() - 1) / every : 0;
    const double tokens = static_cast<double>(validation.tokens());
    ms += static_cast<double>(between + 2) *
          times.EvaluateMs(tokens, validation.squared_lengths(),
                           std::ceil(tokens / static_cast<double>(alone.shape.capacity_tokens)));
  }
  estimate.set_seconds(ms / 1000);
  const double each = 1 / std::max(microbatches, 1.0);
  estimate.set_seconds_basis(times.BasisOf(trained * each, squares * each));
  return estimate;
}

}  // namespace lorad::server
