#include "server/feed/fill.h"

#include <algorithm>

namespace lorad::server::feed {
namespace {

worker::v1::Operation::Kind ToProto(planner::OperationKind kind) {
  switch (kind) {
    case planner::OperationKind::kRecv:
      return worker::v1::Operation::RECV;
    case planner::OperationKind::kSend:
      return worker::v1::Operation::SEND;
    case planner::OperationKind::kForward:
      return worker::v1::Operation::FORWARD;
    case planner::OperationKind::kBackward:
      return worker::v1::Operation::BACKWARD;
    case planner::OperationKind::kEvaluate:
      return worker::v1::Operation::EVALUATE;
    case planner::OperationKind::kNormUp:
      return worker::v1::Operation::NORM_UP;
    case planner::OperationKind::kClipDown:
      return worker::v1::Operation::CLIP_DOWN;
    case planner::OperationKind::kStep:
      return worker::v1::Operation::STEP;
    case planner::OperationKind::kSave:
      return worker::v1::Operation::SAVE;
    case planner::OperationKind::kLoadSlot:
      return worker::v1::Operation::LOAD_SLOT;
    case planner::OperationKind::kFreeSlot:
      return worker::v1::Operation::FREE_SLOT;
    case planner::OperationKind::kNoop:
      return worker::v1::Operation::NOOP;
    case planner::OperationKind::kGenerate:
      return worker::v1::Operation::GENERATE;
  }
  return worker::v1::Operation::KIND_UNSPECIFIED;
}

worker::v1::Segment::Mode ToProto(planner::SegmentMode mode) {
  switch (mode) {
    case planner::SegmentMode::kTrain:
      return worker::v1::Segment::TRAIN;
    case planner::SegmentMode::kEvaluate:
      return worker::v1::Segment::EVALUATE;
    case planner::SegmentMode::kReference:
      return worker::v1::Segment::REFERENCE;
    case planner::SegmentMode::kGenerate:
      return worker::v1::Segment::GENERATE;
  }
  return worker::v1::Segment::MODE_UNSPECIFIED;
}

// Ids go to the first stage, lengths to all where there are several.
void FillGenerate(const PlanInput& input, const planner::Segment& segment, bool first, bool last,
                  worker::v1::Segment* to) {
  const auto unit = std::ranges::find(input.generates, segment.job, &GenerateUnit::job);
  *to = unit->segments[static_cast<size_t>(segment.sequence)];
  to->set_job(segment.job);
  to->set_mode(worker::v1::Segment::GENERATE);
  to->set_sequence(segment.sequence);
  if (!first || !last) to->set_tokens(to->input_ids_size());
  if (!first) to->clear_input_ids();
}

}  // namespace

planner::Unit UnitOf(const GenerateUnit& generate) {
  planner::Unit unit;
  unit.job = generate.job;
  unit.mode = planner::SegmentMode::kGenerate;
  for (const worker::v1::Segment& segment : generate.segments) {
    unit.sequences.push_back({std::ssize(unit.sequences), segment.input_ids_size(), 0});
  }
  return unit;
}

worker::v1::Window FillWindow(const PlanInput& input, const planner::Window& planned, size_t stage,
                              const std::map<std::string, UnitRows>& rows) {
  const bool first = stage == 0;
  const bool last = stage + 1 == planned.stages.size();
  worker::v1::Window window;
  window.set_epoch(input.epoch);
  window.set_number(input.window);
  for (const planner::Microbatch& microbatch : planned.microbatches) {
    worker::v1::Microbatch& out = *window.add_microbatches();
    out.set_number(microbatch.number);
    for (const planner::Segment& segment : microbatch.segments) {
      if (segment.mode == planner::SegmentMode::kGenerate) {
        FillGenerate(input, segment, first, last, out.add_segments());
        continue;
      }
      const CachedRow& row = rows.at(segment.job).rows.at(segment.sequence);
      worker::v1::Segment& to = *out.add_segments();
      to.set_job(segment.job);
      to.set_mode(ToProto(segment.mode));
      to.set_step(segment.step);
      to.set_sequence(segment.sequence);
      if (first) to.mutable_input_ids()->Add(row.ids().begin(), row.ids().end());
      if (last) to.mutable_labels()->Add(row.labels().begin(), row.labels().end());
      if (!first || !last) to.set_tokens(static_cast<int32_t>(row.ids().size()));
    }
  }
  for (const planner::Batch& batch : planned.batches) {
    worker::v1::Batch& out = *window.add_batches();
    out.set_job(batch.job);
    out.set_step(batch.step);
    out.set_sequences(batch.sequences);
    out.set_trained_tokens(batch.trained_tokens);
    out.set_tokens(batch.tokens);
  }
  for (const planner::Operation& operation : planned.stages[stage]) {
    worker::v1::Operation& out = *window.add_operations();
    out.set_kind(ToProto(operation.kind));
    out.set_microbatch(std::max<int64_t>(0, operation.microbatch));
    out.set_job(operation.job);
    out.set_step(operation.step);
    out.set_learning_rate(operation.learning_rate);
    out.set_peer(std::max(0, operation.peer));
    out.set_gradient(operation.gradient);
    if (operation.kind != planner::OperationKind::kLoadSlot) continue;
    const auto load = std::find_if(
        input.loads.begin(), input.loads.end(),
        [&](const LoadUnit& candidate) { return candidate.slot.job() == operation.job; });
    *out.mutable_slot() = load->slot;
    out.set_content(load->content);
  }
  return window;
}

BatchLines LinesOf(const UnitRows& rows) {
  BatchLines batch{.job = rows.unit.job, .step = rows.unit.step, .lines = {}};
  for (const auto& [sequence, row] : rows.rows) batch.lines.push_back(row.line);
  return batch;
}

int64_t NextMicrobatch(const PlanInput& input, const planner::Window& planned) {
  int64_t next = input.first_microbatch;
  for (const std::vector<planner::Operation>& operations : planned.stages) {
    for (const planner::Operation& operation : operations) {
      next = std::max(next, operation.microbatch + 1);
    }
  }
  return next;
}

}  // namespace lorad::server::feed
