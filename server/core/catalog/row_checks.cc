#include "server/core/catalog/row_checks.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/row_sums.h"
#include "server/core/catalog/stored.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// What is not said is the default: jobs of older versions know no train_on.
v1::TrainingConfig::Overflow OverflowOf(const v1::Job& job) {
  const v1::TrainingConfig::Overflow overflow = job.training().overflow();
  return overflow == v1::TrainingConfig::OVERFLOW_UNSPECIFIED ? v1::TrainingConfig::TRUNCATE
                                                              : overflow;
}
v1::TrainingConfig::TrainOn TrainOnOf(const v1::Job& job) {
  return job.training().train_on() == v1::TrainingConfig::ALL ? v1::TrainingConfig::ALL
                                                              : v1::TrainingConfig::ASSISTANT;
}

// Where rows are bad for want of a trained token, which.
std::string UntrainedText(const records::RowsSummary& rows) {
  if (rows.untrained_lines().empty()) return "";
  return absl::StrCat("; no token is trained on in line ", rows.untrained_lines(),
                      " (training.overflow = SKIP leaves such rows out)");
}

// The steps of a warm-up that is a share of them: transformers' rounding.
void SettleWarmup(v1::Job& job) {
  v1::TrainingConfig& training = *job.mutable_training();
  if (training.warmup_ratio() <= 0) return;
  const double steps = std::ceil(training.warmup_ratio() * static_cast<double>(job.total_steps()));
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();  // epochs may make more steps
  training.set_warmup_steps(static_cast<int32_t>(std::min<double>(steps, kMax)));
  training.set_warmup_ratio(0);
}

void WarnOfRows(const std::string& field, const records::RowsSummary& rows, v1::Job& job) {
  const v1::TrainingConfig& training = job.training();
  if (2 * rows.truncated_rows() > rows.rows()) {
    job.add_warnings(absl::StrCat(field, ": ", rows.truncated_rows(), " of ", rows.rows(),
                                  " sequences are cut at training.max_length ",
                                  training.max_length()));
  }
  if (rows.skipped_rows() > rows.rows()) {
    job.add_warnings(absl::StrCat(field, ": ", rows.skipped_rows(), " rows are left out and ",
                                  rows.rows(),
                                  " sequences are trained on: training.overflow is SKIP, and "
                                  "training.max_length ",
                                  training.max_length()));
  }
}

// Of a job whose steps are known, and the sequences that it trains on.
void WarnOfSteps(int64_t sequences, v1::Job& job) {
  const v1::TrainingConfig& training = job.training();
  if (training.batch_size() > sequences) {
    job.add_warnings(absl::StrCat("training.batch_size: is ", training.batch_size(),
                                  ", and training_dataset makes ", sequences,
                                  sequences == 1 ? " sequence" : " sequences",
                                  ": each step trains on all of them"));
  }
  if (training.warmup_steps() >= job.total_steps()) {
    job.add_warnings(absl::StrCat("training.warmup_steps: is ", training.warmup_steps(),
                                  ", and the job has ", job.total_steps(),
                                  job.total_steps() == 1 ? " step" : " steps",
                                  ": training.learning_rate is never reached"));
  }
  const int64_t judged =
      std::lcm<int64_t>(training.checkpoint_every_steps(), training.eval_every_steps());
  if (training.checkpoint_keep_best() > 0 && judged >= job.total_steps()) {
    job.add_warnings(
        absl::StrCat("training.checkpoint_keep_best: no step before the last one, ",
                     job.total_steps(), ", is both saved (checkpoint_every_steps is ",
                     training.checkpoint_every_steps(), ") and evaluated (eval_every_steps is ",
                     training.eval_every_steps(), "): the best checkpoint is the last one"));
  }
}

}  // namespace

absl::Status RowChecks::Load(const std::vector<std::pair<std::string, std::string>>& stored) {
  for (const auto& entry : stored) {
    absl::Status status = ParseStored(kRowsKind, entry, &rows_[entry.first]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// ---- what is known ----

RowSource RowChecks::SourceOf(const v1::Job& job, const std::string& dataset) const {
  const records::DatasetRecord& record = catalog_.Dataset(dataset);
  RowSource source;
  source.dataset = dataset;
  source.dataset_path = record.path();
  source.dataset_sha256 = record.dataset().sha256();
  const ModelState& state = catalog_.Model(job.base_model());
  const v1::Model& model = state.record.model();
  source.model_path = model.path();
  source.model_fingerprint = model.fingerprint();
  source.chat_template_sha256 = model.chat_template_sha256();
  source.chat_template = state.chat_template;
  source.max_length = job.training().max_length();
  source.overflow = OverflowOf(job);
  source.train_on = TrainOnOf(job);
  source.rows = record.dataset().rows();
  source.bytes = record.dataset().size_bytes();
  return source;
}

std::string RowChecks::KeyOf(const v1::Job& job, const std::string& dataset) const {
  const v1::Model& model = catalog_.Model(job.base_model()).record.model();
  return absl::StrCat(catalog_.Dataset(dataset).dataset().sha256(), "/", model.fingerprint(),
                      model.chat_template_sha256().empty() ? "" : "+", model.chat_template_sha256(),
                      "/", job.training().max_length(), "/",
                      v1::TrainingConfig::Overflow_Name(OverflowOf(job)), "/",
                      v1::TrainingConfig::TrainOn_Name(TrainOnOf(job)));
}

std::vector<std::string> RowChecks::KeysOf(const v1::Job& job) const {
  std::vector<std::string> keys;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (!dataset->empty()) keys.push_back(KeyOf(job, *dataset));
  }
  return keys;
}

bool RowChecks::Concerns(const v1::Job& job, const std::string& key) const {
  if (!catalog_.HasModel(job.base_model())) return false;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (catalog_.HasDataset(*dataset) && KeyOf(job, *dataset) == key) return true;
  }
  return false;
}

const records::RowsSummary* RowChecks::Find(const std::string& key) const {
  const auto found = rows_.find(key);
  return found == rows_.end() ? nullptr : &found->second;
}

bool RowChecks::IsUnderWay(const v1::Job& job) const {
  return std::ranges::any_of(KeysOf(job),
                             [&](const std::string& key) { return checks_.contains(key); });
}

absl::Status RowChecks::SumUp(records::JobRecord& record, v1::JobError* error) const {
  v1::Job& job = *record.mutable_job();
  error->set_category(v1::JobError::USER);
  int64_t longest = 0;
  int64_t truncated = 0;
  int64_t skipped = 0;
  int64_t sequences = 0;
  job.clear_warnings();
  const std::pair<const char*, const std::string*> datasets[] = {
      {"training_dataset", &job.training_dataset()},
      {"validation_dataset", &job.validation_dataset()}};
  for (const auto& [field, dataset] : datasets) {
    if (dataset->empty()) continue;
    const records::RowsSummary& rows = *Find(KeyOf(job, *dataset));
    if (rows.error_count() > 0) {
      error->set_reason("INVALID_ROWS");
      error->set_field(field);
      error->set_line(rows.error_line());
      const bool all_together = rows.error_line() == 0;  // each was skipped, say
      const std::string which =
          all_together ? absl::StrCat("', for this model and length: ", rows.error_reason())
                       : absl::StrCat("' has ", rows.error_count(), " bad row",
                                      rows.error_count() > 1 ? "s" : "",
                                      " for this model and length, the first in line ",
                                      rows.error_line(), ": ", rows.error_reason());
      error->set_message(absl::StrCat("dataset '", *dataset, which, UntrainedText(rows),
                                      "; 'lora dataset validate' lists them all"));
      return Error(absl::StatusCode::kInvalidArgument, error->reason(), error->message(),
                   {{"field", field}, {"line", absl::StrCat(rows.error_line())}});
    }
    longest = std::max<int64_t>(longest, rows.longest_tokens());
    truncated += rows.truncated_rows();
    skipped += rows.skipped_rows();
    sequences += rows.rows();
    WarnOfRows(field, rows, job);
  }
  const records::RowsSummary& rows = *Find(KeyOf(job, job.training_dataset()));
  if (!job.validation_dataset().empty()) {
    const records::RowsSummary& validation = *Find(KeyOf(job, job.validation_dataset()));
    record.set_validation_rows(validation.rows());
    record.set_validation_tokens(validation.tokens());
    record.set_validation_squared_lengths(validation.squared_lengths());
  }
  record.set_training_rows(rows.rows());
  record.set_training_row_tokens(rows.tokens());
  record.set_training_row_squared_lengths(rows.squared_lengths());
  record.set_longest_tokens(longest);
  job.set_longest_tokens(longest);
  job.set_truncated_rows(truncated);
  job.set_skipped_rows(skipped);
  job.set_sequences(sequences);
  job.set_total_steps(TotalSteps(record));
  SetTotals(record);
  SettleWarmup(job);
  WarnOfSteps(rows.rows(), job);
  return absl::OkStatus();
}

// ---- checks ----

// A job that is not stored yet, or never will be, has no name.
void RowChecks::Check(const std::string& key, const v1::Job& job, const std::string& dataset) {
  const auto [check, is_new] = checks_.try_emplace(key);
  if (!job.name().empty()) check->second.jobs.insert(job.name());
  if (is_new) turn_.Do(CheckRows{key, SourceOf(job, dataset), ShareOf(job, dataset)});
}

// Where nobody says whose a job is, all that is asked of one dataset is one user's.
std::string RowChecks::ShareOf(const v1::Job& job, const std::string& dataset) const {
  const std::string user = options_.LabelGroup(job.labels());
  return user.empty() ? absl::StrCat("dataset ", dataset) : absl::StrCat("user ", user);
}

bool RowChecks::Ensure(const v1::Job& job) {
  bool all = true;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (dataset->empty()) continue;
    const std::string key = KeyOf(job, *dataset);
    if (Find(key)) continue;
    all = false;
    Check(key, job, *dataset);
  }
  return all;
}

void RowChecks::CheckAgain(const v1::Job& job) {
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (!dataset->empty()) Check(KeyOf(job, *dataset), job, *dataset);
  }
}

std::set<std::string> RowChecks::End(const RowsChecked& checked) {
  auto check = checks_.extract(checked.key);
  assert(!check.empty());
  if (checked.summary.ok()) {
    rows_[checked.key] = *checked.summary;
    turn_.Put(storage::PutRecord(kRowsKind, checked.key, checked.summary->SerializeAsString()));
  }
  return std::move(check.mapped().jobs);
}

void RowChecks::Leave(const v1::Job& job) {
  if (checks_.empty()) return;
  for (const std::string& key : KeysOf(job)) {
    const auto check = checks_.find(key);
    if (check == checks_.end() || check->second.jobs.erase(job.name()) == 0) continue;
    CancelUnwaited(key);
  }
}

void RowChecks::EndUnwaited(const v1::Job& job) {
  if (checks_.empty() || !catalog_.HasModel(job.base_model())) return;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    if (!catalog_.HasDataset(*dataset)) continue;
    const std::string key = KeyOf(job, *dataset);
    if (checks_.contains(key)) CancelUnwaited(key);
  }
}

void RowChecks::CancelUnwaited(const std::string& key) {
  UnderWay& check = checks_.at(key);
  const auto waits = [&](const auto& waiting) {
    return std::ranges::any_of(waiting,
                               [&](const auto& entry) { return Concerns(entry.second.job, key); });
  };
  if (check.cancelled || !check.jobs.empty()) return;
  if (waits(waiting_.validations) || waits(waiting_.estimates)) return;
  check.cancelled = true;
  turn_.Do(CancelRows{key});
}

void RowChecks::Prune(const std::vector<const v1::Job*>& jobs) {
  std::set<std::string> needed;
  const auto need = [&](const v1::Job& job) {
    if (!catalog_.HasModel(job.base_model())) return;
    for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
      if (catalog_.HasDataset(*dataset)) needed.insert(KeyOf(job, *dataset));
    }
  };
  for (const v1::Job* job : jobs) need(*job);
  for (const auto& [request, content] : waiting_.validations) need(content.job);
  for (const auto& [request, content] : waiting_.estimates) need(content.job);
  std::erase_if(rows_, [&](const auto& entry) {
    if (needed.contains(entry.first)) return false;
    turn_.Put(storage::DeleteRecord(kRowsKind, entry.first));
    return true;
  });
}

void RowChecks::Forget(const std::string& dataset_sha256) {
  const std::string prefix = dataset_sha256 + "/";
  for (auto rows = rows_.lower_bound(prefix);
       rows != rows_.end() && rows->first.starts_with(prefix);) {
    turn_.Put(storage::DeleteRecord(kRowsKind, rows->first));
    rows = rows_.erase(rows);
  }
  for (auto check = checks_.lower_bound(prefix);
       check != checks_.end() && check->first.starts_with(prefix); ++check) {
    CancelUnwaited(check->first);
  }
}

// ---- requests ----

void RowChecks::Hold(uint64_t request, const EstimateJob& content) {
  held_.push_back({request, content, turn_.now_us() + content.wait_us});
  turn_.Do(SetTimer{kEstimateEnds, held_.back().until_us});
}

std::vector<RowChecks::HeldEstimate> RowChecks::TakeHeld(bool known) {
  std::vector<HeldEstimate> taken, held;
  for (HeldEstimate& estimate : held_) {
    const bool stays = !known && estimate.until_us > turn_.now_us();
    (stays ? held : taken).push_back(std::move(estimate));
  }
  held_ = std::move(held);
  return taken;
}

void RowChecks::On(uint64_t request, const GiveUpRequest& content) {
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
  std::erase_if(held_, [&](const HeldEstimate& held) {
    if (held.request != content.request) return false;
    left.push_back(held.content.job);
    return true;
  });
  if (!left.empty()) turn_.Fail(content.request, absl::CancelledError("the caller has left"));
  for (const v1::Job& job : left) EndUnwaited(job);
  turn_.Answer(request, std::monostate());
}

// ---- invariants ----

std::set<std::string> RowChecks::WaitingJobs() const {
  std::set<std::string> names;
  for (const auto& [key, check] : checks_) names.insert(check.jobs.begin(), check.jobs.end());
  return names;
}

absl::Status RowChecks::CheckInvariants() const {
  std::multiset<uint64_t> requests;
  for (const auto& [request, content] : waiting_.validations) requests.insert(request);
  for (const auto& [request, content] : waiting_.estimates) requests.insert(request);
  if (!requests.empty() && checks_.empty()) {
    return absl::InternalError("row checks: requests wait, and no check is under way");
  }
  for (const HeldEstimate& held : held_) requests.insert(held.request);
  for (const uint64_t request : requests) {
    if (requests.count(request) > 1) {
      return absl::InternalError(absl::StrCat("row checks: request ", request, " waits twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
