// The next window of a group, and what a cut leaves of those at hand.
#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "planner/window/learning_rate.h"
#include "planner/window/turns.h"
#include "server/core/events/data_dir.h"
#include "server/core/rules/due.h"
#include "server/core/rules/failures.h"
#include "server/core/state.h"
#include "storage/adapters/peft_config.h"

namespace lorad::server {
namespace {

// One is executed while the next lies ready.
constexpr size_t kWindowsAhead = 2;
// A save that is not there after so long is asked for again: its shard may have got lost on the
// way.
constexpr int64_t kSaveAgainUs = 60'000'000;

double LearningRateOf(const v1::Job& job, int64_t step) {
  planner::LearningRateOptions options;
  switch (job.training().schedule()) {
    case v1::TrainingConfig::CONSTANT:
      options.schedule = planner::Schedule::kConstant;
      break;
    case v1::TrainingConfig::COSINE:
      options.schedule = planner::Schedule::kCosine;
      break;
    default:
      options.schedule = planner::Schedule::kLinear;
  }
  options.peak = job.training().learning_rate();
  options.warmup_steps = job.training().warmup_steps();
  options.total_steps = job.total_steps();
  return planner::LearningRate(options, step - 1);
}

}  // namespace

void SetModules(const v1::AdapterConfig& adapter, worker::v1::SlotSpec* slot) {
  if (adapter.modules().empty()) {
    slot->set_rank(adapter.rank());
    slot->set_scale(storage::LoraScale(adapter.alpha(), adapter.rank(), adapter.use_rslora()));
    *slot->mutable_target_modules() = adapter.target_modules();
    return;
  }
  for (const v1::AdapterModules& modules : adapter.modules()) {
    worker::v1::SlotSpec::Modules& to = *slot->add_modules();
    to.set_target(modules.target());
    *to.mutable_layers() = modules.layers();
    to.set_rank(modules.rank());
    to.set_scale(storage::LoraScale(modules.alpha(), modules.rank(), adapter.use_rslora()));
  }
}

// The sequence of a job's units: [evaluate 0] step 1 [evaluate 1] step 2 ..., each evaluation in
// parts.
void Core::State::AddUnit(Member& member, const JobState& state, PlanInput* input) const {
  const v1::Job& job = state.job();
  const int64_t step = member.planned_step;
  if (EvaluationDue(job, step) && step >= state.record.evaluated_end()) {
    if (member.evaluation_step != step) {
      member.evaluation_step = step;
      member.evaluation_planned = 0;
    }
    const int64_t left = state.record.validation_rows() - member.evaluation_planned;
    if (left > 0) {
      EvaluateUnit& unit = input->evaluates.emplace_back();
      unit.job = job.name();
      unit.step = step;
      unit.source = rows_.SourceOf(job, job.validation_dataset());
      unit.first_sequence = member.evaluation_planned;
      unit.sequences = std::min(left, options_.evaluate_sequences);
      member.evaluation_planned += unit.sequences;
      return;
    }
  }
  if (step >= EndStep(job)) return;
  TrainUnit& unit = input->trains.emplace_back();
  unit.job = job.name();
  unit.step = step + 1;
  unit.source = rows_.SourceOf(job, job.training_dataset());
  unit.batch_size = job.training().batch_size();
  unit.shuffle = job.training().shuffle();
  unit.seed = job.training().seed();
  unit.learning_rate = LearningRateOf(job, unit.step);
  unit.save = SaveDue(job, unit.step);
  member.planned_step = unit.step;
}

std::string Core::State::ContentOf(const v1::Job& job) const {
  const std::string& source = job.adapter().init_from();
  using Kind = SlotContent::Kind;
  if (job.last_checkpoint_step() > 0) {
    return ToText({Kind::kCheckpoint,
                   absl::StrCat("checkpoints/", job.name(), "/", job.last_checkpoint_step())});
  }
  if (source.find('/') != std::string::npos) {
    return ToText({Kind::kCheckpointWeights, absl::StrCat("checkpoints/", source)});
  }
  return source.empty() ? "" : ToText({Kind::kAdapter, catalog_.Adapter(source).path()});
}

LoadUnit Core::State::LoadOf(GroupState& group, JobState& state) {
  const v1::Job& job = state.job();
  LoadUnit load;
  load.step = job.step();
  worker::v1::SlotSpec& slot = load.slot;
  slot.set_job(job.name());
  SetModules(job.adapter(), &slot);
  slot.set_dropout(job.adapter().dropout());
  slot.set_init_seed(job.adapter().seed());
  slot.set_seed(job.training().seed());
  slot.set_beta1(job.training().beta1());
  slot.set_beta2(job.training().beta2());
  slot.set_eps(job.training().eps());
  slot.set_weight_decay(job.training().weight_decay());
  slot.set_max_grad_norm(job.training().max_grad_norm());
  if (job.training().has_loraplus_lr_ratio()) {
    slot.set_loraplus_lr_ratio(job.training().loraplus_lr_ratio());
  }

  load.content = ContentOf(job);
  if (job.last_checkpoint_step() > 0) {
    const std::string& numerics_id = WorkerOf(group.first()).hello.numerics_id();
    if (state.record.numerics_id() != numerics_id) {
      jobs_.AddEvent(state, "NUMERICS_CHANGED",
                     absl::StrCat("goes on from step ", job.step(), " under numerics ", numerics_id,
                                  "; it was computed under ", state.record.numerics_id(),
                                  ", so its bits may differ from here on"));
      state.record.set_numerics_id(numerics_id);
    }
  }
  return load;
}

void Core::State::PlanNext(GroupState& group) {
  if (group.plan != 0 || group.windows_at_hand() >= kWindowsAhead) return;
  // Behind a cut what is kept ends first, lest batches that have lost something mix with new ones.
  if (group.drains) return groups_.PlanWindow(group, PlanInput());
  PlanInput input;
  const planner::ModelShape& model = *catalog_.Model(group.base_model).shape;
  input.microbatch_cost_tokens = planner::MicrobatchCostTokens(model.hidden);
  for (auto& [name, member] : group.members) {
    if (Generations::IsGuest(name)) {
      if (member.leaving || group.urgent.empty()) PlanGuest(name, member, &input);
    } else if (member.leaving) {
      if (member.slot != Member::Slot::kLoaded) continue;
      if (JobState* job = jobs_.Find(name); job && SavesLast(group, member, *job)) {
        if (member.planned_step <= member.done_step) PlanSave(*job, member, &input);
        continue;
      }
      member.slot = Member::Slot::kFreeing;
      input.frees.push_back(name);
    } else if (member.departing) {
      PlanDeparture(name, member, &input);
    } else if (!turn_.room().ok()) {
      continue;  // its checkpoints and caches would find no place
    } else if (!group.urgent.empty() && name != group.urgent) {
      continue;
    } else if (member.slot == Member::Slot::kUnloaded) {
      member.slot = Member::Slot::kLoading;
      input.loads.push_back(LoadOf(group, *jobs_.Find(name)));
    } else if (member.slot == Member::Slot::kLoaded) {
      JobState& job = *jobs_.Find(name);
      AddUnit(member, job, &input);
      if (job.state() == v1::Job::FINALIZING && job.commits == 0 &&
          member.planned_step <= member.done_step) {
        PlanSave(job, member, &input);
      }
    }
  }
  if (group.urgent.empty()) AddGenerations(group, &input);
  groups_.PlanWindow(group, std::move(input));
}

void Core::State::PlanSaves(GroupState& group) {
  if (group.plan != 0 || group.windows_at_hand() > 0) return;
  if (AnyInFlight(group.left)) return groups_.PlanWindow(group, PlanInput());
  PlanInput input;
  for (auto& [name, member] : group.members) {
    JobState* job = jobs_.Find(name);
    const bool holds = member.slot == Member::Slot::kLoaded && !member.not_finite;
    if (job && IsPlaced(job->state()) && holds) PlanSave(*job, member, &input);
  }
  groups_.PlanWindow(group, std::move(input));
}

void Core::State::PlanSave(JobState& job, Member& member, PlanInput* input) const {
  if (job.job().last_checkpoint_step() >= member.done_step) return;
  // One that was asked for, here or behind its Step, may still be on its way.
  const bool asked =
      member.save_ordered == member.done_step || SaveDue(job.job(), member.done_step);
  if (asked && turn_.now_us() - member.save_us <= kSaveAgainUs) return;
  member.save_us = turn_.now_us();
  member.save_ordered = member.done_step;
  job.saved_tokens[member.done_step] = job.job().tokens();
  input->saves.push_back({job.name(), member.done_step});
}

// The job leaves the group, and its neighbours go on.
void Core::State::LoseRows(GroupState& group, const UnitFailure& failure) {
  const auto member = group.members.find(failure.job);
  if (member == group.members.end()) return;
  member->second.leaving = true;
  JobState* job = jobs_.Find(failure.job);
  if (!job || !IsPlaced(job->state())) return;
  const std::string reason = ReasonOf(failure.status, kRowsNotRead);
  TakeFailure(*job, reason, std::string(failure.status.message()));
  if (reason == kRowsNotReady) ReadRowsAgain(*job);
}

void Core::State::OnPlanned(const Planned& planned) {
  GroupState* awaits = groups_.TakePlan(planned.number);
  if (!awaits) return;  // asked for before a cut, or by a group that is gone
  GroupState& group = *awaits;
  if (!planned.window.ok()) {
    // Rows that are not to be had are reported one by one: this error is the planner's own, and
    // none of the group's jobs can go on without its windows.
    const std::string why(planned.window.status().message());
    std::vector<std::string> names;
    for (const auto& [name, member] : group.members) names.push_back(name);
    for (const std::string& name : names) {
      JobState* job = jobs_.Find(name);
      if (job && IsPlaced(job->state())) TakeFailure(*job, "WINDOW_NOT_PLANNED", why);
    }
    return Dissolve(group, why);
  }
  for (const UnitFailure& failure : planned.failures) LoseRows(group, failure);
  if (planned.window->stages.front().operations().empty()) return;  // no unit is left
  for (const BatchLines& batch : planned.lines) {
    const auto member = group.members.find(batch.job);
    if (member != group.members.end()) member->second.lines[batch.step] = batch.lines;
  }
  groups_.KeepPlanning(group, planned.packing);
  SendWindow(group, *planned.window);
}

void Core::State::SendWindow(GroupState& group, const StageWindows& windows) {
  assert(windows.stages.size() == group.stages.size());
  if (group.windows_at_hand() == 0) group.heard_us = turn_.now_us();
  const planner::ModelShape& shape = *catalog_.Model(group.base_model).shape;
  ParametersOfJobs parameters;
  for (const auto& [name, member] : group.members) {
    parameters[name] = planner::AdapterParameters(shape, member.adapter);
  }
  for (size_t i = 0; i < group.stages.size(); ++i) {
    const worker::v1::Window& window = windows.stages[i];
    assert(window.epoch() == group.epoch && window.number() == group.next_window);
    StageState& stage = group.stages[i];
    AddWindow(window, windows, parameters, &stage == &group.last() ? &group.open_batches : nullptr,
              stage.orders);
    for (const auto& [number, begun] : stage.orders.windows.back().begins) {
      stage.orders.microbatches.at(number).sent_us = turn_.now_us();
    }
    worker::v1::CoordinatorMessage message;
    *message.mutable_window() = window;
    SendTo(stage, std::move(message));
  }
  // Planned before its job was not finite: the workers drop what is left of that, and say nothing.
  for (const auto& [name, member] : group.members) {
    const JobState* job = jobs_.Find(name);
    if (!member.leaving) continue;
    if (job && job->state() != v1::Job::FAILED && !member.not_finite) continue;
    for (StageState& stage : group.stages) GiveUp(stage.orders, name);
  }
  for (const worker::v1::Operation& operation : windows.stages.front().operations()) {
    if (operation.kind() != worker::v1::Operation::SAVE) continue;
    if (auto member = group.members.find(operation.job()); member != group.members.end()) {
      const bool is_new = member->second.saves.insert(operation.step()).second;
      if (is_new) member->second.saves_us = turn_.now_us();
    }
  }
  group.plan_frees.clear();
  group.next_window++;
  group.next_microbatch = windows.next_microbatch;
  group.left = windows.left;
  group.drains = false;
}

void Core::State::OnCutAnswer(GroupState& group, const worker::v1::CutAnswer& answer) {
  group.heard_us = turn_.now_us();
  groups_changed_ = true;
  std::set<std::string> cut_jobs;
  for (StageState& stage : group.stages) {
    cut_jobs.merge(GiveUpFrom(stage.orders, answer.first_not_enqueued()));
  }
  for (auto& [job, member] : group.members) {
    if (member.slot == Member::Slot::kFreeing && !IsFreeing(group, job)) {
      member.slot = Member::Slot::kLoaded;
    }
  }
  CutPlaces(group.left, answer.first_not_enqueued(), cut_jobs);
  std::erase_if(group.open_batches,
                [&](const auto& entry) { return cut_jobs.contains(entry.first.first); });
  group.drains = AnyInFlight(group.left);
  // The first stage's answer is the group's.
  worker::v1::CoordinatorMessage message;
  message.mutable_cut_at()->set_epoch(group.epoch);
  message.mutable_cut_at()->set_cut(group.cut);
  message.mutable_cut_at()->set_first_dropped(answer.first_not_enqueued());
  SendTo(group, message);
  group.phase = GroupState::Phase::kDraining;
}

}  // namespace lorad::server
