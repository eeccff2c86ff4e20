// The engine without arithmetic as one stage of several: what it sends, waits for and is told.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "tests/sim/worker/sim_engine.h"

namespace lorad::sim {

using worker::v1::NormShare;
using worker::v1::Operation;
using worker::v1::Verdict;

void SimEngine::Receive(const Operation& operation, const Done& done) {
  REQUIRE(stage_ != nullptr);
  const int64_t number = operation.microbatch();
  Flight& flight = operation.gradient() ? InFlight(number) : Begin(number);
  stage_->Receive(operation.gradient(), number, &flight.lost,
                  [this, number, done](const absl::StatusOr<bool>& received) {
                    if (received.ok() && !*received) flights_.erase(number);  // given up
                    done(received);
                  });
}

void SimEngine::Send(const Operation& operation, const Done& done) {
  REQUIRE(stage_ != nullptr);
  const int64_t number = operation.microbatch();
  const Flight& flight = InFlight(number);
  stage_->Send(operation.gradient(), number, flight.lost,
               [this, number, lands = operation.gradient() || flight.evaluates,
                done](const absl::StatusOr<bool>& sent) {
                 if (sent.ok() && lands) flights_.erase(number);
                 done(sent);
               });
}

NormShare::State SimEngine::ShareOf(const Operation& operation) {
  const Slot& slot = At(operation.job());
  if (!slot.loaded) return NormShare::NO_SLOT;
  // Losses are known on the last stage.
  return slot.failed || (last() && IsBad(operation)) ? NormShare::NOT_FINITE : NormShare::FINITE;
}

void SimEngine::NormUp(const Operation& operation) {
  const Slot& slot = At(operation.job());
  if (slot.dropped) return;
  REQUIRE(slot.batch.has_value());
  REQUIRE(slot.batch->step() == operation.step());
  REQUIRE(static_cast<int64_t>(slot.sequences.size()) == slot.batch->sequences());
  if (first()) return;
  worker::v1::StageNote note;
  NormShare& share = *note.mutable_norm_share();
  share.set_job(operation.job());
  share.set_step(operation.step());
  share.set_state(ShareOf(operation));
  stage_->SendNote(0, std::move(note));
}

void SimEngine::ClipDown(const Operation& operation, const Done& done) {
  const Slot& slot = At(operation.job());
  if (slot.dropped) return done(false);
  Verdict verdict;
  verdict.set_job(operation.job());
  verdict.set_step(operation.step());
  if (first()) {
    if (!slot.loaded) verdict.set_outcome(Verdict::NO_SLOT);
    return Gather(1, std::move(verdict), done);
  }
  stage_->AwaitNote(0, [this, verdict, done](const absl::StatusOr<worker::v1::StageNote>& note) {
    if (!note.ok()) return done(note.status());
    REQUIRE(note->verdict().job() == verdict.job());
    REQUIRE(note->verdict().step() == verdict.step());
    done(Apply(note->verdict()));
  });
}

void SimEngine::Gather(int stage, Verdict verdict, const Done& done) {
  if (stage == stage_->stages()) {
    worker::v1::StageNote note;
    *note.mutable_verdict() = verdict;
    for (int other = 1; other < stage; ++other) stage_->SendNote(other, note);
    return done(Apply(verdict));
  }
  const auto early = shares_.find({stage, verdict.job()});
  if (early != shares_.end() && early->second.step() == verdict.step()) {
    const NormShare::State state = shares_.extract(early).mapped().state();
    const bool no_slot = verdict.outcome() == Verdict::NO_SLOT || state == NormShare::NO_SLOT;
    if (no_slot) {
      verdict.set_outcome(Verdict::NO_SLOT);
    } else if (state == NormShare::NOT_FINITE) {
      verdict.set_outcome(Verdict::NOT_FINITE);
    }
    return Gather(stage + 1, std::move(verdict), done);
  }
  stage_->AwaitNote(stage, [=, this](const absl::StatusOr<worker::v1::StageNote>& note) {
    if (!note.ok()) return done(note.status());
    shares_[{stage, note->norm_share().job()}] = note->norm_share();
    Gather(stage, verdict, done);
  });
}

// True: the step may be taken.
bool SimEngine::Apply(const Verdict& verdict) {
  if (verdict.outcome() == Verdict::STEP) return true;
  Slot& slot = At(verdict.job());
  Operation operation;
  operation.set_job(verdict.job());
  operation.set_step(verdict.step());
  if (verdict.outcome() == Verdict::NOT_FINITE && last()) ReportNotFinite(operation);
  slot.failed = true;
  slot.dropped = true;
  slot.sequences.clear();
  slot.batch.reset();
  return false;
}

}  // namespace lorad::sim
