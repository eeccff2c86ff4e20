#include "tests/sim/worker/sim_engine.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "server/core/events/overloaded.h"
#include "storage/files/errors.h"

namespace lorad::sim {
namespace {

using worker::v1::Operation;

uint64_t Hash(const std::string& text, int64_t a, int64_t b) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  for (const unsigned char c : text) mix(c);
  mix(static_cast<uint64_t>(a));
  mix(static_cast<uint64_t>(b));
  return hash ^ (hash >> 29);
}

double LossOf(const std::string& job, int64_t step, int64_t sequence) {
  return 1 + static_cast<double>(Hash(job, step, sequence) % 1'000'000) / 1e6;
}

int64_t TrainedTokens(const worker::v1::Segment& segment) {
  return segment.labels_size() - std::ranges::count(segment.labels(), -100);
}

}  // namespace

double TrainLoss(const std::string& job, int64_t step) { return LossOf(job, step, -1); }

double ValidationLoss(const std::string& job, int64_t step, int64_t sequence) {
  return LossOf(job, step, sequence);
}

int32_t NextToken(const std::string& content, uint64_t seed, int64_t tokens) {
  return 1 +
         static_cast<int32_t>(Hash(content, static_cast<int64_t>(seed), tokens) % kTokensOfModel);
}

SimEngine::Slot& SimEngine::At(const std::string& job) {
  const auto slot = slots_.find(job);
  if (slot == slots_.end()) FAIL("job " << job << " has no slot");
  return slot->second;
}

const worker::v1::Microbatch& SimEngine::Find(int64_t number) const {
  for (const auto& microbatch : window_->microbatches()) {
    if (microbatch.number() == number) return microbatch;
  }
  FAIL("window " << window_->number() << " has no microbatch " << number);
  return window_->microbatches(0);
}

SimEngine::Flight& SimEngine::InFlight(int64_t number) {
  const auto flight = flights_.find(number);
  if (flight == flights_.end()) FAIL("microbatch " << number << " is not in flight");
  return flight->second;
}

void SimEngine::CarryOut(const worker::Effect& order, const Done& done) {
  std::visit(Overloaded{
                 [&](const worker::FormGroup& form) {
                   const absl::Status status = Form(form.order);
                   status.ok() ? done(true) : done(status);
                 },
                 [&](const worker::Connect& connect) {
                   REQUIRE(stage_ != nullptr);
                   const auto& endpoints = connect.order.endpoints();
                   stage_->Join({endpoints.begin(), endpoints.end()}, done);
                 },
                 [&](const worker::LeaveGroup&) {
                   stage_.reset();
                   slots_.clear();
                   flights_.clear();
                   done(true);
                 },
                 [&](const worker::DropWeights&) {
                   REQUIRE(slots_.empty());
                   weights_.reset();
                   done(true);
                 },
                 [&](const worker::BeginWindow& begin) {
                   window_ = begin.window;
                   done(true);
                 },
                 [&](const worker::Execute& execute) { Execute(*execute.operation, done); },
                 [&](const worker::EndWindow& end) {
                   EndWindow(end.cut_jobs);
                   done(true);
                 },
                 [](const auto&) { FAIL("this is no order of an engine"); },
             },
             order);
}

void SimEngine::Interrupt() {
  if (stage_ != nullptr) stage_->Interrupt(absl::CancelledError("the group is given up"));
}

void SimEngine::GiveUpReceive() {
  REQUIRE(stage_ != nullptr);
  stage_->GiveUpReceive();
}

absl::Status SimEngine::Form(const worker::v1::FormGroup& order) {
  stage_.reset();
  slots_.clear();
  flights_.clear();
  shares_.clear();
  capacity_tokens_ = order.capacity_tokens();
  in_flight_max_ = static_cast<size_t>(std::max(order.microbatches_in_flight(), 1));
  const Weights needed = {order.model_path(), order.first_block(), order.end_block()};
  const bool kept = std::exchange(weights_, std::nullopt) == needed;
  if (script_.memory_taken || capacity_tokens_ > script_.group_tokens_most) {
    absl::Status taken = absl::ResourceExhaustedError("no memory is left");
    taken.SetPayload(storage::Absl(storage::kReasonPayload), absl::Cord("MEMORY_TAKEN"));
    return taken;
  }
  if (order.longest_sequence() > script_.longest_most) {
    absl::Status large = absl::ResourceExhaustedError("the group needs more than there is");
    large.SetPayload(storage::Absl(storage::kReasonPayload), absl::Cord("MEMORY"));
    return large;
  }
  worker::v1::Report report;
  report.mutable_group_formed()->set_reserved_bytes(1000);
  report.mutable_group_formed()->set_weights_kept(kept);
  if (order.stages() > 1) {
    REQUIRE(hooks_.net != nullptr);
    stage_ = std::make_unique<SimStage>(*hooks_.net, hooks_.host, order.epoch(), order.stage(),
                                        order.stages());
    report.mutable_group_formed()->set_endpoint(stage_->endpoint());
  }
  weights_ = needed;
  hooks_.report(std::move(report));
  return absl::OkStatus();
}

// A batch that a cut left half done is started over; nothing of it that is in flight counts.
void SimEngine::EndWindow(const std::set<std::string>& cut_jobs) {
  window_.reset();
  for (const std::string& job : cut_jobs) {
    const auto slot = slots_.find(job);
    if (slot == slots_.end()) continue;
    slot->second.sequences.clear();
    slot->second.batch.reset();
    for (auto& [number, flight] : flights_) flight.dropped.insert(job);
  }
}

void SimEngine::Execute(const Operation& operation, const Done& done) {
  switch (operation.kind()) {
    case Operation::RECV:
      return Receive(operation, done);
    case Operation::SEND:
      return Send(operation, done);
    case Operation::CLIP_DOWN:
      if (stage_ != nullptr) return ClipDown(operation, done);
      return done(true);
    default:
      return done(ExecuteAlone(operation));
  }
}

absl::StatusOr<bool> SimEngine::ExecuteAlone(const Operation& operation) {
  switch (operation.kind()) {
    case Operation::LOAD_SLOT:
      return Load(operation);
    case Operation::FREE_SLOT:
      Free(operation.job());
      return true;
    case Operation::FORWARD:
    case Operation::EVALUATE:
    case Operation::GENERATE:
      Forward(operation);
      return true;
    case Operation::BACKWARD:
      Backward(operation);
      return true;
    case Operation::NORM_UP:
      if (stage_ != nullptr) NormUp(operation);
      return true;
    case Operation::STEP:
      if (At(operation.job()).failed) return false;
      Step(operation);
      return true;
    case Operation::SAVE:
      if (At(operation.job()).failed) return false;
      REQUIRE(At(operation.job()).step == operation.step());
      return true;
    default:
      return true;
  }
}

absl::StatusOr<bool> SimEngine::Load(const Operation& operation) {
  const std::string& job = operation.slot().job();
  Slot slot;
  slot.rank = operation.slot().rank();
  slot.content = operation.content();
  // One that failed for its memory is tried again; any other is there once.
  if (const auto known = slots_.find(job); known != slots_.end()) REQUIRE(known->second.failed);
  worker::v1::Report report;
  if (script_.memory_taken || capacity_tokens_ > script_.slot_tokens_most) {
    slot.failed = true;
    slot.loaded = false;
    report.mutable_slot_failed()->set_job(job);
    report.mutable_slot_failed()->set_reason("MEMORY_TAKEN");
    report.mutable_slot_failed()->set_message("no memory is left");
  } else {
    if (!operation.content().empty()) {
      const absl::StatusOr<int64_t> step = hooks_.fetch(operation.content());
      if (!step.ok()) {
        slot.loaded = false;
        slot.failed = true;
        slots_[job] = slot;
        return step.status();
      }
      slot.step = *step;
    }
    REQUIRE(slot.step == operation.step());
    report.mutable_slot_loaded()->set_job(job);
    report.mutable_slot_loaded()->set_step(slot.step);
    report.mutable_slot_loaded()->set_bytes(kStagedBytes);
  }
  slots_[job] = slot;
  hooks_.report(std::move(report));
  return true;
}

void SimEngine::Free(const std::string& job) {
  for (const auto& [number, flight] : flights_) {
    for (const auto& segment : flight.microbatch->segments()) {
      REQUIRE((segment.job() != job || flight.dropped.contains(job)));
    }
  }
  REQUIRE(slots_.erase(job) == 1);
  worker::v1::Report report;
  report.mutable_slot_freed()->set_job(job);
  hooks_.report(std::move(report));
}

// Its rows have come, or are made here.
SimEngine::Flight& SimEngine::Begin(int64_t number) {
  Flight flight;
  flight.window = window_;
  flight.microbatch = &Find(number);
  for (const auto& segment : flight.microbatch->segments()) {
    if (segment.sampling().base()) continue;  // it has no slot
    Slot& slot = At(segment.job());
    if (slot.failed) flight.lost.insert(segment.job());
    if (segment.mode() != worker::v1::Segment::TRAIN) continue;
    if (!slot.failed) REQUIRE(segment.step() == slot.step + 1);
    if (slot.batch.has_value()) continue;
    const auto batch = std::ranges::find_if(window_->batches(), [&](const auto& entry) {
      return entry.job() == segment.job() && entry.step() == segment.step();
    });
    REQUIRE(batch != window_->batches().end());
    slot.batch = *batch;
  }
  REQUIRE(flights_.size() < in_flight_max_);
  return flights_.emplace(number, std::move(flight)).first->second;
}

void SimEngine::Forward(const Operation& operation) {
  Flight& flight = first() ? Begin(operation.microbatch()) : InFlight(operation.microbatch());
  if (operation.kind() == Operation::FORWARD) return;
  flight.evaluates = true;
  operation.kind() == Operation::GENERATE ? Generate(flight) : Evaluate(flight);
  if (last()) flights_.erase(operation.microbatch());
}

void SimEngine::Backward(const Operation& operation) {
  const Flight& flight = InFlight(operation.microbatch());
  for (const auto& segment : flight.microbatch->segments()) {
    if (!flight.dropped.contains(segment.job())) At(segment.job()).sequences[segment.sequence()]++;
  }
  Report(*flight.microbatch, true);
  if (first()) flights_.erase(operation.microbatch());
}

void SimEngine::Evaluate(const Flight& flight) {
  std::map<std::string, worker::v1::Report> reports;
  for (const auto& segment : flight.microbatch->segments()) {
    if (!last() || flight.lost.contains(segment.job())) continue;
    REQUIRE(segment.mode() == worker::v1::Segment::EVALUATE);
    REQUIRE(segment.step() == At(segment.job()).step);
    worker::v1::EvaluateDone& done = *reports[segment.job()].mutable_evaluate_done();
    done.set_job(segment.job());
    done.set_step(segment.step());
    done.add_sequence(segment.sequence());
    const int64_t tokens = TrainedTokens(segment);
    done.add_trained_tokens(tokens);
    done.add_loss_sum(static_cast<double>(tokens) *
                      ValidationLoss(segment.job(), segment.step(), segment.sequence()));
  }
  for (auto& [job, report] : reports) hooks_.report(std::move(report));
  Report(*flight.microbatch, false);
}

// What it is to go on from is what was generated before, all of it.
void SimEngine::Generate(const Flight& flight) {
  for (const auto& segment : flight.microbatch->segments()) {
    REQUIRE(segment.mode() == worker::v1::Segment::GENERATE);
    const worker::v1::Sampling& sampling = segment.sampling();
    const std::string content = sampling.base() ? "" : At(segment.job()).content;
    const int64_t tokens = segment.tokens() > 0 ? segment.tokens() : segment.input_ids_size();
    if (first()) {
      REQUIRE(segment.input_ids_size() == tokens);
      for (int64_t i = tokens - sampling.number(); i < tokens; ++i) {
        const int32_t id = segment.input_ids(static_cast<int>(i));
        REQUIRE(id == NextToken(content, sampling.seed(), i));
      }
    }
    if (!last()) continue;
    worker::v1::Report report;
    worker::v1::Generated& generated = *report.mutable_generated();
    generated.set_generation(sampling.generation());
    generated.set_number(sampling.number());
    const bool lost = flight.lost.contains(segment.job());
    generated.set_token(lost ? -1 : NextToken(content, sampling.seed(), tokens));
    generated.set_log_probability(-1);
    hooks_.report(std::move(report));
  }
  Report(*flight.microbatch, false);
}

bool SimEngine::IsBad(const Operation& step) const {
  const auto bad = script_.bad_steps.find(step.job());
  const double rate = script_.rate_of(step.job(), step.step());
  return (bad != script_.bad_steps.end() && bad->second == step.step()) ||
         (rate > script_.finite_rate_max && rate <= script_.survived_rate_max);
}

void SimEngine::ReportNotFinite(const Operation& operation) {
  worker::v1::Report report;
  report.mutable_not_finite()->set_job(operation.job());
  report.mutable_not_finite()->set_step(operation.step());
  report.mutable_not_finite()->set_what("loss");
  hooks_.report(std::move(report));
}

void SimEngine::Step(const Operation& operation) {
  Slot& slot = At(operation.job());
  REQUIRE(slot.batch.has_value());
  const worker::v1::Batch batch = *std::exchange(slot.batch, std::nullopt);
  // Each sequence of the batch exactly once.
  REQUIRE(static_cast<int64_t>(slot.sequences.size()) == batch.sequences());
  for (const auto& [sequence, times] : slot.sequences) REQUIRE(times == 1);
  slot.sequences.clear();
  REQUIRE(operation.step() == slot.step + 1);
  if (stage_ == nullptr && IsBad(operation)) {  // of several, ClipDown has said so
    slot.failed = true;
    return ReportNotFinite(operation);
  }
  slot.step = operation.step();
  hooks_.stepped(slot.rank);
  if (!last()) return;
  worker::v1::Report report;
  worker::v1::StepDone& done = *report.mutable_step_done();
  done.set_job(operation.job());
  done.set_step(operation.step());
  done.set_loss(TrainLoss(operation.job(), operation.step()));
  done.set_grad_norm(done.loss() / 2);
  done.set_learning_rate(operation.learning_rate());
  done.set_tokens(batch.tokens());
  done.set_trained_tokens(batch.trained_tokens());
  done.set_step_time_ms(1);
  hooks_.report(std::move(report));
}

void SimEngine::Report(const worker::v1::Microbatch& microbatch, bool backward) {
  std::set<std::string> jobs;
  int64_t tokens = 0, squares = 0, ranks = 0;
  for (const auto& segment : microbatch.segments()) {
    jobs.insert(segment.job());
    const int64_t length = segment.tokens() > 0 ? segment.tokens() : segment.input_ids_size();
    tokens += length;
    const auto slot = slots_.find(segment.job());  // the base model's answers have none
    if (slot != slots_.end()) ranks += length * slot->second.rank;
    squares += length * length;
  }
  worker::v1::Report report;
  worker::v1::MicrobatchDone& done = *report.mutable_microbatch_done();
  done.set_microbatch(microbatch.number());
  done.set_adapters(static_cast<int>(jobs.size()));
  done.set_tokens(tokens);
  done.set_squared_lengths(squares);
  done.set_forward_ms(hooks_.pass_ms(tokens, ranks));
  done.set_backward_ms(backward ? hooks_.pass_ms(tokens, ranks) : 0);
  // Pretended: each microbatch has 4 ms of its own, and is computed for 2 of them.
  done.set_forward_begin_us(4000 * microbatch.number());
  if (backward) done.set_backward_begin_us(4000 * microbatch.number() + 2000);
  hooks_.report(std::move(report));
}

}  // namespace lorad::sim
