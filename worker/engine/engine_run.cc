// Windows: which operation does what.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine.h"

namespace lorad::worker {
namespace {

absl::StatusOr<bool> Done(const absl::Status& status) {
  if (!status.ok()) return status;
  return true;
}

}  // namespace

absl::Status Engine::BeginWindow(std::shared_ptr<const v1::Window> window) {
  if (stages_ > 1 && transport_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("stage ", stage_, " of ", stages_, " was not connected with the others"));
  }
  window_ = std::move(window);
  microbatches_.clear();
  for (const v1::Microbatch& microbatch : window_->microbatches()) {
    if (!microbatches_.emplace(microbatch.number(), &microbatch).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("microbatch ", microbatch.number(), " is in the window twice"));
    }
  }
  return absl::OkStatus();
}

void Engine::EndWindow() {
  way_back_->Finish();
  window_ = nullptr;
  microbatches_.clear();
}

absl::StatusOr<bool> Engine::Execute(const v1::Operation& operation) {
  // Norms wait for those of other jobs as long as they follow each other, and steps likewise.
  const bool steps =
      operation.kind() == v1::Operation::CLIP_DOWN || operation.kind() == v1::Operation::STEP;
  if (operation.kind() != v1::Operation::NORM_UP) way_back_->EnqueueNorms();
  if (!steps) {
    way_back_->EnqueueSteps();
    way_back_->Report();
  }
  switch (operation.kind()) {
    case v1::Operation::NOOP:
      return true;
    case v1::Operation::FORWARD:
    case v1::Operation::EVALUATE:
    case v1::Operation::GENERATE:
      return Done(Run(operation));
    case v1::Operation::BACKWARD:
      return Done(Backward(operation));
    case v1::Operation::RECV:
      return operation.gradient() ? Done(RecvGradient(operation)) : RecvActivations(operation);
    case v1::Operation::SEND:
      return Done(operation.gradient() ? SendGradient(operation) : SendActivations(operation));
    case v1::Operation::LOAD_SLOT:
      return Done(LoadSlot(operation));
    case v1::Operation::FREE_SLOT: {
      const absl::Status landed = CheckLanded(operation, false);
      return Done(landed.ok() ? FreeSlot(operation.job()) : landed);
    }
    default:
      return ExecuteOfJob(operation);
  }
}

absl::StatusOr<bool> Engine::ExecuteOfJob(const v1::Operation& operation) {
  auto found = Find(operation.job());
  if (!found.ok()) return found.status();
  Resident* resident = *found;
  // What has failed here still takes part in the decision of all stages, but counts as dropped.
  const bool failed = resident->failed;
  absl::Status status;
  switch (operation.kind()) {
    case v1::Operation::NORM_UP:
      if (!resident->dropped) status = NormUp(resident, operation);
      break;
    case v1::Operation::CLIP_DOWN:
      if (!resident->dropped) status = ClipDown(resident, operation);
      break;
    case v1::Operation::STEP:
      if (!failed) status = Step(resident, operation);
      break;
    case v1::Operation::SAVE:
      if (!failed) status = Save(resident, operation);
      break;
    default:
      status = absl::InvalidArgumentError(
          absl::StrCat("operation kind ", static_cast<int>(operation.kind()), " is not known"));
  }
  if (!status.ok()) return status;
  return !failed;
}

absl::Status Engine::CheckLanded(const v1::Operation& operation, bool of_step) const {
  for (const auto& [number, flight] : flights_) {
    for (const LossSpan& span : flight.spans) {
      if (span.resident == nullptr || span.segment->job() != operation.job()) continue;
      const bool trains = span.segment->mode() == v1::Segment::TRAIN;
      if (of_step && !(trains && span.segment->step() == operation.step())) continue;
      return absl::InvalidArgumentError(absl::StrCat(v1::Operation::Kind_Name(operation.kind()),
                                                     " of job ", operation.job(),
                                                     " before Backward of microbatch ", number));
    }
  }
  return absl::OkStatus();
}

}  // namespace lorad::worker
