// Windows and their microbatches: forward and backward.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine.h"

namespace lorad::worker {
namespace {

constexpr int32_t kNotTrained = -100;

kernels::Mode ModeOf(v1::Segment::Mode mode) {
  switch (mode) {
    case v1::Segment::TRAIN:
      return kernels::Mode::kTrain;
    case v1::Segment::REFERENCE:
      return kernels::Mode::kReference;
    default:
      return kernels::Mode::kEvaluate;
  }
}

absl::Status Malformed(const v1::Segment& segment, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", segment.sequence(), " of job ",
                                                 segment.job(), ", step ", segment.step(), ": ",
                                                 what));
}

}  // namespace

absl::Status Engine::BeginWindow(const v1::Window& window) {
  window_ = &window;
  microbatches_.clear();
  for (const v1::Microbatch& microbatch : window.microbatches()) {
    if (!microbatches_.emplace(microbatch.number(), &microbatch).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("microbatch ", microbatch.number(), " is in the window twice"));
    }
  }
  return absl::OkStatus();
}

void Engine::EndWindow() {
  way_back_->Finish();
  if (flight_.has_value()) environment_.backend->Synchronize();  // before its batch goes
  window_ = nullptr;
  microbatches_.clear();
  flight_.reset();
}

absl::StatusOr<bool> Engine::Execute(const v1::Operation& operation) {
  const auto done = [](const absl::Status& status) -> absl::StatusOr<bool> {
    if (!status.ok()) return status;
    return true;
  };
  const bool ends =
      operation.kind() == v1::Operation::NORM_UP || operation.kind() == v1::Operation::FREE_SLOT;
  if (flight_.has_value() && ends) {
    return absl::InvalidArgumentError(
        absl::StrCat(v1::Operation::Kind_Name(operation.kind()), " of job ", operation.job(),
                     " before Backward of microbatch ", flight_->microbatch->number()));
  }
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
      return done(Forward(operation.microbatch()));
    case v1::Operation::BACKWARD:
      return done(Backward(operation.microbatch()));
    case v1::Operation::EVALUATE:
      return done(Evaluate(operation.microbatch()));
    case v1::Operation::LOAD_SLOT:
      return done(LoadSlot(operation));
    case v1::Operation::FREE_SLOT:
      return done(FreeSlot(operation.job()));
    case v1::Operation::RECV:
    case v1::Operation::SEND:
      return absl::InvalidArgumentError(absl::StrCat(v1::Operation::Kind_Name(operation.kind()),
                                                     " with stage ", operation.peer(),
                                                     ": this group has one stage"));
    default:
      break;
  }
  auto resident = Find(operation.job());
  if (!resident.ok()) return resident.status();
  if ((*resident)->failed) return false;
  switch (operation.kind()) {
    case v1::Operation::NORM_UP:
      return done(NormUp(*resident, operation));
    case v1::Operation::CLIP_DOWN:
      return done(ClipDown(*resident, operation));
    case v1::Operation::STEP:
      return done(Step(*resident, operation));
    case v1::Operation::SAVE:
      return done(Save(*resident, operation));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("operation kind ", static_cast<int>(operation.kind()), " is not known"));
  }
}

// ---- microbatches ----

absl::StatusOr<const v1::Microbatch*> Engine::FindMicrobatch(int64_t number) const {
  const auto found = microbatches_.find(number);
  if (found == microbatches_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("microbatch ", number, " is not in the window"));
  }
  return found->second;
}

absl::Status Engine::OpenBatchFor(const v1::Segment& segment, Resident* resident) {
  if (!resident->batch.has_value()) {
    if (segment.step() != resident->slot->step() + 1) {
      return Malformed(segment, absl::StrCat("the slot is at step ", resident->slot->step()));
    }
    for (const v1::Batch& batch : window_->batches()) {
      if (batch.job() != segment.job() || batch.step() != segment.step()) continue;
      resident->batch.emplace();
      resident->batch->expected = batch;
      resident->batch->started_ms = environment_.clock();
      break;
    }
    if (!resident->batch.has_value()) {
      return Malformed(segment, "the window does not tell of its batch");
    }
    if (resident->batch->expected.trained_tokens() < 1) {
      return Malformed(segment, "its batch trains no token");
    }
  }
  if (resident->batch->expected.step() != segment.step()) {
    return Malformed(segment,
                     absl::StrCat("step ", resident->batch->expected.step(), " is under way"));
  }
  if (!resident->batch->losses.emplace(segment.sequence(), SequenceLoss{}).second) {
    return Malformed(segment, "it comes twice");
  }
  resident->batch->tokens += segment.input_ids_size();
  return absl::OkStatus();
}

// Appends the rows of a segment to `flight`. Row t counts in the loss if the label of row t + 1
// does.
absl::Status Engine::AddSegment(const v1::Segment& segment, Resident* resident, Flight* flight) {
  const int64_t rows = segment.input_ids_size();
  const int64_t vocabulary = model_->description().vocabulary;
  if (rows < 1 || rows > model_->shape().longest_sequence) {
    return Malformed(segment, absl::StrCat("its length ", rows, " is not in 1..",
                                           model_->shape().longest_sequence));
  }
  if (segment.labels_size() != rows || segment.first_position() != 0) {
    return Malformed(segment, "labels and ids differ in length, or it does not begin at its start");
  }
  const auto in_vocabulary = [&](int32_t id) { return id >= 0 && id < vocabulary; };
  if (!std::all_of(segment.input_ids().begin(), segment.input_ids().end(), in_vocabulary)) {
    return Malformed(segment, "an id is not in the vocabulary");
  }
  kernels::Segment entry;
  entry.first_row = flight->rows;
  entry.rows = rows;
  entry.first_angle = model_->FirstAngle(rows);
  entry.mode = ModeOf(segment.mode());
  entry.slot = entry.mode == kernels::Mode::kReference ? -1 : resident->index;
  entry.dropout.seed = resident->slot->options().dropout_seed;
  entry.dropout.step = static_cast<uint32_t>(segment.step());
  entry.dropout.sequence = static_cast<uint32_t>(segment.sequence());
  flight->segments.push_back(entry);
  flight->ids.insert(flight->ids.end(), segment.input_ids().begin(), segment.input_ids().end());
  LossSpan span{resident, &segment, static_cast<int64_t>(flight->loss_rows.size()), 0};
  for (int64_t t = 0; t + 1 < rows; ++t) {
    const int32_t label = segment.labels(static_cast<int>(t + 1));
    if (label == kNotTrained) continue;
    if (!in_vocabulary(label)) return Malformed(segment, "a label is not in the vocabulary");
    flight->loss_rows.push_back({entry.first_row + t, label});
    ++span.count;
  }
  if (entry.mode == kernels::Mode::kTrain) {
    resident->batch->losses[segment.sequence()].trained_tokens = span.count;
  }
  flight->spans.push_back(span);
  flight->rows += rows;
  flight->squared_lengths += rows * rows;
  return absl::OkStatus();
}

absl::StatusOr<Flight> Engine::Prepare(const v1::Microbatch& microbatch, bool evaluate) {
  Flight flight;
  flight.microbatch = &microbatch;
  for (const v1::Segment& segment : microbatch.segments()) {
    auto resident = Find(segment.job());
    if (!resident.ok()) return resident.status();
    if ((*resident)->failed) continue;
    const bool trains = segment.mode() == v1::Segment::TRAIN;
    if (trains && evaluate) {
      return Malformed(segment, "it trains, but its microbatch is only evaluated");
    }
    if (flight.rows + segment.input_ids_size() > model_->shape().capacity_tokens) {
      return Malformed(segment, absl::StrCat("microbatch ", microbatch.number(), " exceeds ",
                                             model_->shape().capacity_tokens, " tokens"));
    }
    absl::Status status = trains ? OpenBatchFor(segment, *resident) : absl::OkStatus();
    if (status.ok()) status = AddSegment(segment, *resident, &flight);
    if (!status.ok()) return status;
  }
  if (flight.rows > 0) {
    flight.batch = environment_.backend->PrepareBatch(
        {.ids = flight.ids, .segments = flight.segments, .loss_rows = flight.loss_rows});
  }
  return flight;
}

void Engine::EnqueueForward(bool gradient, Flight* flight) {
  flight->lane = way_back_->TakeLane();
  if (flight->rows == 0) return;
  way_back_->Mark(flight->lane, WayBack::kForwardBegins);
  model_->Forward(*flight->batch, flight->rows, static_cast<int64_t>(flight->loss_rows.size()),
                  *table_, gradient);
  model_->ReadBackLogP(way_back_->log_p(flight->lane));
  way_back_->Mark(flight->lane, WayBack::kForwardEnds);
}

absl::Status Engine::Forward(int64_t microbatch) {
  if (flight_.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Forward of microbatch ", microbatch, " before Backward of ",
                     flight_->microbatch->number(), ": there is memory for one"));
  }
  auto found = FindMicrobatch(microbatch);
  if (!found.ok()) return found.status();
  auto flight = Prepare(**found, false);
  if (!flight.ok()) return flight.status();
  flight_ = *std::move(flight);
  EnqueueForward(true, &*flight_);
  return absl::OkStatus();
}

absl::Status Engine::Backward(int64_t microbatch) {
  if (!flight_.has_value() || flight_->microbatch->number() != microbatch) {
    return absl::InvalidArgumentError(
        absl::StrCat("Backward of microbatch ", microbatch, " without its Forward"));
  }
  if (flight_->rows > 0) {
    std::vector<float> weights(flight_->loss_rows.size());
    for (const LossSpan& span : flight_->spans) {
      if (span.segment->mode() != v1::Segment::TRAIN) continue;
      const auto trained = static_cast<double>(span.resident->batch->expected.trained_tokens());
      std::fill_n(weights.begin() + span.first, span.count, static_cast<float>(-1.0 / trained));
    }
    model_->Backward(*flight_->batch, flight_->rows, *table_, weights);
    way_back_->Mark(flight_->lane, WayBack::kBackwardEnds);
  }
  flight_->backward = true;
  way_back_->Add(*std::exchange(flight_, std::nullopt));
  return absl::OkStatus();
}

absl::Status Engine::Evaluate(int64_t microbatch) {
  if (flight_.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Evaluate of microbatch ", microbatch, " before Backward of ",
                     flight_->microbatch->number(), ": there is memory for one"));
  }
  auto found = FindMicrobatch(microbatch);
  if (!found.ok()) return found.status();
  auto flight = Prepare(**found, true);
  if (!flight.ok()) return flight.status();
  EnqueueForward(false, &*flight);
  way_back_->Add(*std::move(flight));
  return absl::OkStatus();
}

}  // namespace lorad::worker
