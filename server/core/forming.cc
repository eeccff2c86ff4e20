// A group comes to be: its workers form it, those of several stages connect, and what goes wrong.
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/jobs/failures.h"
#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// So many bytes of a worker's text are kept, in events and errors of jobs.
constexpr size_t kMessageTextMax = 2000;

worker::v1::FormGroup::Recomputation ToWorker(planner::Recomputation recomputation) {
  switch (recomputation) {
    case planner::Recomputation::kNothing:
      return worker::v1::FormGroup::NOTHING;
    case planner::Recomputation::kBlocks:
      return worker::v1::FormGroup::BLOCKS;
    case planner::Recomputation::kProducts:
      break;
  }
  return worker::v1::FormGroup::PRODUCTS;
}

std::vector<StageState> StagesOf(const planner::Decision& decision) {
  std::vector<StageState> stages;
  for (const planner::StageView& stage : decision.stages) {
    StageState& added = stages.emplace_back();
    added.worker = stage.worker;
    added.range = stage.range;
  }
  if (stages.empty()) stages.emplace_back().worker = decision.worker;
  return stages;
}

}  // namespace

worker::v1::FormGroup Core::State::OrderToForm(const GroupState& group, size_t number) const {
  const StageState& stage = group.stages[number];
  const v1::Model& model = catalog_.Model(group.base_model).record.model();
  worker::v1::FormGroup order;
  order.set_group(group.name);
  order.set_epoch(group.epoch);
  order.set_model_path(model.path());
  order.set_model_fingerprint(model.fingerprint());
  order.set_stage(static_cast<int32_t>(number));
  order.set_stages(static_cast<int32_t>(group.stages.size()));
  order.set_capacity_tokens(static_cast<int32_t>(group.shape.capacity_tokens));
  order.set_longest_sequence(static_cast<int32_t>(group.shape.longest_sequence));
  order.set_budget_bytes(WorkerOf(stage).hello.memory_bytes());
  order.set_rank_max(static_cast<int32_t>(group.shape.rank_max));
  order.set_slots_max(static_cast<int32_t>(group.shape.slots_max));
  order.set_recomputation(ToWorker(group.shape.recomputation));
  if (group.stages.size() > 1) {
    order.set_first_block(stage.range.first_block);
    order.set_end_block(stage.range.end_block);
    order.set_microbatches_in_flight(group.shape.in_flight);
  }
  return order;
}

GroupState& Core::State::FormGroup(const planner::Decision& decision) {
  GroupState& group = groups_.Form(decision.base_model, StagesOf(decision), decision.shape);
  for (size_t i = 0; i < group.stages.size(); ++i) {
    StageState& stage = group.stages[i];
    WorkerState& worker = WorkerOf(stage);
    assert(worker.connection != 0 && worker.group.empty());
    stage.peak_before_bytes = worker.peak_bytes;
    worker.group = group.name;
    worker::v1::CoordinatorMessage message;
    *message.mutable_form_group() = OrderToForm(group, i);
    SendTo(stage, std::move(message));
  }
  turn_.Info(absl::StrCat(group.name, ": forming for base model '", decision.base_model, "' on ",
                          WorkersText(group), ", ", decision.shape.capacity_tokens,
                          " tokens, recomputing ", planner::ToText(decision.shape.recomputation)));
  return group;
}

void Core::State::OnGroupFormed(GroupState& group, StageState& stage,
                                const worker::v1::GroupFormed& formed) {
  stage.formed = true;
  stage.reserved_bytes = formed.reserved_bytes();
  stage.endpoint = formed.endpoint();
  WorkerOf(stage).files_rest.times = 0;
  if (group.stages.size() == 1) {
    cluster_.fits().ObserveLoad(group.base_model, WorkerOf(stage), formed.load_seconds());
  }
  turn_.Info(absl::StrCat(group.name, ": formed on '", stage.worker, "' in ", formed.load_seconds(),
                          " s, ", formed.reserved_bytes(), " bytes"));
  if (!std::ranges::all_of(group.stages, &StageState::formed)) return;
  if (group.stages.size() == 1) return BeginToRun(group);
  worker::v1::CoordinatorMessage message;
  message.mutable_connect()->set_epoch(group.epoch);
  for (const StageState& one : group.stages) message.mutable_connect()->add_endpoints(one.endpoint);
  SendTo(group, message);
}

void Core::State::OnStageConnected(GroupState& group, StageState& stage,
                                   const worker::v1::Connected& connected) {
  stage.connected = true;
  if (group.phase == GroupState::Phase::kBroken) return;
  if (!std::ranges::all_of(group.stages, &StageState::connected)) return;
  turn_.Info(absl::StrCat(group.name, ": its stages are connected, the last one after ",
                          connected.connect_seconds(), " s"));
  BeginToRun(group);
}

void Core::State::BeginToRun(GroupState& group) {
  group.phase = GroupState::Phase::kRunning;
  group.formed_us = turn_.now_us();
  if (group.members.empty()) group.idle_since_us = turn_.now_us();
  turn_.WantSchedule();
}

void Core::State::OnGroupFailed(GroupState& group, StageState& stage,
                                const worker::v1::GroupFailed& failed) {
  const std::string message = Quotable(failed.message(), kMessageTextMax);
  if (failed.reason() == kStageLost) return Break(group, stage, message);
  WorkerState& worker = WorkerOf(stage);
  if (failed.reason() == kMemoryTaken) {
    cluster_.RestForMemory(worker, message);
    return Dissolve(group, message);
  }
  if (failed.reason() == kMemory) cluster_.RestForMemory(worker, message);
  if (failed.reason() == kModelDiffers || failed.reason() == kModelNotFound) {
    cluster_.RestForFiles(worker, message);
  }
  turn_.Warn(absl::StrCat(group.name, ": ", failed.reason(), ": ", message));
  std::vector<std::string> names;
  for (const auto& [name, member] : group.members) names.push_back(name);
  for (const std::string& name : names) {
    JobState* job = jobs_.Find(name);
    if (!job || !IsPlaced(job->state())) continue;
    if (failed.reason() == kMemory) {
      TakeTooLarge(*job, group, stage.worker, message);
    } else {
      TakeFailure(*job, failed.reason(), message);
    }
  }
  Dissolve(group, message);
}

// The way between two stages is gone. Where a worker is gone with it, which its stream says soon,
// that is how the group is lost; else nobody is to blame, and its jobs are tried again. Where every
// worker says that it has lost another, all of them live: nothing more is to be awaited.
void Core::State::Break(GroupState& group, StageState& stage, const std::string& message) {
  stage.lost_another = true;
  if (group.phase != GroupState::Phase::kBroken) {
    turn_.Warn(absl::StrCat(group.name, ": worker '", stage.worker, "': ", message));
    groups_.DropPlan(group);
    group.phase = GroupState::Phase::kBroken;
    group.broken_us = turn_.now_us();
    group.reform_why = message;
  }
  if (std::ranges::all_of(group.stages, &StageState::lost_another)) EndBroken(group);
}

void Core::State::EndBroken(GroupState& group) {
  const std::string why = group.reform_why;
  std::vector<std::string> names;
  for (const auto& [name, member] : group.members) names.push_back(name);
  for (const std::string& name : names) {
    JobState* job = jobs_.Find(name);
    if (job && IsPlaced(job->state())) TakeFailure(*job, kStageLost, why);
  }
  Dissolve(group, why);
}

}  // namespace lorad::server
