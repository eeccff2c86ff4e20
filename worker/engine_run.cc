// Windows and their microbatches: forward, backward, and what they gave.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine.h"

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
  EnqueueNorms();
  EnqueueSteps();
  ReadLanded();
  TellRead();
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
  const bool steps =
      operation.kind() == v1::Operation::CLIP_DOWN || operation.kind() == v1::Operation::STEP;
  if (operation.kind() != v1::Operation::NORM_UP) EnqueueNorms();
  if (!steps) {
    EnqueueSteps();
    TellRead();
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
      resident->batch->told = batch;
      resident->batch->started_ms = environment_.clock();
      break;
    }
    if (!resident->batch.has_value()) {
      return Malformed(segment, "the window does not tell of its batch");
    }
    if (resident->batch->told.trained_tokens() < 1) {
      return Malformed(segment, "its batch trains no token");
    }
  }
  if (resident->batch->told.step() != segment.step()) {
    return Malformed(segment, absl::StrCat("step ", resident->batch->told.step(), " is under way"));
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

absl::StatusOr<Engine::Flight> Engine::Prepare(const v1::Microbatch& microbatch, bool evaluate) {
  Flight flight;
  flight.microbatch = &microbatch;
  flight.lane = next_lane_;
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

void Engine::EnqueueForward(const Flight& flight, bool gradient) {
  next_lane_ = (flight.lane + 1) % kLanes;
  if (flight.rows == 0) return;
  kernels::Backend& backend = *environment_.backend;
  backend.Mark(MarkOf(flight.lane, kForwardBegins));
  model_->Forward(*flight.batch, flight.rows, static_cast<int64_t>(flight.loss_rows.size()),
                  *table_, gradient);
  model_->ReadBackLogP(log_p_[flight.lane]);
  backend.Mark(MarkOf(flight.lane, kForwardEnds));
}

void Engine::Land(Flight flight) {
  ReadLanded();
  landed_ = std::move(flight);
}

std::vector<Engine::SequenceLoss> Engine::LossesOf(const Flight& flight) const {
  std::vector<SequenceLoss> losses(flight.spans.size());
  for (size_t i = 0; i < flight.spans.size(); ++i) {
    const LossSpan& span = flight.spans[i];
    losses[i].trained_tokens = span.count;
    for (int64_t row = span.first; row < span.first + span.count; ++row) {
      losses[i].sum -= static_cast<double>(log_p_[flight.lane][row]);
    }
  }
  return losses;
}

void Engine::ReadLanded() {
  if (!landed_.has_value()) return;
  TellRead();
  Flight flight = *std::exchange(landed_, std::nullopt);
  if (flight.rows > 0) {
    environment_.backend->WaitFor(
        MarkOf(flight.lane, flight.backward ? kBackwardEnds : kForwardEnds));
  }
  std::vector<SequenceLoss> losses = LossesOf(flight);
  for (size_t i = 0; i < losses.size(); ++i) {
    const LossSpan& span = flight.spans[i];
    if (span.segment->mode() != v1::Segment::TRAIN || !span.resident->batch.has_value()) continue;
    span.resident->batch->losses[span.segment->sequence()] = losses[i];
  }
  const bool evaluates =
      std::any_of(flight.spans.begin(), flight.spans.end(),
                  [](const LossSpan& span) { return span.segment->mode() != v1::Segment::TRAIN; });
  read_.emplace(std::move(flight), std::move(losses));
  if (evaluates) TellRead();  // it may fail jobs
}

void Engine::TellRead() {
  if (!read_.has_value()) return;
  const auto [flight, losses] = *std::exchange(read_, std::nullopt);
  ReportEvaluations(flight, losses);
  ReportMicrobatch(flight);
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
  EnqueueForward(*flight_, true);
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
      const auto trained = static_cast<double>(span.resident->batch->told.trained_tokens());
      std::fill_n(weights.begin() + span.first, span.count, static_cast<float>(-1.0 / trained));
    }
    model_->Backward(*flight_->batch, flight_->rows, *table_, weights);
    environment_.backend->Mark(MarkOf(flight_->lane, kBackwardEnds));
  }
  flight_->backward = true;
  Land(*std::exchange(flight_, std::nullopt));
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
  EnqueueForward(*flight, false);
  Land(*std::move(flight));
  return absl::OkStatus();
}

void Engine::ReportEvaluations(const Flight& flight, const std::vector<SequenceLoss>& losses) {
  std::map<std::string, v1::EvaluateDone> done;
  std::map<std::string, std::vector<int64_t>> not_finite;
  for (size_t i = 0; i < losses.size(); ++i) {
    const v1::Segment& segment = *flight.spans[i].segment;
    if (segment.mode() == v1::Segment::TRAIN) continue;
    v1::EvaluateDone& report = done[segment.job()];
    report.set_job(segment.job());
    report.set_step(segment.step());
    report.add_sequence(segment.sequence());
    report.add_loss_sum(losses[i].sum);
    report.add_trained_tokens(losses[i].trained_tokens);
    if (!std::isfinite(losses[i].sum)) not_finite[segment.job()].push_back(segment.sequence());
  }
  for (auto& [job, evaluated] : done) {
    if (not_finite.count(job) != 0) {
      FailJob(job, &residents_.at(job), evaluated.step(), not_finite[job], "validation loss");
      continue;
    }
    v1::Report report;
    *report.mutable_evaluate_done() = std::move(evaluated);
    Report(std::move(report));
  }
}

void Engine::ReportMicrobatch(const Flight& flight) {
  std::set<std::string> jobs;
  for (const LossSpan& span : flight.spans) jobs.insert(span.segment->job());
  v1::Report report;
  v1::MicrobatchDone& done = *report.mutable_microbatch_done();
  done.set_microbatch(flight.microbatch->number());
  done.set_tokens(flight.rows);
  done.set_squared_lengths(flight.squared_lengths);
  if (flight.rows > 0) {
    const auto ms = [&](Moment from, Moment to) {
      return environment_.backend->MsBetween(MarkOf(flight.lane, from), MarkOf(flight.lane, to));
    };
    done.set_forward_ms(ms(kForwardBegins, kForwardEnds));
    if (flight.backward) done.set_backward_ms(ms(kForwardEnds, kBackwardEnds));
  }
  done.set_adapters(static_cast<int32_t>(jobs.size()));
  Report(std::move(report));
}

}  // namespace lorad::worker
