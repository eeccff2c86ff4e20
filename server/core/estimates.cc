// The estimate of a job's cost.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/state.h"

namespace lorad::server {

void Core::State::On(uint64_t request, const EstimateJob& content) {
  if (absl::Status status = CheckReferences(content.job); !status.ok()) {
    return turn_.Fail(request, status);
  }
  if (!rows_.Ensure(content.job)) return rows_.Wait(request, content);
  if (content.wait_us > 0 && cluster_.empty() && !stopping_) {
    return rows_.Hold(request, content);
  }
  absl::StatusOr<v1::JobEstimate> estimate = Estimate(content.job);
  estimate.ok() ? turn_.Answer(request, *std::move(estimate))
                : turn_.Fail(request, estimate.status());
}

void Core::State::AnswerEstimates() {
  for (RowChecks::HeldEstimate& held : rows_.TakeHeld(!cluster_.empty() || stopping_)) {
    held.content.wait_us = 0;
    On(held.request, held.content);
  }
}

absl::StatusOr<v1::JobEstimate> Core::State::Estimate(const v1::Job& job) {
  records::JobRecord record;
  *record.mutable_job() = job;
  v1::JobError error;
  if (absl::Status status = rows_.SumUp(record, &error); !status.ok()) return status;
  const planner::ModelShape& model = catalog_.Model(job.base_model()).shape;
  const LoneGroup alone = cluster_.GroupAlone(model, job.adapter(), record.longest_tokens());
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
  const records::RowsSummary& rows = *rows_.Find(rows_.KeyOf(job, job.training_dataset()));
  const double passes = static_cast<double>(complete.total_tokens()) /
                        static_cast<double>(std::max<int64_t>(rows.tokens(), 1));
  const double of_step = static_cast<double>(complete.total_tokens()) /
                         static_cast<double>(std::max<int64_t>(complete.total_steps(), 1));
  const planner::TimeModel& times = cluster_.TimesOf(job.base_model(), model, alone.worker);
  const auto trained = static_cast<double>(complete.total_tokens());
  const double squares = rows.squared_lengths() * passes;
  const double microbatches = static_cast<double>(complete.total_steps()) *
                              std::ceil(of_step / static_cast<double>(alone.shape.capacity_tokens));
  double ms = times.TrainMs(trained, squares, microbatches);
  if (alone.shape.recomputation == planner::Recomputation::kBlocks) {
    ms += times.EvaluateMs(trained, squares, microbatches);  // forward twice
  }
  if (!job.validation_dataset().empty()) {
    const records::RowsSummary& validation =
        *rows_.Find(rows_.KeyOf(job, job.validation_dataset()));
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
