// The ends of batches: norms, the decision on them, the optimizer's steps.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine.h"

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
  if (sequences == batch.expected.sequences() &&
      trained_tokens == batch.expected.trained_tokens() &&
      batch.tokens == batch.expected.tokens()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the batch of job ", job, ", step ", batch.expected.step(), " has ", sequences,
                   " sequences, ", batch.tokens, " tokens, ", trained_tokens,
                   " of them trained; the window says ", batch.expected.sequences(), ", ",
                   batch.expected.tokens(), ", ", batch.expected.trained_tokens()));
}

void Engine::DropBatch(Resident* resident) {
  resident->CloseBatch();
  if (resident->slot == nullptr) return;
  way_back_->EnqueueNorms();
  way_back_->EnqueueSteps();
  environment_.backend->DropGradients(resident->slot->optimizer());
  way_back_->TakeOverflow(*resident);
}

void Engine::DropBatches(const std::set<std::string>& jobs) {
  for (auto& [job, resident] : residents_) {
    if (resident.batch.has_value() && jobs.count(job) != 0) DropBatch(&resident);
  }
}

void Engine::FailJob(const std::string& job, Resident* resident, int64_t step,
                     const std::vector<int64_t>& sequences, const std::string& what) {
  way_back_->Report();  // of the microbatch that this is about
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
  if (!resident->batch.has_value() || resident->batch->expected.step() != operation.step()) {
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
  way_back_->AddNorm(resident);
  return absl::OkStatus();
}

absl::Status Engine::ClipDown(Resident* resident, const v1::Operation& operation) {
  if (resident->normed_step != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("ClipDown of job ", operation.job(), ", step ",
                                                   operation.step(), " without its NormUp"));
  }
  way_back_->ReadMicrobatch();
  if (resident->failed) return absl::OkStatus();
  const WayBack::NormReading reading = way_back_->ReadNorm(*resident);
  std::vector<int64_t> not_finite;
  for (const auto& [sequence, loss] : resident->batch->losses) {
    if (!std::isfinite(loss.sum)) not_finite.push_back(sequence);
  }
  const double norm = std::sqrt(environment_.backend->FoldSums(reading.sums));
  if (!not_finite.empty() || reading.overflow || !std::isfinite(norm)) {
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
  resident->slot->set_step(operation.step());
  const OpenBatch& batch = *resident->batch;
  double loss_sum = 0;
  for (const auto& [sequence, loss] : batch.losses) loss_sum += loss.sum;
  v1::Report report;
  v1::StepDone& done = *report.mutable_step_done();
  done.set_job(operation.job());
  done.set_step(operation.step());
  done.set_loss(loss_sum / static_cast<double>(batch.expected.trained_tokens()));
  done.set_grad_norm(resident->verdict->norm);
  done.set_learning_rate(operation.learning_rate());
  done.set_trained_tokens(batch.expected.trained_tokens());
  done.set_tokens(batch.expected.tokens());
  done.set_step_time_ms(environment_.clock() - batch.started_ms);
  const kernels::StepRequest request{&resident->slot->optimizer(),
                                     {.learning_rate = operation.learning_rate(),
                                      .beta1 = options.beta1,
                                      .beta2 = options.beta2,
                                      .eps = options.eps,
                                      .step = operation.step(),
                                      .clip_factor = resident->verdict->clip_factor}};
  way_back_->AddStep(request, std::move(report));
  resident->CloseBatch();
  return absl::OkStatus();
}

}  // namespace lorad::worker
