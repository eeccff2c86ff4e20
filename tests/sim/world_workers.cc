// The workers of the simulated world, and its planning.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/data_dir.h"
#include "tests/sim/world.h"

namespace lorad::sim {

namespace {

using namespace server;  // NOLINT: the world is the server's, simulated

constexpr int64_t kOperationUs = 1000;
constexpr int64_t kRestartUs = 50'000;
constexpr double kRepeatLater = 5000;

}  // namespace

// ---- workers ----

void World::ConnectWorkers() {
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) StartWorker(i);
}

void World::StartWorker(int i) {
  WorkerSlot& slot = workers_[i];
  slot.life++;
  slot.silent = slot.hung = false;
  slot.stepping = false;
  slot.connection = next_connection_++;
  slot.up_free_us = slot.down_free_us = now_us_;
  SimWorker::Hooks hooks;
  hooks.say = [this, i](worker::v1::WorkerMessage message) { Say(i, std::move(message)); };
  hooks.upload = [this, i](worker::v1::UploadShardRequest::Header header) {
    Upload(i, std::move(header));
  };
  hooks.memory_taken = [this](int64_t capacity_tokens, bool slot) {
    return memory_taken_ || capacity_tokens > (slot ? slot_tokens_most_ : group_tokens_most_);
  };
  hooks.freed_held = [this] { return freed_held_; };
  hooks.fetch = [this](const std::string& text) -> int64_t {
    if (text.empty()) return 0;
    absl::StatusOr<SlotContent> content = ParseSlotContent(text);
    RequireOk(content.status());
    INFO("slot content " << text);
    REQUIRE(disk_.contains(content->path));
    if (content->kind != SlotContent::Kind::kCheckpoint) return 0;
    return std::stoll(content->path.substr(content->path.rfind('/') + 1));
  };
  hooks.is_bad = [this, i](const std::string& job, int64_t step) {
    if (deadly_.contains(job)) {
      KillWorker(i);
      return true;  // nobody hears of it
    }
    const auto bad = bad_steps_.find(job);
    return bad != bad_steps_.end() && bad->second == step;
  };
  slot.worker = std::make_unique<SimWorker>(absl::StrCat("worker-", i), options_.gpu_memory_bytes,
                                            std::move(hooks));
  Post(WorkerConnected{slot.connection, slot.worker->Hello()});
  Heartbeat(i, slot.life);
}

void World::Heartbeat(int i, int64_t life) {
  timers_++;
  At(now_us_ + options_.core.heartbeat_ms * 1000, [this, i, life] {
    timers_--;
    if (workers_[i].life != life || workers_[i].connection == 0) return;
    worker::v1::WorkerMessage message;
    message.mutable_heartbeat()->set_epoch(1);
    message.mutable_heartbeat()->set_peak_resident_bytes(peak_bytes_);
    Say(i, std::move(message));
    Heartbeat(i, life);
  });
}

void World::KillWorker(int i, bool restart) {
  WorkerSlot& slot = workers_[i];
  if (slot.connection == 0) return;
  const uint64_t connection = std::exchange(slot.connection, 0);
  slot.life++;
  Later([this, connection, life = life_] {
    if (life == life_) Post(WorkerGone{connection, "killed by signal 9"});
  });
  if (!restart) return;
  At(now_us_ + kRestartUs, [this, i, life = slot.life] {
    if (workers_[i].life == life) StartWorker(i);
  });
}

void World::SilenceWorker(int i) { workers_[i].silent = true; }

void World::HangWorker(int i, bool hung) {
  workers_[i].hung = hung;
  if (!hung) WakeWorker(i);
}

void World::HoldFreed(bool held) {
  freed_held_ = held;
  for (WorkerSlot& slot : workers_) {
    if (slot.connection != 0) slot.worker->TellFreed();
  }
}

void World::Lie(int i, worker::v1::WorkerMessage message) {
  if (workers_[i].connection != 0) workers_[i].worker->Say(std::move(message));
}

uint64_t World::Connect(const worker::v1::Hello& hello) {
  const uint64_t connection = next_connection_++;
  Post(WorkerConnected{connection, hello});
  return connection;
}

void World::WakeWorker(int i) {
  WorkerSlot& slot = workers_[i];
  if (std::exchange(slot.stepping, true)) return;
  At(now_us_ + kOperationUs, [this, i, life = slot.life] { WorkerStep(i, life); });
}

void World::WorkerStep(int i, int64_t life) {
  WorkerSlot& slot = workers_[i];
  if (slot.life != life || slot.connection == 0) return;
  slot.stepping = false;
  if (!slot.hung && slot.worker->Step()) WakeWorker(i);
}

void World::Say(int i, worker::v1::WorkerMessage message) {
  WorkerSlot& slot = workers_[i];
  if (slot.silent || slot.connection == 0) return;
  const bool repeat = message.has_report() && Chance(options_.repeat_share);
  slot.up_free_us = std::max(slot.up_free_us, now_us_ + Delay());
  const auto deliver = [this, i, connection = slot.connection, message, life = life_] {
    if (life == life_ && workers_[i].connection == connection) {
      Post(WorkerSaid{connection, message});
    }
  };
  At(slot.up_free_us, deliver);
  if (repeat) At(slot.up_free_us + static_cast<int64_t>(kRepeatLater), deliver);
}

void World::Upload(int i, worker::v1::UploadShardRequest::Header header) {
  // The call outlives its worker now and then: the last bytes were on their way.
  Later([this, i, header, worker_life = workers_[i].life, life = life_] {
    if (life != life_) return;
    if (workers_[i].life != worker_life && Chance(0.5)) return;
    UploadShard(header, [](absl::StatusOr<ReplyValue>) {});
  });
}

void World::UploadShard(worker::v1::UploadShardRequest::Header header, OnReply on_reply) {
  const std::string upload = absl::StrCat("upload-", next_upload_++);
  uploads_.insert(upload);
  Ask(ShardUploaded{std::move(header), upload}, std::move(on_reply));
}

// ---- planning, in small ----

int64_t World::RowLength(const std::string& dataset, int64_t row) const {
  const auto longest = longest_.find(dataset);
  return 1 + row * 7 % (longest == longest_.end() ? 40 : longest->second);
}

absl::StatusOr<records::RowsSummary> World::SumRows(const RowSource& source) const {
  const auto failure = check_failures_.find(source.dataset);
  if (failure != check_failures_.end() && !failure->second.ok()) return failure->second;
  records::RowsSummary rows;
  rows.set_rows(source.rows);
  rows.set_tokens(source.rows * 20);
  rows.set_trained_tokens(source.rows * kTrainedTokens);
  const auto longest = longest_.find(source.dataset);
  rows.set_longest_tokens(longest == longest_.end() ? 40 : longest->second);
  if (const auto bad = bad_lines_.find(source.dataset); bad != bad_lines_.end()) {
    rows.set_error_count(1);
    rows.set_error_line(bad->second);
    rows.set_error_reason("no trained token");
  }
  return rows;
}

void World::CheckRowsLater(const CheckRows& check) {
  const int64_t number = next_check_++;
  REQUIRE(checks_.try_emplace(check.key, number).second);
  const auto slow = check_us_.find(check.source.dataset);
  const int64_t us = slow == check_us_.end() ? 0 : slow->second;
  At(now_us_ + us + Delay(), [this, check, number, life = life_] {
    const auto under_way = checks_.find(check.key);
    if (life != life_ || under_way == checks_.end() || under_way->second != number) return;
    checks_.erase(under_way);
    Post(RowsChecked{check.key, SumRows(check.source)});
  });
}

void World::CancelCheck(const std::string& key) {
  if (checks_.erase(key) == 0) return;  // it has just ended
  cancelled_checks_++;
  Later([this, key, life = life_] {
    if (life == life_) Post(RowsChecked{key, absl::CancelledError("nobody waits for it")});
  });
}

std::vector<UnitFailure> World::DropUnits(PlanInput& input) const {
  std::vector<UnitFailure> failures;
  const auto drop = [&](const auto& unit) {
    const auto failure = row_failures_.find(unit.source.dataset);
    if (failure == row_failures_.end() || failure->second.ok()) return false;
    failures.push_back({unit.job, failure->second});
    return true;
  };
  std::erase_if(input.trains, drop);
  std::erase_if(input.evaluates, drop);
  return failures;
}

absl::StatusOr<worker::v1::Window> World::PlanWindow(const PlanInput& input) {
  using worker::v1::Operation;
  worker::v1::Window window;
  window.set_epoch(input.epoch);
  window.set_number(input.window);
  int64_t next = input.first_microbatch;
  const auto add = [&](Operation::Kind kind, const std::string& job, int64_t step) -> Operation& {
    Operation& operation = *window.add_operations();
    operation.set_kind(kind);
    operation.set_job(job);
    operation.set_step(step);
    return operation;
  };
  for (const std::string& job : input.frees) add(Operation::FREE_SLOT, job, 0);
  for (const LoadUnit& load : input.loads) {
    Operation& operation = add(Operation::LOAD_SLOT, load.slot.job(), load.step);
    *operation.mutable_slot() = load.slot;
    operation.set_content(load.content);
  }
  for (const SaveUnit& save : input.saves) add(Operation::SAVE, save.job, save.step);

  worker::v1::Microbatch* open = nullptr;
  int64_t room = 0;
  const auto put = [&](const std::string& job, worker::v1::Segment::Mode mode, int64_t step,
                       int64_t sequence, int64_t tokens) {
    REQUIRE(tokens <= input.capacity_tokens);
    if (!open || tokens > room) {
      open = window.add_microbatches();
      open->set_number(next++);
      room = std::min<int64_t>(input.capacity_tokens, 400);
    }
    room -= tokens;
    worker::v1::Segment& segment = *open->add_segments();
    segment.set_job(job);
    segment.set_mode(mode);
    segment.set_step(step);
    segment.set_sequence(sequence);
  };
  for (const TrainUnit& unit : input.trains) {
    const int64_t of_epoch = (unit.source.rows + unit.batch_size - 1) / unit.batch_size;
    const int64_t begin = (unit.step - 1) % of_epoch * unit.batch_size;
    const int64_t end = std::min<int64_t>(begin + unit.batch_size, unit.source.rows);
    worker::v1::Batch& batch = *window.add_batches();
    batch.set_job(unit.job);
    batch.set_step(unit.step);
    batch.set_sequences(end - begin);
    batch.set_trained_tokens((end - begin) * kTrainedTokens);
    batch.set_tokens((end - begin) * 20);
    for (int64_t row = begin; row < end; ++row) {
      put(unit.job, worker::v1::Segment::TRAIN, unit.step, row - begin,
          RowLength(unit.source.dataset, row));
    }
  }
  for (const auto& microbatch : window.microbatches()) {
    add(Operation::FORWARD, "", 0).set_microbatch(microbatch.number());
    add(Operation::BACKWARD, "", 0).set_microbatch(microbatch.number());
  }
  for (const TrainUnit& unit : input.trains) {
    add(Operation::STEP, unit.job, unit.step).set_learning_rate(unit.learning_rate);
    if (unit.save) add(Operation::SAVE, unit.job, unit.step);
  }
  open = nullptr;
  const int trained = window.microbatches_size();
  for (const EvaluateUnit& unit : input.evaluates) {
    for (int64_t i = 0; i < unit.sequences; ++i) {
      const int64_t row = unit.first_sequence + i;
      REQUIRE(row < unit.source.rows);
      put(unit.job, worker::v1::Segment::EVALUATE, unit.step, row,
          RowLength(unit.source.dataset, row));
    }
  }
  for (int i = trained; i < window.microbatches_size(); ++i) {
    add(Operation::EVALUATE, "", 0).set_microbatch(window.microbatches(i).number());
  }
  return window;
}

}  // namespace lorad::sim
