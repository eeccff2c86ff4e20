// Microbatches: from their segments to rows, forward and backward.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine.h"

namespace lorad::worker {
namespace {

constexpr int32_t kNotTrained = -100;

// resident: null where the adapter is off.
kernels::Mode ModeOf(const v1::Segment& segment, const Resident* resident) {
  if (resident == nullptr || resident->failed) return kernels::Mode::kReference;
  switch (segment.mode()) {
    case v1::Segment::TRAIN:
      return kernels::Mode::kTrain;
    case v1::Segment::REFERENCE:
      return kernels::Mode::kReference;
    default:
      return kernels::Mode::kEvaluate;
  }
}

int64_t LengthOf(const v1::Segment& segment) {
  return segment.tokens() > 0 ? segment.tokens() : segment.input_ids_size();
}

absl::Status Malformed(const v1::Segment& segment, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", segment.sequence(), " of job ",
                                                 segment.job(), ", step ", segment.step(), ": ",
                                                 what));
}

bool Generates(const v1::Segment& segment) { return segment.mode() == v1::Segment::GENERATE; }

// No adapter, and no job that must have a slot.
bool OfBase(const v1::Segment& segment) { return Generates(segment) && segment.sampling().base(); }

// What only is evaluated does not train, and what generates does nothing else.
bool Suits(const v1::Segment& segment, v1::Operation::Kind kind) {
  if (kind == v1::Operation::GENERATE) return Generates(segment);
  if (Generates(segment)) return false;
  return kind == v1::Operation::FORWARD || segment.mode() != v1::Segment::TRAIN;
}

}  // namespace

// ---- from segments to rows ----

absl::StatusOr<const v1::Microbatch*> Engine::FindMicrobatch(int64_t number) const {
  const auto found = microbatches_.find(number);
  if (found == microbatches_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("microbatch ", number, " is not in the window"));
  }
  return found->second;
}

absl::Status Engine::OpenBatchFor(const v1::Segment& segment, Resident* resident) {
  if (resident->slot != nullptr && resident->slot->options().answers_only) {
    return Malformed(segment, "its slot only answers");
  }
  if (!resident->batch.has_value()) {
    if (resident->slot != nullptr && segment.step() != resident->slot->step() + 1) {
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
  resident->batch->tokens += LengthOf(segment);
  return absl::OkStatus();
}

// Row t counts in the loss if the label of row t + 1 does.
absl::Status Engine::AddLossRows(const v1::Segment& segment, int64_t first_row, Flight* flight,
                                 LossSpan* span) const {
  const int64_t rows = LengthOf(segment);
  if (segment.labels_size() != rows) {
    return Malformed(
        segment, absl::StrCat("it has ", segment.labels_size(), " labels and ", rows, " tokens"));
  }
  for (int64_t t = 0; t + 1 < rows; ++t) {
    const int32_t label = segment.labels(static_cast<int>(t + 1));
    if (label == kNotTrained) continue;
    if (label < 0 || label >= model_->description().vocabulary) {
      return Malformed(segment, "a label is not in the vocabulary");
    }
    flight->loss_rows.push_back({first_row + t, label});
    ++span->count;
  }
  return absl::OkStatus();
}

// Appends the rows of a segment to `flight`.
absl::Status Engine::AddSegment(const v1::Segment& segment, int32_t index, Resident* resident,
                                Flight* flight) {
  const int64_t rows = LengthOf(segment);
  if (rows < 1 || rows > model_->shape().longest_sequence) {
    return Malformed(segment, absl::StrCat("its length ", rows, " is not in 1..",
                                           model_->shape().longest_sequence));
  }
  if (segment.first_position() != 0) {
    return Malformed(segment, "it does not begin at its sequence's start");
  }
  kernels::Segment entry;
  entry.first_row = flight->rows;
  entry.rows = rows;
  entry.first_angle = model_->FirstAngle(rows);
  entry.mode = ModeOf(segment, resident);
  entry.slot = entry.mode == kernels::Mode::kReference ? -1 : resident->index;
  if (resident != nullptr && resident->slot != nullptr) {
    entry.dropout.seed = resident->slot->options().dropout_seed;
  }
  entry.dropout.step = static_cast<uint32_t>(segment.step());
  entry.dropout.sequence = static_cast<uint32_t>(segment.sequence());
  flight->segments.push_back(entry);
  if (model_->has_embedding()) {
    const auto in_vocabulary = [&](int32_t id) {
      return id >= 0 && id < model_->description().vocabulary;
    };
    if (segment.input_ids_size() != rows) {
      return Malformed(
          segment, absl::StrCat("it has ", segment.input_ids_size(), " ids and ", rows, " tokens"));
    }
    if (!std::all_of(segment.input_ids().begin(), segment.input_ids().end(), in_vocabulary)) {
      return Malformed(segment, "an id is not in the vocabulary");
    }
    flight->ids.insert(flight->ids.end(), segment.input_ids().begin(), segment.input_ids().end());
  } else {
    flight->ids.resize(flight->ids.size() + static_cast<size_t>(rows));
  }
  LossSpan span{.resident = resident,
                .segment = &segment,
                .first = flight->LossRows(),
                .index = index,
                .lost = resident != nullptr && resident->failed};
  if (Generates(segment)) {
    span.first = flight->LogitRows();
    span.count = 1;
    flight->logit_rows.push_back(static_cast<int32_t>(entry.first_row + rows - 1));
  } else if (model_->has_head()) {
    absl::Status status = AddLossRows(segment, entry.first_row, flight, &span);
    if (!status.ok()) return status;
  }
  if (segment.mode() == v1::Segment::TRAIN) {
    resident->batch->losses[segment.sequence()].trained_tokens = span.count;
  }
  flight->spans.push_back(span);
  flight->rows += rows;
  flight->squared_lengths += rows * rows;
  return absl::OkStatus();
}

absl::StatusOr<Flight> Engine::Prepare(const v1::Microbatch& microbatch) {
  Flight flight;
  flight.window = window_;
  flight.microbatch = &microbatch;
  for (int32_t index = 0; index < microbatch.segments_size(); ++index) {
    const v1::Segment& segment = microbatch.segments(index);
    if (Generates(segment) != Generates(microbatch.segments(0))) {
      return Malformed(segment, "some of its microbatch generate and some do not");
    }
    auto resident = OfBase(segment) ? absl::StatusOr<Resident*>(nullptr) : Find(segment.job());
    if (!resident.ok()) return resident.status();
    if (*resident != nullptr && (*resident)->dropped) {
      // Who waits for a token is told that there is none.
      if (Generates(segment)) {
        flight.spans.push_back({.segment = &segment, .index = index, .lost = true});
      }
      continue;
    }
    if (flight.rows + LengthOf(segment) > model_->shape().capacity_tokens) {
      return Malformed(segment, absl::StrCat("microbatch ", microbatch.number(), " exceeds ",
                                             model_->shape().capacity_tokens, " tokens"));
    }
    const bool trains = segment.mode() == v1::Segment::TRAIN;
    absl::Status status = trains ? OpenBatchFor(segment, *resident) : absl::OkStatus();
    if (status.ok()) status = AddSegment(segment, index, *resident, &flight);
    if (!status.ok()) return status;
  }
  PrepareRows(&flight);
  return flight;
}

void Engine::PrepareRows(Flight* flight) {
  if (flight->rows == 0) return;
  flight->batch = environment_.backend->PrepareBatch(
      {.ids = flight->ids, .segments = flight->segments, .loss_rows = flight->loss_rows});
}

// ---- in flight ----

absl::StatusOr<Flight*> Engine::Begin(int64_t number) {
  auto microbatch = FindMicrobatch(number);
  if (!microbatch.ok()) return microbatch.status();
  const auto free = std::find(place_taken_.begin(), place_taken_.end(), false);
  if (free == place_taken_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("microbatch ", number, " begins before Backward of ", flights_.begin()->first,
                     ": there is memory for ", place_taken_.size(), " in flight"));
  }
  if (flights_.count(number) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("microbatch ", number, " begins twice"));
  }
  auto flight = Prepare(**microbatch);
  if (!flight.ok()) return flight.status();
  flight->place = static_cast<size_t>(free - place_taken_.begin());
  *free = true;
  return &flights_.emplace(number, *std::move(flight)).first->second;
}

absl::StatusOr<Flight*> Engine::FindFlight(const v1::Operation& operation) {
  const auto found = flights_.find(operation.microbatch());
  if (found != flights_.end()) return &found->second;
  return absl::InvalidArgumentError(absl::StrCat(v1::Operation::Kind_Name(operation.kind()),
                                                 " of microbatch ", operation.microbatch(),
                                                 ", which is not in flight"));
}

Model::Pass Engine::PassOf(const Flight& flight) const {
  return {*flight.batch, flight.rows, flight.LossRows(), flight.place};
}

void Engine::Land(Flight* flight) {
  place_taken_[flight->place] = false;
  const int64_t number = flight->number();
  way_back_->Add(std::move(*flight));
  flights_.erase(number);
}

// Behind the last norm's rows, as many as there is memory for at a time.
void Engine::ReadBackLogits(Flight* flight) {
  const std::span<const int32_t> rows = flight->logit_rows;
  if (rows.empty()) return;
  way_back_->ReadMicrobatch();  // the host keeps the logits of one microbatch
  for (size_t first = 0; first < rows.size(); first += sizes::kLogitRows) {
    if (first > 0) {
      environment_.backend->Synchronize();
      way_back_->ChooseTokens(flight);
    }
    const size_t count = std::min<size_t>(sizes::kLogitRows, rows.size() - first);
    model_->ReadBackLogits(PassOf(*flight), rows.subspan(first, count), way_back_->logits());
  }
}

// Forward; or Evaluate or Generate: forward without a way back.
absl::Status Engine::Run(const v1::Operation& operation) {
  const auto begun =
      model_->has_embedding() ? Begin(operation.microbatch()) : FindFlight(operation);
  if (!begun.ok()) return begun.status();
  Flight* flight = *begun;
  if (flight->forward() || output_of_.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Forward of microbatch ", flight->number(),
        flight->forward() ? " comes twice" : absl::StrCat(" before Send of ", *output_of_)));
  }
  flight->evaluates = operation.kind() != v1::Operation::FORWARD;
  for (const LossSpan& span : flight->spans) {
    if (Suits(*span.segment, operation.kind())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        v1::Operation::Kind_Name(operation.kind()), " of microbatch ", flight->number(),
        ", which has a segment to ", v1::Segment::Mode_Name(span.segment->mode())));
  }
  flight->lane = way_back_->TakeLane();
  if (flight->rows > 0) {
    way_back_->Mark(flight->lane, WayBack::kForwardBegins);
    model_->Forward(PassOf(*flight), *table_, !flight->evaluates);
    if (model_->has_head()) {
      model_->ReadBackLogP(PassOf(*flight), way_back_->log_p(flight->lane));
      ReadBackLogits(flight);
    }
    way_back_->Mark(flight->lane, WayBack::kForwardEnds);
  }
  if (!model_->has_head()) {
    output_of_ = flight->number();
  } else if (flight->evaluates) {
    Land(flight);
  }
  return absl::OkStatus();
}

absl::Status Engine::Backward(const v1::Operation& operation) {
  auto found = FindFlight(operation);
  const bool gradient_is_here =
      model_->has_head() ? !gradient_of_.has_value() : gradient_of_ == operation.microbatch();
  if (!found.ok() || !(*found)->forward() || (*found)->evaluates || (*found)->backward ||
      !gradient_is_here) {
    return absl::InvalidArgumentError(
        absl::StrCat("Backward of microbatch ", operation.microbatch(),
                     " without its Forward, or its gradient received and sent in turn"));
  }
  Flight* flight = *found;
  if (model_->has_head()) flight->gradient_rows = flight->LossRows() > 0 ? flight->rows : 0;
  std::vector<float> weights(flight->loss_rows.size());
  for (const LossSpan& span : flight->spans) {
    const bool trains = span.segment->mode() == v1::Segment::TRAIN;
    if (!trains || span.resident == nullptr || !span.resident->batch.has_value()) continue;
    const auto trained = static_cast<double>(span.resident->batch->expected.trained_tokens());
    std::fill_n(weights.begin() + span.first, span.count, static_cast<float>(-1.0 / trained));
  }
  if (flight->rows > 0) {
    way_back_->Mark(flight->lane, WayBack::kBackwardBegins);
    if (flight->gradient_rows > 0) model_->Backward(PassOf(*flight), *table_, weights);
    way_back_->Mark(flight->lane, WayBack::kBackwardEnds);
  }
  flight->backward = true;
  gradient_of_.reset();
  if (model_->has_embedding()) {
    Land(flight);
  } else {
    gradient_of_ = flight->number();
  }
  return absl::OkStatus();
}

}  // namespace lorad::worker
