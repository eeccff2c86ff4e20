// The ends of batches: norms, the decision on them, the optimizer's steps.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/engine.h"

namespace lorad::worker {
namespace {

// The factor of torch.nn.utils.clip_grad_norm_.
double ClipFactor(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace

absl::Status Engine::CheckComplete(const std::string& job, const OpenBatch& batch) const {
  int64_t trained_tokens = 0;
  for (const auto& [sequence, loss] : batch.losses) trained_tokens += loss.trained_tokens;
  const auto sequences = static_cast<int64_t>(batch.losses.size());
  if (sequences == batch.told.sequences() && trained_tokens == batch.told.trained_tokens() &&
      batch.tokens == batch.told.tokens()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the batch of job ", job, ", step ", batch.told.step(), " has ", sequences, " sequences, ",
      batch.tokens, " tokens, ", trained_tokens, " of them trained; told were ",
      batch.told.sequences(), ", ", batch.told.tokens(), ", ", batch.told.trained_tokens()));
}

void Engine::DropBatch(Resident* resident) {
  resident->batch.reset();
  resident->normed_step.reset();
  resident->verdict.reset();
  if (resident->slot == nullptr) return;
  EnqueueNorms();
  EnqueueSteps();
  environment_.backend->DropGradients(resident->slot->optimizer());
  environment_.backend->TakeOverflow(*table_, resident->index, &norms_[resident->index].overflow);
}

void Engine::DropBatches(const std::set<std::string>& jobs) {
  for (auto& [job, resident] : residents_) {
    if (resident.batch.has_value() && jobs.count(job) != 0) DropBatch(&resident);
  }
}

void Engine::FailJob(const std::string& job, Resident* resident, int64_t step,
                     const std::vector<int64_t>& sequences, const std::string& what) {
  TellRead();  // of the microbatch that this is about
  v1::Report report;
  v1::NotFinite& not_finite = *report.mutable_not_finite();
  not_finite.set_job(job);
  not_finite.set_step(step);
  not_finite.mutable_sequences()->Add(sequences.begin(), sequences.end());
  not_finite.set_what(what);
  Report(std::move(report));
  DropBatch(resident);
  resident->failed = true;
}

absl::Status Engine::NormUp(Resident* resident, const v1::Operation& operation) {
  if (!resident->batch.has_value() || resident->batch->told.step() != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job ", operation.job(), " has no batch of step ", operation.step(), " under way"));
  }
  if (resident->normed_step == operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("NormUp of job ", operation.job(), ", step ",
                                                   operation.step(), " comes twice"));
  }
  const absl::Status status = CheckComplete(operation.job(), *resident->batch);
  if (!status.ok()) return status;
  resident->normed_step = operation.step();
  norms_due_.push_back(resident);
  return absl::OkStatus();
}

void Engine::EnqueueNorms() {
  if (norms_due_.empty()) return;
  kernels::Backend& backend = *environment_.backend;
  std::vector<kernels::NormRequest> requests;
  for (const Resident* resident : norms_due_) {
    requests.push_back({&resident->slot->optimizer(), &norms_[resident->index].sum_of_squares});
  }
  backend.SumOfSquares(requests);
  for (const Resident* resident : norms_due_) {
    backend.TakeOverflow(*table_, resident->index, &norms_[resident->index].overflow);
  }
  backend.Mark(kNormsRead);
  norms_due_.clear();
}

absl::Status Engine::ClipDown(Resident* resident, const v1::Operation& operation) {
  if (resident->normed_step != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("ClipDown of job ", operation.job(), ", step ",
                                                   operation.step(), " without its NormUp"));
  }
  ReadLanded();
  if (resident->failed) return absl::OkStatus();
  environment_.backend->WaitFor(kNormsRead);
  const NormReading& reading = norms_[resident->index];
  std::vector<int64_t> not_finite;
  for (const auto& [sequence, loss] : resident->batch->losses) {
    if (!std::isfinite(loss.sum)) not_finite.push_back(sequence);
  }
  const double norm = std::sqrt(reading.sum_of_squares);
  if (!not_finite.empty() || reading.overflow != 0 || !std::isfinite(norm)) {
    FailJob(operation.job(), resident, operation.step(), not_finite,
            not_finite.empty() ? "gradient norm" : "loss");
    return absl::OkStatus();
  }
  resident->verdict = {.step = operation.step(),
                       .norm = norm,
                       .clip_factor = ClipFactor(resident->slot->options().max_grad_norm, norm)};
  return absl::OkStatus();
}

absl::Status Engine::Step(Resident* resident, const v1::Operation& operation) {
  if (!resident->verdict.has_value() || resident->verdict->step != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("Step ", operation.step(), " of job ",
                                                   operation.job(), " without its ClipDown"));
  }
  const SlotOptions& options = resident->slot->options();
  steps_due_.push_back({&resident->slot->optimizer(),
                        {.learning_rate = operation.learning_rate(),
                         .beta1 = options.beta1,
                         .beta2 = options.beta2,
                         .eps = options.eps,
                         .step = operation.step(),
                         .clip_factor = resident->verdict->clip_factor}});
  resident->slot->set_step(operation.step());
  const OpenBatch& batch = *resident->batch;
  double loss_sum = 0;
  for (const auto& [sequence, loss] : batch.losses) loss_sum += loss.sum;
  v1::Report report;
  v1::StepDone& done = *report.mutable_step_done();
  done.set_job(operation.job());
  done.set_step(operation.step());
  done.set_loss(loss_sum / static_cast<double>(batch.told.trained_tokens()));
  done.set_grad_norm(resident->verdict->norm);
  done.set_learning_rate(operation.learning_rate());
  done.set_trained_tokens(batch.told.trained_tokens());
  done.set_tokens(batch.told.tokens());
  done.set_step_time_ms(environment_.clock() - batch.started_ms);
  step_reports_due_.push_back(std::move(report));
  resident->batch.reset();
  resident->normed_step.reset();
  resident->verdict.reset();
  return absl::OkStatus();
}

void Engine::EnqueueSteps() {
  if (steps_due_.empty()) return;
  environment_.backend->AdamW(steps_due_);
  steps_due_.clear();
  // Only now: the device waits for the steps.
  TellRead();
  for (v1::Report& report : step_reports_due_) Report(std::move(report));
  step_reports_due_.clear();
}

}  // namespace lorad::worker
