// What a stage exchanges with the others: tensors with its neighbours, notes with stage 0.
#include <cassert>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "worker/engine/engine.h"

namespace lorad::worker {
namespace {

absl::Status Lost(absl::Status status) {
  if (!status.ok()) {
    const bool memory = absl::IsResourceExhausted(status);
    status.SetPayload(storage::Absl(storage::kReasonPayload),
                      absl::Cord(memory ? "MEMORY_TAKEN" : "STAGE_LOST"));
  }
  return status;
}

absl::Status Unexpected(const Passage& passage, int64_t microbatch, int64_t rows) {
  return absl::InternalError(absl::StrCat("microbatch ", passage.microbatch, " with ", passage.rows,
                                          " rows came over the border where ", microbatch, " with ",
                                          rows, " is next"));
}

}  // namespace

absl::Status Engine::Connect(Transport* transport) {
  assert(stages_ > 1 && transport_ == nullptr);
  transport_ = transport;
  before_ = model_->before();
  behind_ = model_->behind();
  absl::Status status;
  if (!model_->has_embedding()) status = PostReceive(Lane::kActivations, before_.coming);
  if (status.ok() && !model_->has_head()) status = PostReceive(Lane::kGradients, behind_.coming);
  return status;
}

// The host's memory is at rest when a transport gets it, a device's is handed over in the order of
// its operations (transport.h).
void Engine::Settle() {
  if (environment_.backend->device() == kernels::Device::kCpu) environment_.backend->Synchronize();
}

absl::Status Engine::PostReceive(Lane lane, const kernels::TensorView& memory) {
  Settle();
  return Lost(transport_->PostReceive(lane, memory));
}

absl::Status Engine::Send(Lane lane, const Passage& passage, const kernels::TensorView& memory) {
  Settle();
  return Lost(transport_->Send(lane, passage, memory));
}

absl::Status Engine::CheckTransfer(const v1::Operation& operation) const {
  const bool from_before = (operation.kind() == v1::Operation::RECV) != operation.gradient();
  const int neighbour = from_before ? stage_ - 1 : stage_ + 1;
  if (operation.peer() == neighbour && neighbour >= 0 && neighbour < stages_) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(v1::Operation::Kind_Name(operation.kind()), " of ",
                   operation.gradient() ? "a gradient" : "activations", " with stage ",
                   operation.peer(), ": this is stage ", stage_, " of ", stages_));
}

absl::StatusOr<bool> Engine::RecvActivations(const v1::Operation& operation) {
  absl::Status status = CheckTransfer(operation);
  if (!status.ok()) return status;
  auto flight = Begin(operation.microbatch());
  if (!flight.ok()) return flight.status();
  const auto received = transport_->WaitReceived(Lane::kActivations);
  if (!received.ok()) return Lost(received.status());
  if (!received->has_value()) {  // a cut drops it, and with it the batches that it has begun
    place_taken_[(*flight)->place] = false;
    flights_.erase(operation.microbatch());
    return false;
  }
  const Passage& passage = (*received)->passage;
  if (passage.microbatch != (*flight)->number() || passage.rows != (*flight)->rows) {
    return Unexpected(passage, (*flight)->number(), (*flight)->rows);
  }
  (*flight)->activations = **received;
  for (LossSpan& span : (*flight)->spans) {
    for (const int32_t index : passage.lost) span.lost = span.lost || span.index == index;
  }
  model_->ExchangeInput((*flight)->place, before_.coming);
  status = PostReceive(Lane::kActivations, before_.coming);
  if (!status.ok()) return status;
  return true;
}

absl::Status Engine::SendActivations(const v1::Operation& operation) {
  absl::Status status = CheckTransfer(operation);
  if (!status.ok()) return status;
  auto found = FindFlight(operation);
  if (!found.ok()) return found.status();
  Flight* flight = *found;
  if (output_of_ != flight->number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Send of microbatch ", flight->number(), " without its Forward before it"));
  }
  status = Lost(transport_->WaitSent(Lane::kActivations));
  if (!status.ok()) return status;
  Passage passage{.microbatch = flight->number(), .rows = flight->rows};
  for (const LossSpan& span : flight->spans) {
    if (span.lost) passage.lost.push_back(span.index);
  }
  model_->ExchangeOutput(behind_.going);
  output_of_.reset();
  if (flight->evaluates) Land(flight);
  return Send(Lane::kActivations, passage, behind_.going);
}

absl::Status Engine::RecvGradient(const v1::Operation& operation) {
  absl::Status status = CheckTransfer(operation);
  if (!status.ok()) return status;
  auto found = FindFlight(operation);
  if (!found.ok()) return found.status();
  Flight* flight = *found;
  if (!flight->forward() || flight->evaluates || flight->backward || gradient_of_.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Recv of the gradient of microbatch ", flight->number(), " before ",
        gradient_of_.has_value() ? absl::StrCat("that of ", *gradient_of_, " is used and sent")
                                 : "its Forward"));
  }
  const auto received = transport_->WaitReceived(Lane::kGradients);
  if (!received.ok()) return Lost(received.status());
  const Passage& passage = (*received)->passage;  // never given up: its Forward was kept
  const bool expected = passage.rows == flight->rows || passage.rows == 0;
  if (passage.microbatch != flight->number() || !expected) {
    return Unexpected(passage, flight->number(), flight->rows);
  }
  flight->gradient = **received;
  flight->gradient_rows = passage.rows;
  model_->ExchangeGradient(behind_.coming);
  gradient_of_ = flight->number();
  return PostReceive(Lane::kGradients, behind_.coming);
}

absl::Status Engine::SendGradient(const v1::Operation& operation) {
  absl::Status status = CheckTransfer(operation);
  if (!status.ok()) return status;
  auto found = FindFlight(operation);
  if (!found.ok()) return found.status();
  Flight* flight = *found;
  if (!flight->backward || gradient_of_ != flight->number()) {
    return absl::InvalidArgumentError(absl::StrCat("Send of the gradient of microbatch ",
                                                   flight->number(),
                                                   " without its Backward before it"));
  }
  status = Lost(transport_->WaitSent(Lane::kGradients));
  if (!status.ok()) return status;
  const Passage passage{.microbatch = flight->number(), .rows = flight->gradient_rows};
  model_->ExchangeGradient(before_.going);
  gradient_of_.reset();
  Land(flight);
  return Send(Lane::kGradients, passage, before_.going);
}

// ---- notes ----

absl::Status Engine::Tell(int stage, const v1::StageNote& note) {
  return Lost(transport_->SendNote(stage, note.SerializeAsString()));
}

absl::StatusOr<v1::StageNote> Engine::Hear(int stage) {
  const auto bytes = transport_->WaitNote(stage);
  if (!bytes.ok()) return Lost(bytes.status());
  v1::StageNote note;
  if (!note.ParseFromString(*bytes)) {
    return absl::InternalError(absl::StrCat("a note of stage ", stage, " cannot be read"));
  }
  return note;
}

}  // namespace lorad::worker
