// Where the adapters that are asked have a place: in groups, beside jobs, by the same policy.
//
// A guest stands before all jobs that wait, as it goes soon, but takes nothing from them: it drives
// nobody out, and who waits longer than a round for a place is left out of the decision, so that no
// group drains for it. While jobs wait it comes only where some train, or onto a worker that they
// do not take, so that a stream of guests does not keep a worker from a job.
#include <algorithm>
#include <limits>
#include <set>

#include "server/core/state.h"

namespace lorad::server {
namespace {

using Kind = planner::Decision::Kind;

const planner::Decision* FindOf(const std::vector<planner::Decision>& decisions,
                                const std::string& guest) {
  const auto found = std::ranges::find_if(decisions, [&](const planner::Decision& decision) {
    return decision.why_job != guest && std::ranges::count(decision.jobs, guest) > 0;
  });
  return found == decisions.end() ? nullptr : &*found;
}

bool DrivesOut(const std::vector<planner::Decision>& decisions, const std::string& guest) {
  return std::ranges::any_of(
      decisions, [&](const planner::Decision& decision) { return decision.why_job == guest; });
}

}  // namespace

planner::QueuedJob Core::State::Queued(const Guest& guest) const {
  v1::Job job;
  job.set_base_model(guest.of.base_model);
  planner::QueuedJob queued = Alone(job, guest.longest_tokens, guest.of.shape);
  queued.job = guest.name;
  queued.priority = std::numeric_limits<int32_t>::max();
  queued.arrival = guest.arrival_us;
  queued.resumes = true;
  queued.step_tokens = guest.longest_tokens;
  queued.remaining_steps = 1;
  return queued;
}

bool Core::State::MayHavePlace(const Guest& guest, const planner::ClusterView& view,
                               const std::vector<planner::Decision>& of_jobs) const {
  const bool waits = std::ranges::any_of(
      of_jobs, [](const planner::Decision& decision) { return decision.kind == Kind::kWait; });
  if (!waits) return true;
  std::set<std::string> taken, dissolved;
  for (const planner::Decision& decision : of_jobs) {
    if (decision.kind == Kind::kDissolve) dissolved.insert(decision.group);
    if (decision.kind != Kind::kFormGroup && decision.kind != Kind::kReplace) continue;
    if (decision.kind == Kind::kFormGroup && decision.base_model == guest.of.base_model)
      return true;
    taken.insert(decision.worker);
    for (const planner::StageView& stage : decision.stages) taken.insert(stage.worker);
  }
  for (const planner::GroupView& group : view.groups) {
    // One that nobody is in, and no job has it make way.
    if (group.jobs.empty() && group.open && !dissolved.contains(group.name)) return true;
    if (group.base_model != guest.of.base_model || !group.open) continue;
    if (!std::ranges::all_of(group.jobs, Generations::IsGuest)) return true;
  }
  return std::ranges::any_of(view.workers, [&](const planner::WorkerView& worker) {
    return worker.idle && !taken.contains(worker.name);
  });
}

void Core::State::FailMisfits(const std::vector<planner::WorkerView>& workers) {
  if (turn_.now_us() < JudgedFromUs()) return;
  std::vector<std::pair<std::string, absl::Status>> misfits;
  for (const Guest* guest : generations_.Waiting()) {
    if (!FitsNowhere(guest->of, guest->longest_tokens, workers)) continue;
    misfits.emplace_back(guest->name, NoWorkerFits(guest->of, guest->longest_tokens));
  }
  for (const auto& [name, status] : misfits) {
    generations_.Fail([&](const Guest& guest) { return guest.name == name; }, status);
  }
}

std::vector<planner::Decision> Core::State::Decide(planner::ClusterView view) {
  std::vector<planner::Decision> decisions = planner::Schedule(view);
  const size_t jobs = view.queue.size();
  FailMisfits(view.workers);
  std::vector<Guest*> guests = generations_.Waiting();
  for (Guest* guest : guests) {
    if (cluster_.Connected().empty()) generations_.Say(*guest, "no worker is connected");
  }
  std::erase_if(guests, [&](Guest* guest) {
    if (MayHavePlace(*guest, view, decisions)) return false;
    generations_.Say(*guest, "jobs wait for a worker, and none of its base model trains");
    return true;
  });
  while (!guests.empty()) {
    view.queue.resize(jobs);
    for (const Guest* guest : guests) {
      view.queue.push_back(Queued(*guest));
      AddTimes(guest->of.base_model, &view);
    }
    decisions = planner::Schedule(view);
    const size_t before = guests.size();
    std::erase_if(guests, [&](Guest* guest) {
      const planner::Decision* decision = FindOf(decisions, guest->name);
      const bool again = decision && decision->kind == Kind::kReform && guest->reformed;
      if (decision && decision->kind != Kind::kWait && !again &&
          !DrivesOut(decisions, guest->name)) {
        return false;
      }
      generations_.Say(*guest, decision && decision->kind == Kind::kWait
                                   ? WhyWait(*decision)
                                   : "no group of its base model has room for it");
      return true;
    });
    if (guests.size() == before) return decisions;
  }
  view.queue.resize(jobs);
  return planner::Schedule(view);
}

bool Core::State::TakesMore(const Guest& guest) const {
  const GroupState* group = groups_.Find(guest.group);
  if (!group) return true;
  if (!TakesJobs(*group)) return false;
  return jobs_.queue().empty() || !std::ranges::all_of(group->members, [](const auto& member) {
           return Generations::IsGuest(member.first);
         });
}

void Core::State::JoinAny(GroupState& group, const std::string& name) {
  Guest* guest = generations_.Find(name);
  if (!guest) return Join(group, *jobs_.Find(name));
  Member& member = groups_.Join(group, name, guest->of.shape, 0);
  if (guest->of.base()) member.slot = Member::Slot::kLoaded;  // it needs none
  generations_.Place(*guest, group.name);
}

void Core::State::SayWhy(const std::string& name, const std::string& why) {
  if (Guest* guest = generations_.Find(name)) {
    guest->reformed = true;
    return generations_.Say(*guest, why);
  }
  jobs_.Find(name)->why = why;
}

void Core::State::PlanGuest(const std::string& name, Member& member, PlanInput* input) {
  const Guest* guest = generations_.Find(name);
  if (!guest) member.leaving = true;
  if (Generations::IsBase(name)) return;  // EndGuests sees to it
  if (member.leaving && member.slot == Member::Slot::kLoaded) {
    member.slot = Member::Slot::kFreeing;
    input->frees.push_back(name);
  } else if (!member.leaving && member.slot == Member::Slot::kUnloaded) {
    member.slot = Member::Slot::kLoading;
    input->loads.push_back(LoadOf(*guest));
  }
}

void Core::State::EndGuests(GroupState& group) {
  std::vector<std::string> ended;
  for (const auto& [name, member] : group.members) {
    if (!Generations::IsGuest(name) || generations_.Find(name)) continue;
    const bool holds_slot = member.slot != Member::Slot::kUnloaded && !Generations::IsBase(name);
    if (!holds_slot) ended.push_back(name);
  }
  for (const std::string& name : ended) EndMember(group, name);
}

}  // namespace lorad::server
