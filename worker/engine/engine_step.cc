// The ends of batches: norms, the decision on them, the optimizer's steps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine.h"
#include "worker/engine/verdicts.h"

namespace lorad::worker {

absl::Status Engine::CheckComplete(const std::string& job, const OpenBatch& batch) const {
  int64_t trained_tokens = 0;
  for (const auto& [sequence, loss] : batch.losses) trained_tokens += loss.trained_tokens;
  const auto sequences = static_cast<int64_t>(batch.losses.size());
  // Labels are known where the head is.
  const bool trained = !model_->has_head() || trained_tokens == batch.expected.trained_tokens();
  if (sequences == batch.expected.sequences() && trained &&
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
    if (!resident.batch.has_value() || jobs.count(job) == 0) continue;
    for (auto& [number, flight] : flights_) DropRows(resident, &flight);
    DropBatch(&resident);
  }
}

// What is in flight of a batch that is dropped goes on with the adapter off, and nothing of it
// reaches the job any more: its next batch may begin before these rows are back, and its slot may
// end.
void Engine::DropRows(const Resident& resident, Flight* flight) {
  bool any = false;
  for (size_t i = 0; i < flight->spans.size(); ++i) {
    LossSpan& span = flight->spans[i];
    if (span.resident != &resident || span.segment->mode() != v1::Segment::TRAIN) continue;
    span.resident = nullptr;
    flight->segments[i].mode = kernels::Mode::kReference;
    flight->segments[i].slot = -1;
    any = true;
  }
  if (!any) return;
  environment_.backend->Synchronize();  // before the batch goes that the device may use
  PrepareRows(flight);
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
  resident->failed = true;
}

// ---- the norm of a batch: from all stages to the first, and its decision back ----

absl::Status Engine::NormUp(Resident* resident, const v1::Operation& operation) {
  absl::Status status = CheckLanded(operation, true);
  if (!status.ok()) return status;
  if (!resident->batch.has_value() || resident->batch->expected.step() != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job ", operation.job(), " has no batch of step ", operation.step(), " under way"));
  }
  if (resident->normed_step == operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("NormUp of job ", operation.job(), ", step ",
                                                   operation.step(), " comes twice"));
  }
  status = CheckComplete(operation.job(), *resident->batch);
  if (!status.ok()) return status;
  resident->normed_step = operation.step();
  if (!resident->failed) way_back_->AddNorm(resident);
  if (stage_ == 0) return absl::OkStatus();
  // Stage 0 waits for it, so it goes at once.
  way_back_->EnqueueNorms();
  way_back_->ReadMicrobatch();
  v1::StageNote note;
  *note.mutable_norm_share() = ShareOf(operation.job(), *resident);
  return Tell(0, note);
}

std::vector<int64_t> Engine::LossesNotFinite(const Resident& resident) const {
  std::vector<int64_t> sequences;
  for (const auto& [sequence, loss] : resident.batch->losses) {
    if (!std::isfinite(loss.sum)) sequences.push_back(sequence);
  }
  return sequences;
}

v1::NormShare Engine::ShareOf(const std::string& job, const Resident& resident) {
  v1::NormShare share;
  share.set_job(job);
  share.set_step(resident.batch->expected.step());
  share.set_state(resident.slot == nullptr ? v1::NormShare::NO_SLOT : v1::NormShare::NOT_FINITE);
  if (resident.failed || !LossesNotFinite(resident).empty()) return share;
  const WayBack::NormReading reading = way_back_->ReadNorm(resident);
  if (reading.overflow) return share;
  share.set_state(v1::NormShare::FINITE);
  share.mutable_sums()->Add(reading.sums.begin(), reading.sums.end());
  return share;
}

absl::StatusOr<v1::NormShare> Engine::AwaitShare(int stage, const std::string& job, int64_t step) {
  while (true) {
    const auto early = shares_.find({stage, job});
    if (early != shares_.end() && early->second.step() == step) {
      return std::move(shares_.extract(early).mapped());
    }
    auto note = Hear(stage);
    if (!note.ok()) return note.status();
    v1::NormShare& share = *note->mutable_norm_share();
    shares_[{stage, share.job()}] = std::move(share);
  }
}

// Stage 0: decides, and tells all others.
absl::StatusOr<v1::Verdict> Engine::GatherVerdict(const std::string& job,
                                                  const Resident& resident) {
  std::vector<v1::NormShare> shares = {ShareOf(job, resident)};
  for (int stage = 1; stage < stages_; ++stage) {
    auto share = AwaitShare(stage, job, shares.front().step());
    if (!share.ok()) return share.status();
    shares.push_back(*std::move(share));
  }
  const double max_grad_norm =
      resident.slot != nullptr ? resident.slot->options().max_grad_norm : 0;
  v1::StageNote note;
  *note.mutable_verdict() = Decide(shares, max_grad_norm, [this](std::span<const double> sums) {
    return environment_.backend->FoldSums(sums);
  });
  for (int stage = 1; stage < stages_; ++stage) {
    absl::Status status = Tell(stage, note);
    if (!status.ok()) return status;
  }
  return note.verdict();
}

absl::StatusOr<v1::Verdict> Engine::VerdictOn(const std::string& job, const Resident& resident) {
  if (stage_ == 0) return GatherVerdict(job, resident);
  const auto note = Hear(0);
  if (!note.ok()) return note.status();
  const v1::Verdict& verdict = note->verdict();
  if (verdict.job() == job && verdict.step() == resident.batch->expected.step()) return verdict;
  return absl::InternalError(absl::StrCat("stage 0 has decided on job ", verdict.job(), ", step ",
                                          verdict.step(), " where job ", job, ", step ",
                                          resident.batch->expected.step(), " is next"));
}

absl::Status Engine::ClipDown(Resident* resident, const v1::Operation& operation) {
  if (resident->normed_step != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("ClipDown of job ", operation.job(), ", step ",
                                                   operation.step(), " without its NormUp"));
  }
  way_back_->ReadMicrobatch();
  const auto verdict = VerdictOn(operation.job(), *resident);
  if (!verdict.ok()) return verdict.status();
  if (verdict->outcome() == v1::Verdict::STEP) {
    resident->verdict = {
        .step = operation.step(), .norm = verdict->norm(), .clip_factor = verdict->clip_factor()};
    return absl::OkStatus();
  }
  const bool not_finite = verdict->outcome() == v1::Verdict::NOT_FINITE;
  if (not_finite && model_->has_head() && !resident->failed) {
    const std::vector<int64_t> sequences = LossesNotFinite(*resident);
    FailJob(operation.job(), resident, operation.step(), sequences,
            sequences.empty() ? "gradient norm" : "loss");
  }
  DropBatch(resident);
  resident->failed = true;
  resident->dropped = true;
  return absl::OkStatus();
}

absl::Status Engine::Step(Resident* resident, const v1::Operation& operation) {
  if (!resident->verdict.has_value() || resident->verdict->step != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("Step ", operation.step(), " of job ",
                                                   operation.job(), " without its ClipDown"));
  }
  const SlotOptions& options = resident->slot->options();
  resident->slot->set_step(operation.step());
  const kernels::StepRequest request{&resident->slot->optimizer(),
                                     {.learning_rate = operation.learning_rate(),
                                      .beta1 = options.beta1,
                                      .beta2 = options.beta2,
                                      .eps = options.eps,
                                      .step = operation.step(),
                                      .clip_factor = resident->verdict->clip_factor}};
  std::optional<v1::Report> done;
  if (model_->has_head()) done = StepDone(*resident, operation);
  way_back_->AddStep(request, std::move(done));
  resident->CloseBatch();
  return absl::OkStatus();
}

v1::Report Engine::StepDone(const Resident& resident, const v1::Operation& operation) const {
  const OpenBatch& batch = *resident.batch;
  double loss_sum = 0;
  for (const auto& [sequence, loss] : batch.losses) loss_sum += loss.sum;
  v1::Report report;
  v1::StepDone& done = *report.mutable_step_done();
  done.set_job(operation.job());
  done.set_step(operation.step());
  done.set_loss(loss_sum / static_cast<double>(batch.expected.trained_tokens()));
  done.set_grad_norm(resident.verdict->norm);
  done.set_learning_rate(operation.learning_rate());
  done.set_trained_tokens(batch.expected.trained_tokens());
  done.set_tokens(batch.expected.tokens());
  done.set_step_time_ms(environment_.clock() - batch.started_ms);
  return report;
}

}  // namespace lorad::worker
