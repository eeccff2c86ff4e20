#include "tests/worker/stages.h"

#include <cstring>
#include <map>
#include <set>
#include <stdexcept>

#include "storage/adapters/checkpoint.h"
#include "storage/models/model_directory.h"
#include "storage/tensors/safetensors.h"

namespace lorad::worker {
namespace {

void Require(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

planner::SegmentMode ModeOf(v1::Segment::Mode mode) {
  return mode == v1::Segment::TRAIN ? planner::SegmentMode::kTrain
                                    : planner::SegmentMode::kEvaluate;
}

planner::Microbatch ToPlanner(const v1::Microbatch& microbatch) {
  planner::Microbatch planned{.number = microbatch.number(), .segments = {}};
  for (const v1::Segment& segment : microbatch.segments()) {
    planned.segments.push_back({.job = segment.job(),
                                .mode = ModeOf(segment.mode()),
                                .step = segment.step(),
                                .sequence = segment.sequence(),
                                .tokens = segment.input_ids_size()});
  }
  return planned;
}

// What one stage's list says, for lists of several.
planner::OrderInput InputOf(const v1::Window& window, int stages, int in_flight) {
  planner::OrderInput input;
  input.stages = stages;
  input.in_flight = in_flight;
  for (const v1::Microbatch& microbatch : window.microbatches()) {
    input.microbatches.push_back(ToPlanner(microbatch));
  }
  for (const v1::Operation& operation : window.operations()) {
    switch (operation.kind()) {
      case v1::Operation::FREE_SLOT:
        input.frees.push_back(operation.job());
        break;
      case v1::Operation::LOAD_SLOT:
        input.loads.emplace_back(operation.job(), operation.step());
        break;
      case v1::Operation::STEP:
        input.ends.push_back({operation.job(), operation.step(), operation.learning_rate()});
        break;
      case v1::Operation::SAVE:
        input.ends.back().save = true;  // behind its step
        break;
      default:
        break;
    }
  }
  return input;
}

bool Generates(const v1::Window& window, int64_t number) {
  for (const v1::Microbatch& microbatch : window.microbatches()) {
    if (microbatch.number() != number || microbatch.segments().empty()) continue;
    return microbatch.segments(0).mode() == v1::Segment::GENERATE;
  }
  return false;
}

v1::Operation ToWorker(const planner::Operation& planned, const v1::Window& window) {
  static const std::map<planner::OperationKind, v1::Operation::Kind> kinds = {
      {planner::OperationKind::kRecv, v1::Operation::RECV},
      {planner::OperationKind::kSend, v1::Operation::SEND},
      {planner::OperationKind::kForward, v1::Operation::FORWARD},
      {planner::OperationKind::kBackward, v1::Operation::BACKWARD},
      {planner::OperationKind::kEvaluate, v1::Operation::EVALUATE},
      {planner::OperationKind::kNormUp, v1::Operation::NORM_UP},
      {planner::OperationKind::kClipDown, v1::Operation::CLIP_DOWN},
      {planner::OperationKind::kStep, v1::Operation::STEP},
      {planner::OperationKind::kSave, v1::Operation::SAVE},
      {planner::OperationKind::kLoadSlot, v1::Operation::LOAD_SLOT},
      {planner::OperationKind::kFreeSlot, v1::Operation::FREE_SLOT},
      {planner::OperationKind::kNoop, v1::Operation::NOOP}};
  if (planned.kind == planner::OperationKind::kLoadSlot) {
    for (const v1::Operation& operation : window.operations()) {
      if (operation.kind() == v1::Operation::LOAD_SLOT && operation.job() == planned.job) {
        return operation;
      }
    }
  }
  v1::Operation operation;
  operation.set_kind(kinds.at(planned.kind));
  // Which stages pass on alike.
  if (operation.kind() == v1::Operation::EVALUATE && Generates(window, planned.microbatch)) {
    operation.set_kind(v1::Operation::GENERATE);
  }
  operation.set_microbatch(planned.microbatch);
  operation.set_job(planned.job);
  operation.set_step(planned.step);
  operation.set_learning_rate(planned.learning_rate);
  operation.set_peer(planned.peer);
  operation.set_gradient(planned.gradient);
  return operation;
}

}  // namespace

int32_t BlocksOf(const std::string& model_path) {
  const auto directory = storage::ModelDirectory::Open(model_path);
  Require(directory.status());
  return static_cast<int32_t>(directory->description().blocks.size());
}

std::vector<v1::Window> WindowsOfStages(const v1::Window& window, int stages, int in_flight,
                                        const planner::PlacesInFlight& before,
                                        planner::PlacesInFlight* left) {
  planner::OrderInput input = InputOf(window, stages, in_flight);
  input.before = before;
  const auto lists = planner::OrderOperations(input, left);
  Require(lists.status());
  std::vector<v1::Window> windows;
  for (int stage = 0; stage < stages; ++stage) {
    v1::Window& of_stage = windows.emplace_back(window);
    of_stage.clear_operations();
    for (const planner::Operation& operation : (*lists)[static_cast<size_t>(stage)]) {
      *of_stage.add_operations() = ToWorker(operation, window);
    }
    for (v1::Microbatch& microbatch : *of_stage.mutable_microbatches()) {
      for (v1::Segment& segment : *microbatch.mutable_segments()) {
        segment.set_tokens(segment.input_ids_size());
        if (stage > 0) segment.clear_input_ids();
        if (stage + 1 < stages) segment.clear_labels();
      }
    }
  }
  return windows;
}

std::string MergeShards(const std::vector<std::string>& shards) {
  std::vector<storage::TensorEntry> entries;
  std::map<std::string, std::string_view> values;
  storage::CheckpointState state;
  for (const std::string& shard : shards) {
    const auto header = storage::ParseSafetensorsHeader(shard, shard.size());
    Require(header.status());
    const auto of_shard = storage::ShardState(*header);
    Require(of_shard.status());
    if (&shard != &shards.front() && !(*of_shard == state)) {
      throw std::runtime_error("shards of different states");
    }
    state = *of_shard;
    for (const storage::TensorInfo& tensor : header->tensors) {
      entries.push_back({.name = tensor.name, .shape = tensor.shape});
      values[tensor.name] =
          std::string_view(shard).substr(header->data_begin + tensor.begin, tensor.bytes());
    }
  }
  const storage::SafetensorsLayout layout(std::move(entries), storage::ShardMetadata(state));
  std::string merged = layout.prefix();
  merged.resize(layout.file_bytes());
  for (const storage::TensorInfo& tensor : layout.tensors()) {
    const std::string_view value = values.at(tensor.name);
    std::memcpy(&merged[layout.prefix().size() + tensor.begin], value.data(), value.size());
  }
  return merged;
}

std::string PartOfShard(const std::string& shard,
                        const std::function<bool(const std::string& name)>& holds) {
  const auto header = storage::ParseSafetensorsHeader(shard, shard.size());
  Require(header.status());
  std::vector<storage::TensorEntry> entries;
  for (const storage::TensorInfo& tensor : header->tensors) {
    if (holds(tensor.name)) entries.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  const storage::SafetensorsLayout layout(std::move(entries), header->metadata);
  std::string part = layout.prefix();
  part.resize(layout.file_bytes());
  for (const storage::TensorInfo& tensor : layout.tensors()) {
    const storage::TensorInfo* from = header->Find(tensor.name);
    std::memcpy(&part[layout.prefix().size() + tensor.begin],
                &shard[header->data_begin + from->begin], tensor.bytes());
  }
  return part;
}

}  // namespace lorad::worker
