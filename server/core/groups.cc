// Groups: how one is cut, dissolved and lost, and which jobs a loss is held against.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/rules/losses.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

constexpr char kWorkerLost[] = "WORKER_LOST";

std::string WhatIsLost(const JobState& job, const std::string& group, const std::string& why) {
  return absl::StrCat(group, " has lost a worker (", why, "); the job goes on from step ",
                      job.job().step());
}

// What the job was at when the group was lost may have ended the worker: none has done it before.
bool IsAtNew(const JobState& job, const GroupState& gone) {
  const int64_t done_step = gone.members.at(job.name()).done_step;
  return AnyNew(gone.last().orders, job.name(), done_step, job.record.furthest_step());
}

}  // namespace

void Core::State::SendTo(const StageState& stage, worker::v1::CoordinatorMessage message) {
  const WorkerState& worker = WorkerOf(stage);
  if (worker.connection != 0) turn_.Do(Send{worker.connection, std::move(message)});
}

void Core::State::SendTo(const GroupState& group, const worker::v1::CoordinatorMessage& message) {
  for (const StageState& stage : group.stages) SendTo(stage, message);
}

bool Core::State::TakesJobs(const GroupState& group) const {
  return std::ranges::all_of(
      group.stages, [&](const StageState& stage) { return cluster_.TakesJobs(WorkerOf(stage)); });
}

bool Core::State::Empties(const GroupState& group) const {
  return std::ranges::any_of(group.stages,
                             [&](const StageState& stage) { return WorkerOf(stage).empties(); });
}

bool Core::State::IsLoading(const GroupState& group, const std::string& job) {
  return std::ranges::any_of(group.stages,
                             [&](const StageState& stage) { return FindLoad(stage.orders, job); });
}

bool Core::State::IsFreeing(const GroupState& group, const std::string& job) {
  return std::ranges::any_of(
      group.stages, [&](const StageState& stage) { return stage.orders.freeing.contains(job); });
}

void Core::State::BeginCut(GroupState& group, GroupState::Then then, const std::string& why) {
  using Phase = GroupState::Phase;
  if (then > group.then) {
    group.then = then;
    group.reform_why = why;
  }
  if (group.phase != Phase::kRunning) return;  // under way already, or nothing to cut yet
  groups_.DropPlan(group);                     // what is being planned comes too late
  if (group.windows_at_hand() == 0) {
    group.phase = Phase::kDraining;
    return;
  }
  SendCut(group);
}

void Core::State::SendCut(GroupState& group) {
  group.phase = GroupState::Phase::kCutting;
  worker::v1::CoordinatorMessage message;
  message.mutable_cut()->set_epoch(group.epoch);
  message.mutable_cut()->set_cut(++group.cut);
  SendTo(group.first(), std::move(message));
}

void Core::State::Resync(GroupState& group) {
  // A slot that a window freed is announced once its checkpoints are up, which may be later.
  for (const std::string& job : std::exchange(group.plan_frees, {})) {
    const auto member = group.members.find(job);
    if (member != group.members.end()) member->second.slot = Member::Slot::kLoaded;
  }
  for (auto& [name, member] : group.members) {
    if (member.slot == Member::Slot::kLoading) member.slot = Member::Slot::kUnloaded;
    generations_.ForgetAsked(name);
    member.planned_step = member.done_step;
    for (const planner::Place& place : group.left) {
      for (const planner::BatchEnd& end : place.ends) {
        if (end.job == name) member.planned_step = std::max(member.planned_step, end.step);
      }
    }
    const JobState* job = jobs_.Find(name);
    if (!job) continue;
    member.evaluation_step = job->evaluation.step;
    member.evaluation_planned = job->evaluation.next;
  }
}

void Core::State::EndMember(GroupState& group, const std::string& name) {
  const auto found = group.members.find(name);
  const Member member = found == group.members.end() ? Member() : found->second;
  groups_.Erase(group, name);
  generations_.Unplace(name);
  JobState* job = jobs_.Find(name);
  if (job && job->state() == v1::Job::CANCELLING) {
    jobs_.Transition(*job, v1::Job::CANCELLED, "it has left its group");
  } else if (job && member.departing && IsPlaced(job->state())) {
    using Standing = JobTable::Standing;
    const Standing moved = job->moves_to.empty() ? Standing::kFirstOfEquals : Standing::kFirst;
    jobs_.Unplace(*job, member.why_departs, member.resumes ? moved : Standing::kAsOthers);
  }
  turn_.WantSchedule();
}

// Takes a group as far as it can go without hearing of the world.
void Core::State::Advance(GroupState& group) {
  using Phase = GroupState::Phase;
  using Then = GroupState::Then;
  AnswerKeptShards(group);
  if (group.phase == Phase::kForming) {
    if (group.then == Then::kStop) return Dissolve(group, group.reform_why);
    // One that goes has nothing on the worker yet.
    std::vector<std::string> left;
    for (const auto& [name, member] : group.members) {
      if (member.leaving || member.departing) left.push_back(name);
    }
    for (const std::string& name : left) EndMember(group, name);
    return;
  }
  if (group.phase == Phase::kDraining && group.windows_at_hand() == 0) {
    Resync(group);
    group.phase = group.then == Then::kGoOn ? Phase::kRunning : Phase::kSaving;
    // A cancelled job holds nothing but its slot now.
    EndCancelled(group);
    std::vector<std::string> left;
    for (const auto& [name, member] : group.members) {
      if (member.leaving && member.slot == Member::Slot::kUnloaded) left.push_back(name);
    }
    for (const std::string& name : left) EndMember(group, name);
    turn_.WantSchedule();
  }
  if (group.phase == Phase::kRunning) {
    EndCancelled(group);
    EndUnloaded(group);
    EndGuests(group);
    EndUrgency(group);
    if (group.members.empty() && group.windows_at_hand() == 0) {
      if (Empties(group)) return Dissolve(group, WhyEmpties(group));
      const int32_t stages = catalog_.Model(group.base_model).record.model().stages();
      if (stages > 0 && std::ssize(group.stages) != stages) {
        return Dissolve(group, absl::StrCat("its model is to be on ", stages, " workers"));
      }
    }
    PlanNext(group);
  }
  if (group.phase == Phase::kSaving) {
    PlanSaves(group);
    const bool saved = std::ranges::all_of(group.members, [&](const auto& entry) {
      const auto& [name, member] = entry;
      const JobState* job = jobs_.Find(name);
      return !job || !IsPlaced(job->state()) || member.not_finite ||
             job->job().last_checkpoint_step() >= member.done_step;
    });
    if (saved && group.windows_at_hand() == 0 && group.plan == 0) Dissolve(group, group.reform_why);
  }
}

void Core::State::Dissolve(GroupState& group, std::string why) {
  cluster_.KeepPeak(group);
  worker::v1::CoordinatorMessage message;
  message.mutable_dissolve_group()->set_epoch(group.epoch);
  SendTo(group, message);
  turn_.Info(absl::StrCat(group.name, ": dissolved: ", why));
  const GroupState gone = RemoveGroup(group);
  const bool reforms = gone.then == GroupState::Then::kReform;
  const bool again = reforms || gone.phase == GroupState::Phase::kForming;  // which has failed
  if (reforms && gone.stages.size() == 1) WorkerOf(gone.first()).reforms = gone.name;
  for (const auto& [name, member] : gone.members) {
    JobState* job = jobs_.Find(name);
    if (!job) continue;
    if (job->state() == v1::Job::CANCELLING) {
      jobs_.Transition(*job, v1::Job::CANCELLED, why);
    } else if (member.not_finite && IsPlaced(job->state())) {
      jobs_.Unplace(*job, member.why_departs, JobTable::Standing::kFirstOfEquals);
    } else if (IsPlaced(job->state())) {
      jobs_.Unplace(*job, why, again ? JobTable::Standing::kFirst : JobTable::Standing::kAsOthers);
      if (reforms && gone.stages.size() == 1) job->trained_on = gone.first().worker;
    }
  }
  turn_.WantSchedule();
}

// Its workers have it no more, and nothing of it is awaited.
GroupState Core::State::RemoveGroup(GroupState& group) {
  for (const StageState& stage : group.stages) {
    WorkerState& worker = WorkerOf(stage);
    cluster_.LeaveGroup(worker, stage.formed ? group.base_model : "", stage.range);
    if (worker.leaving) LetGo(worker, "it was told to end, and has no jobs any more");
  }
  GroupState gone = groups_.Remove(group.name);
  for (const auto& [member, state] : gone.members) generations_.Unplace(member);
  for (const auto& [key, kept] : gone.kept_shards) RefuseShard(kept.request, kept.content);
  return gone;
}

// Workers that it has not lost let go of it, and are free for another once they say so.
void Core::State::LoseGroup(GroupState& group, const std::string& why, Loss loss) {
  worker::v1::CoordinatorMessage message;
  message.mutable_dissolve_group()->set_epoch(group.epoch);
  SendTo(group, message);
  const GroupState gone = RemoveGroup(group);
  for (const StageState& stage : gone.stages) {
    WorkerState& worker = WorkerOf(stage);
    if (worker.connection != 0) worker.leaves_epoch = gone.epoch;
  }
  std::vector<JobState*> lost;
  for (const auto& [name, member] : gone.members) {
    if (loss == Loss::kAnybodys) generations_.CountLoss(name, why);
    JobState* job = jobs_.Find(name);
    if (job && job->state() == v1::Job::CANCELLING) {
      jobs_.Transition(*job, v1::Job::CANCELLED, "its worker is gone");
    } else if (job && IsPlaced(job->state())) {
      if (member.done_step > member.joined_step) {
        job->barren_losses = 0;
      } else if (loss != Loss::kItsEnd) {
        ++job->barren_losses;
      }
      lost.push_back(job);
      jobs_.FallBack(*job);
    }
  }
  turn_.WantSchedule();
  if (loss == Loss::kAnybodys) return Suspect(lost, gone, why);
  for (JobState* job : lost) {
    const std::string what = WhatIsLost(*job, gone.name, why);
    if (loss == Loss::kItsEnd) jobs_.AddEvent(*job, kWorkerLost, what);
    jobs_.Unplace(*job, absl::StrCat("its worker is gone: ", why));
    if (loss == Loss::kItsEnd) continue;
    // Counted, as what passes is: a worker may lie for days.
    if (!job->passing) job->passing = std::make_unique<Passing>();
    jobs_.CountFailure(*job, "WORKER_LIED", what);
  }
}

void Core::State::Suspect(const std::vector<JobState*>& lost, const GroupState& gone,
                          const std::string& why) {
  int32_t suspects = 0;
  for (JobState* job : lost) {
    const int losses = job->record.losses_without_progress() + 1;
    job->record.set_losses_without_progress(losses);
    if (!IsAtNew(*job, gone)) job->record.set_losses_redone(job->record.losses_redone() + 1);
    suspects += IsSuspect(losses) ? 1 : 0;
    if (gone.stages.size() == 1) jobs_.HoldAgainst(*job, gone.first().worker, 1);
  }
  for (JobState* job : lost) {
    const int losses = job->record.losses_without_progress();
    job->record.set_company_max(CompanyAfterLoss(losses, job->record.company_max(), suspects));
    job->record.set_alone(AloneAfterLoss(losses, suspects));
    const std::string what = WhatIsLost(*job, gone.name, why);
    // A worker that loses everybody is no job's doing: another one has the say, where there is one.
    const bool only_here = gone.stages.size() == 1 && job->failed_on.size() == 1 &&
                           cluster_.AnotherHolds(Alone(job->job(), job->record.longest_tokens()),
                                                 {gone.first().worker}, Cluster::When::kSoon);
    const bool to_blame =
        !only_here && IsToBlame(losses, job->record.losses_redone(), job->record.losses_alone(),
                                options_.losses_without_progress_max, std::ssize(gone.members));
    if (job->record.alone() && !to_blame) {
      // Its next loss may be held against it, so whoever else ends workers has time to pass.
      if (IsAtNew(*job, gone)) job->record.set_losses_alone(job->record.losses_alone() + 1);
      Postpone(*job, kWorkerLost, what, options_.loss_pause_ms);
      continue;
    }
    if (!to_blame && job->barren_losses > 1) {
      const int64_t ms = options_.postpone_ms << std::min(job->barren_losses - 2, 20);
      PauseFor(*job, kWorkerLost, what, std::min(ms, options_.postpone_max_ms));
      continue;
    }
    jobs_.AddEvent(*job, kWorkerLost, what);
    if (to_blame) {
      jobs_.Fail(*job, v1::JobError::SERVER, kWorkerLost,
                 absl::StrCat("its workers were lost ", losses,
                              " times in a row without a step of progress, the last time while it "
                              "was alone: ",
                              why));
    } else {
      jobs_.Unplace(*job, absl::StrCat("its worker is gone: ", why));
    }
  }
}

}  // namespace lorad::server
