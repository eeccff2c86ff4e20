// A group comes to be: its workers form it, those of several stages connect, and what goes wrong. Or
// it comes back: a coordinator that is started again finds it with its workers.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/cluster/report_checks.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/failures.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "sizes/bytes_text.h"
#include "storage/files/sha256.h"

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

// Jobs on their way to a group that is formed again go there still, and not before all others into
// one that drains for one of them.
void Redirect(const std::string& gone, const GroupState& again, const GroupTable& groups,
              JobTable& jobs) {
  if (gone.empty()) return;
  for (const auto& [name, group] : groups.all()) {
    for (const auto& [member, state] : group.members) {
      JobState* job = jobs.Find(member);
      const bool goes_there = job && job->moves_to == gone;
      if (goes_there && job->job().base_model() == again.base_model) job->moves_to = again.name;
    }
  }
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
  group.vocabulary_size = VocabularyOf(decision.base_model);
  for (size_t i = 0; i < group.stages.size(); ++i) {
    StageState& stage = group.stages[i];
    WorkerState& worker = WorkerOf(stage);
    assert(worker.connection != 0 && worker.group.empty());
    stage.peak_before_bytes = worker.peak_bytes;
    worker.group = group.name;
    worker.loaded_base_model.clear();
    Redirect(std::exchange(worker.reforms, ""), group, groups_, jobs_);
    worker::v1::CoordinatorMessage message;
    *message.mutable_form_group() = OrderToForm(group, i);
    SendTo(stage, std::move(message));
  }
  turn_.Info(absl::StrCat(group.name, ": forming for base model '", decision.base_model, "' on ",
                          GroupTable::WorkersText(group), ", ", decision.shape.capacity_tokens,
                          " tokens, recomputing ", planner::ToText(decision.shape.recomputation)));
  return group;
}

void Core::State::OnGroupFormed(GroupState& group, StageState& stage,
                                const worker::v1::GroupFormed& formed) {
  stage.formed = true;
  stage.reserved_bytes = formed.reserved_bytes();
  stage.endpoint = formed.endpoint();
  WorkerOf(stage).files_rest.times = 0;
  // It took no longer than was waited for it, whatever a worker says.
  const double waited_s = static_cast<double>(turn_.now_us() - group.ordered_us) / 1e6;
  const double load_s = std::min(formed.load_seconds(), waited_s);
  if (group.stages.size() == 1 && !formed.weights_kept()) {
    cluster_.fits().ObserveLoad(group.base_model, WorkerOf(stage), load_s);
  }
  turn_.Info(absl::StrCat(group.name, ": formed on '", stage.worker, "' in ", load_s, " s, ",
                          formed.weights_kept() ? "with the weights that it had, " : "",
                          sizes::MemoryText(formed.reserved_bytes())));
  if (!std::ranges::all_of(group.stages, &StageState::formed)) return;
  if (group.stages.size() == 1) return BeginToRun(group);
  worker::v1::CoordinatorMessage message;
  message.mutable_connect()->set_epoch(group.epoch);
  message.mutable_connect()->set_secret(
      storage::Sha256::Of(absl::StrCat(options_.group_key, "/", group.epoch)));
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
  if (group.returning()) return GiveUpReturn(group, message);
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
      Postpone(*job, failed.reason(), message);
    }
  }
  Dissolve(group, message);
}

// The way between two stages is gone. Where a worker is gone with it, which its stream says soon,
// that is how the group is lost; else nobody is to blame, and its jobs are tried again. Where every
// worker says that it has lost another, all of them live: nothing more is to be awaited.
void Core::State::Break(GroupState& group, StageState& stage, const std::string& message) {
  const std::string said = absl::StrCat("worker '", stage.worker, "': ", message);
  if (group.phase != GroupState::Phase::kBroken) {
    turn_.Warn(absl::StrCat(group.name, ": ", said));
    groups_.DropPlan(group);
    group.phase = GroupState::Phase::kBroken;
    group.broken_us = turn_.now_us();
    group.reform_why = said;
  } else if (!stage.lost_another) {
    // The first to say so may have lost one that let go because it had lost another itself.
    absl::StrAppend(&group.reform_why, "; ", said);
  }
  stage.lost_another = true;
  if (std::ranges::all_of(group.stages, &StageState::lost_another)) EndBroken(group);
}

void Core::State::EndBroken(GroupState& group) {
  const std::string why = group.reform_why;
  for (const StageState& stage : group.stages) {
    if (!group.proven) ++WorkerOf(stage).joins_failed;
  }
  std::vector<std::string> names;
  for (const auto& [name, member] : group.members) names.push_back(name);
  for (const std::string& name : names) {
    JobState* job = jobs_.Find(name);
    if (job && IsPlaced(job->state())) TakeFailure(*job, kStageLost, why);
  }
  Dissolve(group, why);
}

// ---- of before this start ----

// What a job alone knows is kept with its member, and is gone with it.
std::string Core::State::RecordOf(const GroupState& group) const {
  records::GroupRecord record = ToRecord(group);
  for (records::GroupRecord::Member& member : *record.mutable_members()) {
    const JobState* job = jobs_.FindWhole(member.job());
    if (!job || !IsPlaced(job->state())) continue;
    for (const auto& [step, tokens] : job->saved_tokens) {
      records::GroupRecord::SavedTokens& saved = *member.add_saved_tokens();
      saved.set_step(step);
      saved.set_tokens(tokens);
    }
    const Evaluation& evaluation = job->evaluation;
    if (evaluation.step < 0) continue;
    records::GroupRecord::Evaluation& kept = *member.mutable_evaluation();
    kept.set_step(evaluation.step);
    kept.set_next(evaluation.next);
    kept.set_loss_sum(evaluation.sum.loss_sum);
    kept.set_trained_tokens(evaluation.sum.trained_tokens);
    for (const auto& [sequence, loss] : evaluation.ahead) {
      records::GroupRecord::SequenceLoss& ahead = *kept.add_ahead();
      ahead.set_sequence(sequence);
      ahead.set_loss_sum(loss.loss_sum);
      ahead.set_trained_tokens(loss.trained_tokens);
    }
  }
  return record.SerializeAsString();
}

void Core::State::StoreGroups() {
  using Phase = GroupState::Phase;
  for (const std::string& name : groups_.names()) {
    GroupState& group = *groups_.Find(name);
    const bool whole = group.phase != Phase::kForming && group.phase != Phase::kBroken;
    const bool lasts = std::ranges::all_of(group.stages, [&](const StageState& stage) {
      return WorkerOf(stage).hello.outlives_coordinator();
    });
    groups_.Store(group, whole && lasts ? RecordOf(group) : "");
  }
}

void Core::State::TakeUpGroups() {
  bool any = false;
  for (const records::GroupRecord& record : std::exchange(stored_groups_, {})) {
    const bool taken_up = TakeUp(record);
    any |= taken_up;
    if (taken_up) continue;
    turn_.Warn(
        absl::StrCat(record.group(), " is not what its jobs and workers are: it is formed again"));
    turn_.Put(storage::DeleteRecord(kGroupKind, record.group()));
  }
  for (const auto& [name, group] : groups_.all()) {
    for (const std::string& key : group.stored_windows) stored_windows_.erase(key);
  }
  for (const auto& [key, window] : std::exchange(stored_windows_, {})) {
    turn_.Put(storage::DeleteRecord(kWindowKind, key));  // of a group that is none any more
  }
  if (any) {
    turn_.Do(SetTimer{kReturnEnds, turn_.now_us() + options_.lease_ms * kMillisecond});
  }
}

bool Core::State::TakeUp(const records::GroupRecord& record) {
  absl::StatusOr<GroupState> group = FromRecord(record, stored_windows_);
  if (!group.ok() || !catalog_.HasModel(group->base_model)) return false;
  for (const StageState& stage : group->stages) {
    if (!cluster_.Find(stage.worker)) return false;
  }
  group->shape.device = DeviceOf(WorkerOf(group->first()).hello);
  group->stored = record.SerializeAsString();
  group->vocabulary_size = VocabularyOf(group->base_model);
  // Guests are kept by nobody: their slots are freed, and count until they are.
  std::erase_if(group->members, [](const auto& entry) { return Generations::IsBase(entry.first); });
  group->idle_since_us = group->members.empty() ? turn_.now_us() : 0;
  for (auto& [name, member] : group->members) {
    if (Generations::IsGuest(name)) {
      member.leaving = true;
      continue;
    }
    const JobState* job = jobs_.Find(name);
    if (!job) return false;  // what it takes of the memory is not known
    member.adapter = ShapeOfAdapter(job->job().adapter());
    member.save_us = turn_.now_us();
    const bool placed = IsPlaced(job->state()) && job->job().group() == group->name;
    if (placed && job->job().step() != member.done_step) return false;
    if (!placed) member.leaving = true;
  }
  if (!groups_.TakeUp(*group)) return false;
  for (const StageState& stage : group->stages) {
    WorkerOf(stage).group = group->name;
    WorkerOf(stage).awaited = true;
  }
  for (const records::GroupRecord::Member& member : record.members()) {
    if (Generations::IsGuest(member.job())) continue;
    JobState& job = *jobs_.Find(member.job());
    if (!IsPlaced(job.state()) || job.job().group() != group->name) continue;
    for (const auto& saved : member.saved_tokens()) job.saved_tokens[saved.step()] = saved.tokens();
    if (!member.has_evaluation()) continue;
    const records::GroupRecord::Evaluation& kept = member.evaluation();
    job.evaluation = {
        .step = kept.step(), .sum = {kept.loss_sum(), kept.trained_tokens()}, .next = kept.next()};
    for (const records::GroupRecord::SequenceLoss& ahead : kept.ahead()) {
      job.evaluation.ahead[ahead.sequence()] = {ahead.loss_sum(), ahead.trained_tokens()};
    }
  }
  turn_.Info(absl::StrCat(group->name, ": waits for ", GroupTable::WorkersText(*group),
                          ", which may still hold it"));
  return true;
}

GroupState* Core::State::FindReturning(const WorkerState& worker, const worker::v1::Hello& hello) {
  GroupState* group = groups_.Find(worker.group);
  if (!group) return nullptr;
  const std::string why = WhyNotAdopted(hello, *group);
  if (why.empty()) return group;
  GiveUpReturn(*group, absl::StrCat("worker '", hello.worker(), "' ", why));
  return nullptr;
}

worker::v1::Welcome Core::State::WelcomeBack(const GroupState& group,
                                             const StageState& stage) const {
  worker::v1::Welcome welcome;
  welcome.set_adopted(true);
  *welcome.mutable_group() = OrderToForm(group, &stage - group.stages.data());
  for (const SentWindow& window : stage.orders.windows) {
    for (const auto& [job, orders] : window.jobs) {
      if (!orders.load_step) continue;
      worker::v1::Welcome::Load& load = *welcome.add_loads();
      load.set_job(job);
      load.set_content(orders.load_content);
    }
  }
  for (const auto& [job, member] : group.members) {
    if (member.saves.empty()) continue;
    worker::v1::Welcome::Save& save = *welcome.add_saves();
    save.set_job(job);
    save.set_step(*member.saves.rbegin());
  }
  return welcome;
}

// The stage never got these.
void Core::State::SendWindowsAgain(const GroupState& group, const StageState& stage) {
  for (const SentWindow& window : stage.orders.windows) {
    if (window.number <= WorkerOf(stage).hello.last_window()) continue;
    worker::v1::CoordinatorMessage message;
    *message.mutable_window() = window.message;
    SendTo(stage, std::move(message));
    turn_.Info(absl::StrCat(group.name, ": window ", window.number, " goes to worker '",
                            stage.worker, "' again"));
  }
}

// What it has done and not reported comes now. Once all are back, each has the windows of all; the
// cut, whatever the phase was, shows what becomes of them, and every stage that was told of an
// earlier one is told of this.
void Core::State::OnReturned(GroupState& group, StageState& stage) {
  stage.returned = true;
  turn_.Info(absl::StrCat(group.name, ": worker '", stage.worker, "' is back, behind window ",
                          WorkerOf(stage).hello.last_window()));
  if (!std::ranges::all_of(group.stages, &StageState::returned)) return;
  group.adopted++;
  group.formed_us = group.heard_us = turn_.now_us();
  group.proven = true;
  for (auto& [name, member] : group.members) member.saves_us = turn_.now_us();
  turn_.Info(absl::StrCat(group.name, ": adopted: all of its workers are back"));
  for (const auto& [name, member] : group.members) {
    JobState* job = jobs_.Find(name);
    if (!job || !IsPlaced(job->state())) continue;
    jobs_.AddEvent(*job, "GROUP_ADOPTED",
                   absl::StrCat("the coordinator was started again, and ", group.name,
                                " is as its workers hold it; the job goes on behind step ",
                                job->job().step()));
  }
  for (const StageState& one : group.stages) SendWindowsAgain(group, one);
  SendCut(group);
  turn_.WantSchedule();
}

void Core::State::GiveUpReturn(GroupState& group, const std::string& why) {
  worker::v1::CoordinatorMessage message;
  message.mutable_dissolve_group()->set_epoch(group.epoch);
  SendTo(group, message);
  turn_.Info(absl::StrCat(group.name, ": is not adopted: ", why));
  const GroupState gone = RemoveGroup(group);
  for (const auto& [name, member] : gone.members) {
    JobState* job = jobs_.Find(name);
    if (!job) continue;
    if (job->state() == v1::Job::CANCELLING) {
      jobs_.Transition(*job, v1::Job::CANCELLED, "the coordinator was started again");
    } else if (IsPlaced(job->state())) {
      jobs_.Unplace(
          *job, absl::StrCat("the coordinator was started again (", why,
                             "); the job goes on from step ", job->job().last_checkpoint_step()));
    }
  }
  turn_.WantSchedule();
}

void Core::State::EndReturns(const std::string& why) {
  for (const std::string& name : groups_.names()) {
    GroupState& group = *groups_.Find(name);
    if (group.returning()) GiveUpReturn(group, why);
  }
}

}  // namespace lorad::server
