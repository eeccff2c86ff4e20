#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

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

bool StartsMicrobatch(const Operation& operation) {
  return operation.kind() == Operation::FORWARD || operation.kind() == Operation::EVALUATE;
}

bool OfMicrobatch(const Operation& operation) {
  return StartsMicrobatch(operation) || operation.kind() == Operation::BACKWARD;
}

}  // namespace

double LossOf(const std::string& job, int64_t step) {
  return 1 + static_cast<double>(Hash(job, step, -1) % 1'000'000) / 1e6;
}

double EvaluationLossOf(const std::string& job, int64_t step, int64_t sequence) {
  return 1 + static_cast<double>(Hash(job, step, sequence) % 1'000'000) / 1e6;
}

worker::v1::Hello SimWorker::Hello() const {
  worker::v1::Hello hello;
  hello.set_protocol_version(1);
  hello.set_worker(name_);
  if (gpu_memory_bytes_ > 0) {
    hello.set_device("cuda:0");
    hello.set_memory_bytes(gpu_memory_bytes_);
    hello.set_multiprocessors(132);
    hello.set_value_bytes(2);
  } else {
    hello.set_device("cpu");
    hello.set_memory_bytes(int64_t{8} << 30);
  }
  hello.set_threads(2);
  hello.set_numerics_id("sim");
  return hello;
}

void SimWorker::Report(worker::v1::Report report) {
  report.set_epoch(epoch_);
  report.set_number(++reports_);
  worker::v1::WorkerMessage message;
  *message.mutable_report() = std::move(report);
  hooks_.say(std::move(message));
}

void SimWorker::TellFreed() {
  if (hooks_.freed_held()) return;
  for (const std::string& job : std::exchange(freed_, {})) {
    worker::v1::Report report;
    report.mutable_slot_freed()->set_job(job);
    Report(std::move(report));
  }
}

void SimWorker::Say(worker::v1::WorkerMessage message) {
  if (message.has_report()) return Report(message.report());
  hooks_.say(std::move(message));
}

void SimWorker::Hear(const worker::v1::CoordinatorMessage& message) {
  using Message = worker::v1::CoordinatorMessage;
  switch (message.content_case()) {
    case Message::kFormGroup:
      epoch_ = message.form_group().epoch();
      capacity_tokens_ = message.form_group().capacity_tokens();
      reports_ = 0;
      slots_.clear();
      freed_.clear();
      windows_.clear();
      next_window_ = 1;
      first_not_enqueued_ = 1;
      hold_from_.reset();
      cut_jobs_.clear();
      forming_ = message.form_group();
      break;
    case Message::kWindow:
      if (message.window().epoch() != epoch_) break;
      REQUIRE(message.window().number() == next_window_);
      next_window_++;
      windows_.push_back({message.window(), 0, {}});
      break;
    case Message::kCut: {
      if (message.cut().epoch() != epoch_) break;
      worker::v1::WorkerMessage answer;
      answer.mutable_cut_answer()->set_epoch(epoch_);
      answer.mutable_cut_answer()->set_cut(message.cut().cut());
      answer.mutable_cut_answer()->set_first_not_enqueued(first_not_enqueued_);
      hold_from_ = first_not_enqueued_;
      hooks_.say(std::move(answer));
      break;
    }
    case Message::kCutAt:
      if (message.cut_at().epoch() == epoch_) CutAt(message.cut_at().first_dropped());
      break;
    case Message::kDissolveGroup:
      if (message.dissolve_group().epoch() != epoch_) break;
      epoch_ = 0;
      forming_.reset();
      slots_.clear();
      freed_.clear();
      windows_.clear();
      break;
    case Message::kShutdown:
      shut_down_ = true;
      break;
    default:
      break;
  }
}

const worker::v1::Microbatch& SimWorker::Find(const worker::v1::Window& window,
                                              int64_t number) const {
  for (const auto& microbatch : window.microbatches()) {
    if (microbatch.number() == number) return microbatch;
  }
  FAIL("window " << window.number() << " has no microbatch " << number);
  return window.microbatches(0);
}

void SimWorker::CutAt(int64_t first_dropped) {
  hold_from_.reset();
  std::set<std::string>& cut_jobs = cut_jobs_;
  for (Pending& pending : windows_) {
    pending.kept.assign(pending.window.operations_size(), true);
    for (int i = pending.next; i < pending.window.operations_size(); ++i) {
      const Operation& operation = pending.window.operations(i);
      if (OfMicrobatch(operation)) {
        pending.kept[i] = operation.microbatch() < first_dropped;
        if (pending.kept[i]) continue;
        for (const auto& segment : Find(pending.window, operation.microbatch()).segments()) {
          cut_jobs.insert(segment.job());
        }
      } else {
        pending.kept[i] =
            operation.kind() != Operation::LOAD_SLOT && !cut_jobs.contains(operation.job());
      }
    }
  }
}

bool SimWorker::Dropped(const worker::v1::Window& window, const Operation& operation) const {
  const auto dead = [&](const std::string& job) {
    const auto slot = slots_.find(job);
    return slot != slots_.end() && slot->second.dead;
  };
  if (operation.kind() == Operation::STEP || operation.kind() == Operation::SAVE) {
    return dead(operation.job());
  }
  (void)window;
  return false;
}

bool SimWorker::Step() {
  if (forming_) {
    worker::v1::Report report;
    if (hooks_.memory_taken(capacity_tokens_, false)) {
      report.mutable_group_failed()->set_reason("MEMORY_TAKEN");
      report.mutable_group_failed()->set_message("no memory is left");
    } else {
      report.mutable_group_formed()->set_reserved_bytes(1000);
    }
    forming_.reset();
    Report(std::move(report));
    return true;
  }
  if (windows_.empty()) return false;
  Pending& pending = windows_.front();
  if (pending.next == pending.window.operations_size()) {
    worker::v1::Report report;
    report.mutable_window_done()->set_window(pending.window.number());
    windows_.pop_front();
    if (windows_.empty()) {
      // A batch that a cut left half done is begun anew; one of an earlier window was stepped
      // before.
      for (const std::string& job : cut_jobs_) {
        if (auto slot = slots_.find(job); slot != slots_.end()) slot->second.sequences.clear();
      }
      cut_jobs_.clear();
    }
    Report(std::move(report));
    return true;
  }
  const Operation& operation = pending.window.operations(pending.next);
  if (hold_from_) {
    // Everything from the first microbatch that is held waits for the coordinator's word.
    for (int i = 0; i <= pending.next; ++i) {
      const Operation& before = pending.window.operations(i);
      if (OfMicrobatch(before) && before.microbatch() >= *hold_from_) return false;
    }
  }
  const bool kept = pending.kept.empty() || pending.kept[pending.next];
  pending.next++;
  if (kept && !Dropped(pending.window, operation)) Execute(pending.window, operation);
  return true;
}

void SimWorker::Execute(const worker::v1::Window& window, const Operation& operation) {
  if (StartsMicrobatch(operation)) {
    REQUIRE(operation.microbatch() >= first_not_enqueued_);
    first_not_enqueued_ = operation.microbatch() + 1;
  }
  switch (operation.kind()) {
    case Operation::LOAD_SLOT: {
      const std::string& job = operation.slot().job();
      REQUIRE_FALSE(slots_.contains(job));
      if (hooks_.memory_taken(capacity_tokens_, true)) {
        worker::v1::Report report;
        report.mutable_slot_failed()->set_job(job);
        report.mutable_slot_failed()->set_reason("MEMORY_TAKEN");
        report.mutable_slot_failed()->set_message("no memory is left");
        return Report(std::move(report));
      }
      Slot slot;
      slot.step = hooks_.fetch(operation.content());
      REQUIRE(slot.step == operation.step());
      slots_[job] = slot;
      worker::v1::Report report;
      report.mutable_slot_loaded()->set_job(job);
      report.mutable_slot_loaded()->set_step(slot.step);
      return Report(std::move(report));
    }
    case Operation::FREE_SLOT: {
      REQUIRE(slots_.erase(operation.job()) == 1);
      freed_.push_back(operation.job());
      return TellFreed();
    }
    case Operation::FORWARD:
      for (const auto& segment : Find(window, operation.microbatch()).segments()) {
        REQUIRE(slots_.contains(segment.job()));
        const Slot& slot = slots_.at(segment.job());
        if (!slot.dead) REQUIRE(segment.step() == slot.step + 1);
      }
      return;
    case Operation::BACKWARD: {
      const worker::v1::Microbatch& microbatch = Find(window, operation.microbatch());
      for (const auto& segment : microbatch.segments()) {
        slots_.at(segment.job()).sequences[segment.sequence()]++;
      }
      return ReportMicrobatch(microbatch);
    }
    case Operation::EVALUATE: {
      const worker::v1::Microbatch& microbatch = Find(window, operation.microbatch());
      ExecuteEvaluate(microbatch);
      return ReportMicrobatch(microbatch);
    }
    case Operation::STEP:
      return ExecuteStep(window, operation);
    case Operation::SAVE:
      return Save(operation.job(), operation.step());
    default:
      return;
  }
}

void SimWorker::ExecuteStep(const worker::v1::Window& window, const Operation& operation) {
  Slot& slot = slots_.at(operation.job());
  const auto batch = std::ranges::find_if(
      window.batches(), [&](const auto& entry) { return entry.job() == operation.job(); });
  REQUIRE(batch != window.batches().end());
  // Each sequence of the batch exactly once.
  REQUIRE(static_cast<int64_t>(slot.sequences.size()) == batch->sequences());
  for (const auto& [sequence, times] : slot.sequences) REQUIRE(times == 1);
  slot.sequences.clear();
  REQUIRE(operation.step() == slot.step + 1);
  worker::v1::Report report;
  if (hooks_.is_bad(operation.job(), operation.step())) {
    slot.dead = true;
    report.mutable_not_finite()->set_job(operation.job());
    report.mutable_not_finite()->set_step(operation.step());
    report.mutable_not_finite()->set_what("loss");
    return Report(std::move(report));
  }
  slot.step = operation.step();
  worker::v1::StepDone& done = *report.mutable_step_done();
  done.set_job(operation.job());
  done.set_step(operation.step());
  done.set_loss(LossOf(operation.job(), operation.step()));
  done.set_grad_norm(done.loss() / 2);
  done.set_learning_rate(operation.learning_rate());
  done.set_tokens(batch->tokens());
  done.set_trained_tokens(batch->trained_tokens());
  done.set_step_time_ms(1);
  Report(std::move(report));
}

void SimWorker::ExecuteEvaluate(const worker::v1::Microbatch& microbatch) {
  std::map<std::string, worker::v1::Report> reports;
  for (const auto& segment : microbatch.segments()) {
    const Slot& slot = slots_.at(segment.job());
    if (slot.dead) continue;
    REQUIRE(segment.mode() == worker::v1::Segment::EVALUATE);
    REQUIRE(segment.step() == slot.step);
    worker::v1::EvaluateDone& done = *reports[segment.job()].mutable_evaluate_done();
    done.set_job(segment.job());
    done.set_step(segment.step());
    done.add_sequence(segment.sequence());
    done.add_loss_sum(kTrainedTokens *
                      EvaluationLossOf(segment.job(), segment.step(), segment.sequence()));
    done.add_trained_tokens(kTrainedTokens);
  }
  for (auto& [job, report] : reports) Report(std::move(report));
}

void SimWorker::ReportMicrobatch(const worker::v1::Microbatch& microbatch) {
  std::set<std::string> jobs;
  for (const auto& segment : microbatch.segments()) jobs.insert(segment.job());
  microbatch_adapters_.push_back(static_cast<int>(jobs.size()));
  worker::v1::Report report;
  worker::v1::MicrobatchDone& done = *report.mutable_microbatch_done();
  done.set_microbatch(microbatch.number());
  done.set_adapters(static_cast<int>(jobs.size()));
  done.set_tokens(std::min<int64_t>(100, capacity_tokens_));
  done.set_squared_lengths(1000);
  done.set_forward_ms(1);
  done.set_backward_ms(1);
  Report(std::move(report));
}

void SimWorker::Save(const std::string& job, int64_t step) {
  REQUIRE(slots_.at(job).step == step);
  worker::v1::UploadShardRequest::Header header;
  header.set_job(job);
  header.set_step(step);
  header.set_epoch(epoch_);
  header.set_stages(1);
  header.set_numerics_id("sim");
  hooks_.upload(std::move(header));
}

}  // namespace lorad::sim
