#include "server/core/jobs/job_progress.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/core/catalog/row_sums.h"

namespace lorad::server {
namespace {

const std::vector<const google::protobuf::FieldDescriptor*>& ProgressFields() {
  static const auto* const fields = [] {
    auto* found = new std::vector<const google::protobuf::FieldDescriptor*>;
    for (const int number :
         {v1::Job::kRevisionFieldNumber, v1::Job::kStepFieldNumber, v1::Job::kEpochFieldNumber,
          v1::Job::kTokensFieldNumber, v1::Job::kTokensPerSecondFieldNumber,
          v1::Job::kLossFieldNumber, v1::Job::kLearningRateFieldNumber,
          v1::Job::kGradNormFieldNumber, v1::Job::kSecondsLeftFieldNumber,
          v1::Job::kPackedWithFieldNumber, v1::Job::kAdaptersPerMicrobatchFieldNumber,
          v1::Job::kFirstForecastFieldNumber, v1::Job::kForetoldStartTimeFieldNumber}) {
      found->push_back(v1::Job::descriptor()->FindFieldByNumber(number));
    }
    return found;
  }();
  return *fields;
}

}  // namespace

v1::Job ProgressOf(const v1::Job& job) {
  v1::Job whole = job;
  v1::Job progress;
  progress.set_name(job.name());
  progress.GetReflection()->SwapFields(&whole, &progress, ProgressFields());
  return progress;
}

void SetProgress(v1::Job progress, v1::Job* job) {
  job->GetReflection()->SwapFields(&progress, job, ProgressFields());
}

double EpochAt(const records::JobRecord& record, int64_t step) {
  return static_cast<double>(step) / static_cast<double>(StepsOfEpoch(record));
}

void ShowCheckpoint(records::JobRecord& record) {
  v1::Job& job = *record.mutable_job();
  const int64_t step = job.last_checkpoint_step();
  job.set_step(step);
  job.set_tokens(record.checkpoint_tokens());
  SetTotals(record);
  job.set_epoch(EpochAt(record, step));
  if (const v1::StepMetrics& row = record.checkpoint_metrics(); step > 0 && row.step() == step) {
    job.set_loss(row.loss());
    job.set_grad_norm(row.grad_norm());
    job.set_learning_rate(row.learning_rate());
  } else {
    job.clear_loss();
    job.clear_grad_norm();
    job.clear_learning_rate();
  }
}

void SetStalled(std::string why, v1::Job* job) {
  job->set_stalled(std::move(why));
  job->clear_tokens_per_second();
  job->clear_seconds_left();
}

void Summarize(const v1::Job& job, v1::Job& summary) {
  const auto copy = [&](const std::string& text, std::string* (v1::Job::*to)()) {
    if (!text.empty()) *(summary.*to)() = text;  // or else it costs an allocation
  };
  copy(job.name(), &v1::Job::mutable_name);
  copy(job.display_name(), &v1::Job::mutable_display_name);
  copy(job.base_model(), &v1::Job::mutable_base_model);
  copy(job.training_dataset(), &v1::Job::mutable_training_dataset);
  copy(job.validation_dataset(), &v1::Job::mutable_validation_dataset);
  summary.mutable_adapter()->set_rank(job.adapter().rank());
  summary.set_priority(job.priority());
  summary.set_state(job.state());
  *summary.mutable_create_time() = job.create_time();
  if (job.has_start_time()) *summary.mutable_start_time() = job.start_time();
  if (job.has_end_time()) *summary.mutable_end_time() = job.end_time();
  summary.set_revision(job.revision());
  summary.set_step(job.step());
  summary.set_total_steps(job.total_steps());
  summary.set_epoch(job.epoch());
  summary.set_tokens(job.tokens());
  summary.set_total_tokens(job.total_tokens());
  summary.set_tokens_per_second(job.tokens_per_second());
  if (job.has_loss()) summary.set_loss(job.loss());
  if (job.has_validation_loss()) summary.set_validation_loss(job.validation_loss());
  if (job.has_initial_validation_loss()) {
    summary.set_initial_validation_loss(job.initial_validation_loss());
  }
  if (job.has_seconds_left()) summary.set_seconds_left(job.seconds_left());
  copy(job.group(), &v1::Job::mutable_group);
  summary.set_attempts(job.attempts());
  summary.set_last_checkpoint_step(job.last_checkpoint_step());
  copy(job.stalled(), &v1::Job::mutable_stalled);
}

}  // namespace lorad::server
