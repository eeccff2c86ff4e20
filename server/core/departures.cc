// Jobs that leave their group alive: paused by their user, evicted for a more important one, moved,
// or from a worker that empties. Each is saved at its last step before its slot is freed, so it
// goes on with the same bits.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/due.h"
#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// A group that makes room for longer goes on meanwhile.
constexpr int64_t kUrgentUs = 30'000'000;

absl::Status WrongState(const JobState& job, const std::string& reason, const std::string& why) {
  return PreconditionFailed(
      reason, absl::StrCat("job ", job.name()),
      absl::StrCat("job '", job.name(), "' is ", ToText(job.state()), ": ", why));
}

// It is CANCELLING, or has ended.
absl::Status NotLive(const JobState& job, const std::string& what) {
  if (job.state() == v1::Job::CANCELLING) {
    return WrongState(job, "JOB_CANCELLING",
                      absl::StrCat("its user cancelled it, and it can be ", what, " no more"));
  }
  return WrongState(job, "JOB_ENDED", absl::StrCat("only a live job can be ", what));
}

absl::Status NothingTrained(const JobState& job) {
  const int64_t lost = job.record.furthest_step();
  return WrongState(
      job, "NOTHING_TRAINED",
      lost == 0 ? "no step of it is trained, so there is nothing to keep; cancel it"
                : absl::StrCat("it is to train again from step 0, for the ", lost,
                               " steps that it had done were lost before one was saved, so there "
                               "is nothing to keep; let it train, or cancel it"));
}

}  // namespace

void Core::State::Depart(JobState& job, const std::string& why, bool resumes) {
  GroupState& group = *GroupOf(job);
  Member& member = group.members.at(job.name());
  if (member.not_finite) return;  // it leaves without its last step
  if (!std::exchange(member.departing, true)) member.departs_us = turn_.now_us();
  member.resumes = resumes;
  member.why_departs = why;
}

// The units at hand come first: windows are executed in their order.
void Core::State::PlanDeparture(const std::string& name, Member& member, PlanInput* input) {
  if (member.slot != Member::Slot::kLoaded || member.planned_step > member.done_step) return;
  JobState* job = jobs_.Find(name);
  if (job && IsPlaced(job->state()) && job->job().last_checkpoint_step() < member.done_step) {
    if (turn_.room().ok()) PlanSave(*job, member, input);
    return;
  }
  member.slot = Member::Slot::kFreeing;
  input->frees.push_back(name);
}

void Core::State::EndUnloaded(GroupState& group) {
  std::vector<std::string> left;
  for (const auto& [name, member] : group.members) {
    const bool goes = member.departing || member.leaving;
    if (goes && member.slot == Member::Slot::kUnloaded) left.push_back(name);
  }
  for (const std::string& name : left) EndMember(group, name);
}

// ---- evicted and moved ----

void Core::State::Evict(JobState& job, const std::string& for_job) {
  GroupState& group = *GroupOf(job);
  const std::string why = absl::StrCat("evicted from ", group.name, " for ", for_job);
  jobs_.AddEvent(job, "EVICTED", why);
  Depart(job, why, false);
  group.urgent = for_job;
  group.urgent_until_us = turn_.now_us() + kUrgentUs;
  BeginCut(group, GroupState::Then::kGoOn, "");
}

void Core::State::Move(JobState& job, const planner::Decision& decision) {
  std::string to = decision.to;
  if (to.empty()) {
    const WorkerState& worker = cluster_.At(decision.worker);
    to = worker.group.empty() ? FormGroup(decision).name : worker.group;
  }
  const std::string why = absl::StrCat("moves from ", job.job().group(), " to ", to, ": ",
                                       !decision.why.empty() ? decision.why
                                       : decision.why_job.empty()
                                           ? "it pays"
                                           : absl::StrCat("it makes room for ", decision.why_job));
  // One that has not run there yet has nothing to be moved, but is not sent around without end.
  if (job.state() == v1::Job::RUNNING || std::exchange(job.sent_elsewhere, true)) {
    jobs_.AddEvent(job, "MOVED", why);
    job.moved_us = turn_.now_us();
    job.record.set_moved_wall_us(turn_.wall_us());
  }
  job.moves_to = to;
  Depart(job, why, true);
}

void Core::State::EndUrgency(GroupState& group) {
  if (group.urgent.empty()) return;
  if (turn_.now_us() < group.urgent_until_us) {
    if (turn_.schedule_wanted()) return;  // its room may just have become free
    const JobState* job = jobs_.FindWhole(group.urgent);
    if (group.makes_room() && job && job->state() == v1::Job::QUEUED) return;
    const auto member = group.members.find(group.urgent);
    if (member != group.members.end() && !member->second.leaving && !member->second.departing &&
        member->second.planned_step == member->second.done_step &&
        member->second.evaluation_planned == 0) {
      return;  // its slot is being loaded
    }
  }
  group.urgent.clear();
}

// ---- pausing ----

void Core::State::On(uint64_t request, const v1::PauseJobRequest& content) {
  JobState* job = jobs_.Find(content.name());
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.name()));
  constexpr char kWhy[] = "paused by its user";
  const bool goes_on = IsLive(job->state()) && job->state() != v1::Job::FINALIZING &&
                       job->state() != v1::Job::CANCELLING;
  if (job->job().finish_step() > 0 && goes_on) {
    return turn_.Fail(request,
                      WrongState(*job, "JOB_FINISHING",
                                 absl::StrCat("it was asked to finish, and does so at step ",
                                              job->job().finish_step(), ": it cannot be paused")));
  }
  switch (job->state()) {
    case v1::Job::PAUSING:
    case v1::Job::PAUSED:
      break;
    case v1::Job::VALIDATING:
    case v1::Job::QUEUED:
      jobs_.Transition(*job, v1::Job::PAUSED, kWhy);
      break;
    case v1::Job::PREPARING:
    case v1::Job::RUNNING:
      jobs_.Transition(*job, v1::Job::PAUSING, kWhy);
      Depart(*job, kWhy, false);
      break;
    case v1::Job::FINALIZING:
      return turn_.Fail(request, WrongState(*job, "JOB_FINALIZING",
                                            "its last step is done, so there is nothing to pause"));
    default:
      return turn_.Fail(request, NotLive(*job, "paused"));
  }
  VoidForecast(*job);
  jobs_.PublishIfTouched(*job);
  turn_.Answer(request, jobs_.View(*job));
}

void Core::State::On(uint64_t request, const v1::ResumeJobRequest& content) {
  JobState* job = jobs_.Find(content.name());
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.name()));
  if (!IsLive(job->state()) || job->state() == v1::Job::CANCELLING) {
    return turn_.Fail(request, NotLive(*job, "resumed"));
  }
  constexpr char kWhy[] = "resumed by its user";
  if (job->state() == v1::Job::PAUSED) {
    if (absl::Status status = quotas_.CheckQueue(job->job().labels()); !status.ok()) {
      return turn_.Fail(request, status);
    }
    Requeue(*job, kWhy);
  } else if (job->state() == v1::Job::PAUSING) {
    StopPausing(*job, kWhy);
  }
  jobs_.PublishIfTouched(*job);
  turn_.Answer(request, jobs_.View(*job));
}

void Core::State::StopPausing(JobState& job, const std::string& why) {
  GroupState& group = *GroupOf(job);
  Member& member = group.members.at(job.name());
  const bool loaded = member.slot == Member::Slot::kLoaded || member.slot == Member::Slot::kFreeing;
  if (loaded && job.job().step() >= EndStep(job.job())) {
    // Only what is evaluated is left, so it had not become RUNNING.
    jobs_.Transition(job, v1::Job::FINALIZING, why);
  } else {
    jobs_.Transition(job, loaded ? v1::Job::RUNNING : v1::Job::PREPARING, why);
  }
  // One whose slot is being freed, or whose worker empties, leaves, and is queued again at once.
  const bool empties = Empties(group) && job.state() != v1::Job::FINALIZING;
  member.departing = member.slot == Member::Slot::kFreeing || empties || member.not_finite;
  member.resumes = member.departing;
  member.why_departs = empties ? WhyEmpties(group) : why;
  MaybeFinish(job);
}

void Core::State::Requeue(JobState& job, const std::string& why) {
  // It may have been paused before its rows were known.
  if (job.job().total_steps() > 0) return jobs_.Transition(job, v1::Job::QUEUED, why);
  jobs_.Transition(job, v1::Job::VALIDATING, why);
  if (rows_.Ensure(job.job())) SettleJob(job);
}

// ---- finishing ----

void Core::State::On(uint64_t request, const v1::FinishJobRequest& content) {
  JobState* job = jobs_.Find(content.name());
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.name()));
  const bool asked = job->job().finish_step() > 0;
  const bool ends = job->state() == v1::Job::FINALIZING ||
                    (asked && (job->state() == v1::Job::SUCCEEDED || IsLive(job->state())));
  if (job->state() == v1::Job::CANCELLING || (!ends && !IsLive(job->state()))) {
    return turn_.Fail(request, NotLive(*job, "finished"));
  }
  if (!ends && job->job().step() == 0) {
    return turn_.Fail(request, NothingTrained(*job));
  }
  if (!ends) Finish(*job);
  EndFinished();
  jobs_.PublishIfTouched(*job);
  turn_.Answer(request, jobs_.View(*job));
}

void Core::State::Finish(JobState& job) {
  GroupState* group = IsPlaced(job.state()) ? GroupOf(job) : nullptr;
  // It leaves without what it did here, and does that again elsewhere.
  if (group && group->members.at(job.name()).not_finite) group = nullptr;
  int64_t end = job.job().step();
  if (group) end = std::max(end, group->members.at(job.name()).planned_step);
  job.job().set_finish_step(end);
  jobs_.AddEvent(job, "FINISHING",
                 absl::StrCat("its user asked it to finish: it ends at step ", end, " of ",
                              job.job().total_steps()));
  VoidForecast(job);
  jobs_.NoteFinishing(job);
  if (!group || job.job().step() < end) return;
  group->members.at(job.name()).departing = false;
  jobs_.Transition(job, v1::Job::FINALIZING, "the last step that it was to finish is done");
  MaybeFinish(job);
}

// Its newest checkpoint may be about to be written, or be in doubt (contents.cc). What was trained
// beyond it, and lost with a worker, is trained again: the step that was said is the step that it is.
void Core::State::EndFinished() {
  for (const std::string& name : jobs_.finishing()) {
    JobState& job = *jobs_.Find(name);
    const bool waits = job.state() == v1::Job::QUEUED || job.state() == v1::Job::PAUSED;
    const int64_t last = job.job().last_checkpoint_step();
    if (!waits || job.commits > 0 || job.reads_content) continue;
    if (last < job.job().finish_step()) {
      if (job.state() == v1::Job::PAUSED)
        Requeue(job, "asked to finish, it is trained up to there");
      continue;
    }
    job.job().set_finish_step(last);
    jobs_.Transition(job, v1::Job::SUCCEEDED, WhatItHas(job.job()));
    DropCheckpoints(job);
  }
}

// ---- cancelling ----

bool Core::State::SavesLast(const GroupState& group, const Member& member,
                            const JobState& job) const {
  return job.state() == v1::Job::CANCELLING && turn_.now_us() < job.cancel_until_us &&
         group.then == GroupState::Then::kGoOn && member.slot == Member::Slot::kLoaded &&
         !member.not_finite && job.job().last_checkpoint_step() < member.done_step &&
         turn_.room().ok();
}

void Core::State::EndCancelled(const GroupState& group) {
  for (const auto& [name, member] : group.members) {
    JobState* job = member.leaving ? jobs_.Find(name) : nullptr;
    if (!job || job->state() != v1::Job::CANCELLING || SavesLast(group, member, *job)) continue;
    const int64_t last = job->job().last_checkpoint_step();
    std::string how = "cut out of its group";
    if (last > 0 && last == member.done_step) {
      absl::StrAppend(&how, ", and saved at step ", last);
    } else if (!turn_.room().ok()) {
      absl::StrAppend(&how, "; ", std::string(turn_.room().message()));
    } else if (turn_.now_us() >= job->cancel_until_us) {
      absl::StrAppend(&how, "; saving took too long");
    }
    jobs_.Transition(*job, v1::Job::CANCELLED, how);
  }
}

// ---- draining ----

std::string Core::State::WhyEmpties(const GroupState& group) const {
  const StageState& stage = *std::ranges::find_if(
      group.stages, [&](const StageState& one) { return WorkerOf(one).empties(); });
  return absl::StrCat("worker '", stage.worker, "' ", Cluster::WhyEmpties(WorkerOf(stage)));
}

void Core::State::Drain(GroupState& group) {
  const std::string why = WhyEmpties(group);
  if (group.phase == GroupState::Phase::kForming) {
    return BeginCut(group, GroupState::Then::kStop, why);
  }
  for (const auto& [name, member] : group.members) {
    JobState* job = jobs_.Find(name);
    // One that is FINALIZING ends by itself.
    if (!job || member.leaving || member.departing || !IsPlaced(job->state()) ||
        job->state() == v1::Job::FINALIZING) {
      continue;
    }
    Depart(*job, why, true);
  }
}

void Core::State::On(uint64_t request, const v1::DrainWorkerRequest& content) {
  WorkerState* worker = cluster_.Find(content.name());
  if (!worker) return turn_.Fail(request, NotFound("worker", content.name()));
  cluster_.Drain(*worker, content.reason());
  if (GroupState* group = groups_.Find(worker->group)) Drain(*group);
  turn_.WantSchedule();
  turn_.Answer(request, ViewWorker(*worker));
}

void Core::State::On(uint64_t request, const v1::UndrainWorkerRequest& content) {
  WorkerState* worker = cluster_.Find(content.name());
  if (!worker) return turn_.Fail(request, NotFound("worker", content.name()));
  cluster_.Undrain(*worker);
  turn_.WantSchedule();
  turn_.Answer(request, ViewWorker(*worker));
}

}  // namespace lorad::server
