#include "worker/engine/way_back.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

namespace lorad::worker {
namespace {

int64_t MicrosOf(std::chrono::steady_clock::time_point moment) {
  return std::chrono::duration_cast<std::chrono::microseconds>(moment.time_since_epoch()).count();
}

}  // namespace

absl::Status WayBack::Reserve(const GroupShape& shape, int64_t matrices_max, int64_t vocabulary) {
  matrices_max_ = matrices_max;
  vocabulary_ = vocabulary;
  log_p_.resize(static_cast<size_t>(shape.in_flight) + 1);
  lane_taken_.assign(log_p_.size(), false);
  const auto lay = [&](kernels::Arena& arena) {
    if (environment_.has_head) {
      for (float*& log_p : log_p_) log_p = arena.Allocate<float>(shape.capacity_tokens);
      logits_ =
          arena.Allocate<float>(std::min(shape.capacity_tokens, sizes::kLogitRows) * vocabulary);
    }
    sums_ = arena.Allocate<double>(shape.slots_max * matrices_max);
    overflows_ = arena.Allocate<int32_t>(shape.slots_max);
  };
  kernels::Arena counting(kernels::Device::kCpu);
  lay(counting);
  auto arena = environment_.backend->MakeHostArena(counting.bytes_max());
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  lay(*arena_);
  return absl::OkStatus();
}

// ---- to the first stage ----

int WayBack::TakeLane() {
  const auto free = std::find(lane_taken_.begin(), lane_taken_.end(), false);
  assert(free != lane_taken_.end());
  *free = true;
  return static_cast<int>(free - lane_taken_.begin());
}

void WayBack::Mark(int lane, Moment moment) { environment_.backend->Mark(MarkOf(lane, moment)); }

void WayBack::Add(Flight flight) {
  ReadMicrobatch();
  enqueued_ = std::move(flight);
}

void WayBack::AddStep(const kernels::StepRequest& request, std::optional<v1::Report> done) {
  steps_.push_back(request);
  if (done.has_value()) steps_done_.push_back(*std::move(done));
}

// ---- from stage to stage ----

void WayBack::EnqueueNorms() {
  if (norms_.empty()) return;
  kernels::Backend& backend = *environment_.backend;
  std::vector<kernels::NormRequest> requests;
  for (const Resident* resident : norms_) {
    requests.push_back({&resident->slot->optimizer(), SumsOf(*resident)});
  }
  backend.SumsOfSquares(requests);
  for (const Resident* resident : norms_) TakeOverflow(*resident);
  backend.Mark(kNormsEnqueued);
  norms_.clear();
}

void WayBack::TakeOverflow(const Resident& resident) {
  environment_.backend->TakeOverflow(*environment_.table, resident.index,
                                     &overflows_[resident.index]);
}

void WayBack::EnqueueSteps() {
  if (steps_.empty()) return;
  environment_.backend->AdamW(steps_);
  steps_.clear();
  Report();  // only now: the device waits for the steps
  for (v1::Report& done : std::exchange(steps_done_, {})) environment_.report(std::move(done));
}

void WayBack::ReadMicrobatch() {
  if (!enqueued_.has_value()) return;
  Report();
  Flight flight = *std::exchange(enqueued_, std::nullopt);
  if (flight.rows > 0) {
    environment_.backend->WaitFor(
        MarkOf(flight.lane, flight.backward ? kBackwardEnds : kForwardEnds));
  }
  ChooseTokens(&flight);
  std::vector<SequenceLoss> losses = LossesOf(flight);
  for (size_t i = 0; i < losses.size(); ++i) {
    const LossSpan& span = flight.spans[i];
    const bool trains = span.segment->mode() == v1::Segment::TRAIN;
    if (!trains || span.resident == nullptr || !span.resident->batch.has_value()) continue;
    span.resident->batch->losses[span.segment->sequence()] = losses[i];
  }
  const bool evaluates =
      std::any_of(flight.spans.begin(), flight.spans.end(),
                  [](const LossSpan& span) { return span.segment->mode() != v1::Segment::TRAIN; });
  read_.emplace(std::move(flight), std::move(losses));
  if (evaluates) Report();  // it may fail jobs
}

WayBack::NormReading WayBack::ReadNorm(const Resident& resident) {
  environment_.backend->WaitFor(kNormsEnqueued);
  return {.sums = {SumsOf(resident), resident.slot->tensors().size()},
          .overflow = overflows_[resident.index] != 0};
}

void WayBack::Report() {
  if (!read_.has_value()) return;
  const auto [flight, losses] = *std::exchange(read_, std::nullopt);
  if (environment_.has_head) {
    ReportEvaluations(flight, losses);
    ReportTokens(flight);
  }
  ReportMicrobatch(flight);
  lane_taken_[static_cast<size_t>(flight.lane)] = false;
}

void WayBack::Finish() {
  EnqueueNorms();
  EnqueueSteps();
  ReadMicrobatch();
  Report();
}

// ---- what is read, what is reported ----

void WayBack::ChooseTokens(Flight* flight) const {
  if (!environment_.has_head) return;
  const auto begin = static_cast<int64_t>(flight->chosen.size());
  const int64_t end = std::min(flight->LogitRows(), begin + sizes::kLogitRows);
  if (begin == end) return;
  flight->chosen.resize(static_cast<size_t>(end));
  for (const LossSpan& span : flight->spans) {
    if (span.count == 0 || span.first < begin || span.first >= end) continue;
    const float* z = logits_ + (span.first - begin) * vocabulary_;
    flight->chosen[static_cast<size_t>(span.first)] =
        ChooseToken({z, static_cast<size_t>(vocabulary_)}, span.segment->sampling());
  }
}

std::vector<SequenceLoss> WayBack::LossesOf(const Flight& flight) const {
  std::vector<SequenceLoss> losses(flight.spans.size());
  for (size_t i = 0; i < flight.spans.size(); ++i) {
    const LossSpan& span = flight.spans[i];
    if (span.segment->mode() == v1::Segment::GENERATE) continue;
    losses[i].trained_tokens = span.count;
    for (int64_t row = span.first; row < span.first + span.count; ++row) {
      losses[i].sum -= static_cast<double>(log_p_[flight.lane][row]);
    }
  }
  return losses;
}

void WayBack::ReportEvaluations(const Flight& flight, const std::vector<SequenceLoss>& losses) {
  std::map<std::string, v1::EvaluateDone> done;
  std::map<std::string, std::vector<int64_t>> not_finite;
  for (size_t i = 0; i < losses.size(); ++i) {
    const v1::Segment& segment = *flight.spans[i].segment;
    const bool evaluates =
        segment.mode() == v1::Segment::EVALUATE || segment.mode() == v1::Segment::REFERENCE;
    if (!evaluates || flight.spans[i].lost) continue;
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
      environment_.on_loss_not_finite(job, evaluated.step(), not_finite[job]);
      continue;
    }
    v1::Report report;
    *report.mutable_evaluate_done() = std::move(evaluated);
    environment_.report(std::move(report));
  }
}

void WayBack::ReportTokens(const Flight& flight) {
  for (const LossSpan& span : flight.spans) {
    if (span.segment->mode() != v1::Segment::GENERATE) continue;
    const bool has = !span.lost && span.count > 0;
    const ChosenToken token = has ? flight.chosen[static_cast<size_t>(span.first)] : ChosenToken{};
    v1::Report report;
    v1::Generated& generated = *report.mutable_generated();
    generated.set_generation(span.segment->sampling().generation());
    generated.set_number(span.segment->sampling().number());
    generated.set_token(token.token);
    generated.set_log_probability(token.log_probability);
    environment_.report(std::move(report));
  }
}

void WayBack::ReportMicrobatch(const Flight& flight) {
  std::set<std::string> jobs;
  for (const LossSpan& span : flight.spans) {
    const bool base = span.segment->mode() == v1::Segment::GENERATE && span.resident == nullptr;
    if (!base) jobs.insert(span.segment->job());
  }
  v1::Report report;
  v1::MicrobatchDone& done = *report.mutable_microbatch_done();
  done.set_microbatch(flight.microbatch->number());
  done.set_tokens(flight.rows);
  done.set_squared_lengths(flight.squared_lengths);
  if (flight.rows > 0) {
    const auto ms = [&](Moment from, Moment to) {
      return environment_.backend->MsBetween(MarkOf(flight.lane, from), MarkOf(flight.lane, to));
    };
    const auto begin_us = [&](Moment moment) {
      return MicrosOf(environment_.backend->MomentOf(MarkOf(flight.lane, moment)));
    };
    done.set_forward_ms(ms(kForwardBegins, kForwardEnds));
    done.set_forward_begin_us(begin_us(kForwardBegins));
    if (flight.backward) {
      done.set_backward_ms(ms(kBackwardBegins, kBackwardEnds));
      done.set_backward_begin_us(begin_us(kBackwardBegins));
    }
  }
  const auto add = [](const Landing& landing, v1::MicrobatchDone::Transfer* transfer) {
    transfer->set_begin_us(MicrosOf(landing.begin));
    transfer->set_end_us(MicrosOf(landing.end));
  };
  if (flight.activations.has_value()) add(*flight.activations, done.mutable_activations());
  if (flight.gradient.has_value()) add(*flight.gradient, done.mutable_gradient());
  done.set_adapters(static_cast<int32_t>(jobs.size()));
  environment_.report(std::move(report));
}

}  // namespace lorad::worker
