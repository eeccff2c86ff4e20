// Rows and windows of the world of stories: as many tokens as a story says, and no text.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/feed/row_order.h"
#include "tests/sim/world/world.h"

namespace lorad::sim {

namespace {

using namespace server;  // NOLINT: the world is the server's, simulated

constexpr int32_t kNotTrained = -100;

}  // namespace

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
  clock_.At(now_us() + us + clock_.Delay(), [this, check, number, life = life_] {
    const auto under_way = checks_.find(check.key);
    if (life != life_ || under_way == checks_.end() || under_way->second != number) return;
    checks_.erase(under_way);
    Post(RowsChecked{check.key, SumRows(check.source)});
  });
}

void World::CancelCheck(const std::string& key) {
  if (checks_.erase(key) == 0) return;  // it has just ended
  cancelled_checks_++;
  clock_.Later([this, key, life = life_] {
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

// A row is a line, and rows come in their order.
std::vector<BatchLines> World::LinesOf(const PlanInput& input) {
  std::vector<BatchLines> lines;
  for (const TrainUnit& unit : input.trains) {
    BatchLines& batch = lines.emplace_back(BatchLines{unit.job, unit.step, {}});
    const feed::BatchPlace place = feed::PlaceOfStep(unit.source.rows, unit.batch_size, unit.step);
    for (int64_t row = place.begin; row < place.end; ++row) batch.lines.push_back(row + 1);
  }
  return lines;
}

absl::StatusOr<StageWindows> World::PlanWindow(const PlanInput& input) {
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
    segment.mutable_input_ids()->Resize(static_cast<int>(tokens), 1);
    segment.mutable_labels()->Resize(static_cast<int>(tokens), kNotTrained);
    segment.set_labels(static_cast<int>(tokens) - 1, 1);
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
  const int evaluated = window.microbatches_size();
  for (const GenerateUnit& unit : input.generates) {
    REQUIRE(!unit.segments.empty());
    for (const worker::v1::Segment& segment : unit.segments) {
      REQUIRE(segment.input_ids_size() <= input.capacity_tokens);
      worker::v1::Microbatch& microbatch = *window.add_microbatches();
      microbatch.set_number(next++);
      *microbatch.add_segments() = segment;
      microbatch.mutable_segments(0)->set_job(unit.job);
      microbatch.mutable_segments(0)->set_mode(worker::v1::Segment::GENERATE);
    }
  }
  for (int i = evaluated; i < window.microbatches_size(); ++i) {
    add(Operation::GENERATE, "", 0).set_microbatch(window.microbatches(i).number());
  }
  return StageWindows{{window}, {}, next};
}

}  // namespace lorad::sim
