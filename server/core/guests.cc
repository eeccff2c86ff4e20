// Where the adapters that are asked have a place: in groups, beside jobs, by the same policy.
//
// A guest stands before all jobs that wait, as it goes soon, but takes nothing from them: it drives
// nobody out, who waits longer than a round for a place is left out of the decision, so that no
// group drains for it, and where a job would wait that has a place without the guests, the jobs are
// placed first. A group that only answers is in no job's way either: where jobs wait that could
// have its workers it is cut, and its guests go on elsewhere, or wait, with the tokens that they
// have. So no guest comes back onto a worker that a job is to have.
//
// One that has waited for kAskPatienceUs waits from then on like a job, too: it stands in the queue
// behind the jobs that came before it, and those that came later stand behind it, whatever their
// priorities, so they are kept out of groups that drain for it (but still nobody is evicted). The
// place that it gets so is its turn: its group makes way for nobody for kAskTurnUs, or until an
// answer outgrows its room, and after that it waits anew, behind the jobs that wait. So a guest waits for the jobs that came before it, a job
// for one turn of each guest that did, and neither for a stream of the other.
#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

using Kind = planner::Decision::Kind;
using Phase = GroupState::Phase;

// A guest waits for so long without being in anybody's way, and has its place for so long, once its
// group runs, before others that wait.
constexpr int64_t kAskPatienceUs = 10'000'000;
constexpr int64_t kAskTurnUs = 30'000'000;

// From then on in the queue.
bool WaitsLikeAJob(const Guest& guest, int64_t now_us) {
  return now_us - guest.since_us >= kAskPatienceUs;
}

const planner::Decision* FindOf(const std::vector<planner::Decision>& decisions,
                                const std::string& guest) {
  const auto found = std::ranges::find_if(decisions, [&](const planner::Decision& decision) {
    return std::ranges::count(decision.jobs, guest) > 0;
  });
  return found == decisions.end() ? nullptr : &*found;
}

bool UsesWorkers(const planner::Decision& decision) {
  return decision.kind == Kind::kFormGroup ||
         (decision.kind == Kind::kReplace && !decision.worker.empty());
}

std::set<std::string> WorkersOf(const planner::Decision& decision) {
  std::set<std::string> workers = {decision.worker};
  for (const planner::StageView& stage : decision.stages) workers.insert(stage.worker);
  return workers;
}

std::set<std::string> WhoWait(const std::vector<planner::Decision>& decisions) {
  std::set<std::string> jobs;
  for (const planner::Decision& decision : decisions) {
    if (decision.kind == Kind::kWait) jobs.insert(decision.jobs.begin(), decision.jobs.end());
  }
  return jobs;
}

// Somebody of the queue waits who does not by the decisions of the queue alone.
bool HoldUp(const std::vector<planner::Decision>& with_guests,
            const std::vector<planner::Decision>& of_queue) {
  return !std::ranges::includes(WhoWait(of_queue), WhoWait(with_guests));
}

std::string WhoIs(const Generations& generations, const std::string& name) {
  const Guest* guest = generations.Find(name);
  return guest ? absl::StrCat("an ask of '", guest->of.base_model, "'") : name;
}

// By the policy, but no group is formed again for a guest twice.
std::vector<planner::Decision> ScheduleOnce(const planner::ClusterView& view,
                                            const Generations& generations) {
  std::vector<planner::Decision> decisions = planner::Schedule(view);
  for (planner::Decision& decision : decisions) {
    if (decision.kind != Kind::kReform || decision.jobs.empty()) continue;
    const Guest* guest = generations.Find(decision.jobs.front());
    if (!guest || !guest->reformed) continue;
    decision.kind = Kind::kWait;
    decision.why = absl::StrCat("waits until group ", decision.group, " has room for it");
  }
  return decisions;
}

}  // namespace

planner::QueuedJob Core::State::Queued(const Guest& guest) const {
  const std::string& base_model = guest.of.base_model;
  planner::QueuedJob queued = Alone(catalog_.Model(base_model), base_model, guest.longest_tokens,
                                    planner::ShareAdapter(guest.of.shape));
  queued.job = guest.name;
  queued.priority = std::numeric_limits<int32_t>::max();
  queued.arrival = guest.since_us;
  queued.resumes = true;
  queued.asks = true;
  queued.step_tokens = guest.longest_tokens;
  queued.remaining_steps = 1;
  return queued;
}

bool Core::State::MayHavePlace(const Guest& guest, const planner::ClusterView& view,
                               const std::vector<planner::Decision>& of_queue) const {
  if (WhoWait(of_queue).empty()) return true;
  std::set<std::string> taken, dissolved;
  for (const planner::Decision& decision : of_queue) {
    if (decision.kind == Kind::kDissolve) dissolved.insert(decision.group);
    if (!UsesWorkers(decision)) continue;
    if (decision.base_model == guest.of.base_model) return true;
    taken.merge(WorkersOf(decision));
  }
  for (const planner::GroupView& group : view.groups) {
    // One that nobody is in, and no job has it make way.
    if (group.jobs.empty() && group.open && !dissolved.contains(group.name)) return true;
    if (group.base_model == guest.of.base_model && group.open) return true;
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
  for (const auto& misfit : misfits) {
    generations_.Fail([&](const Guest& guest) { return guest.name == misfit.first; },
                      misfit.second);
  }
}

bool Core::State::OnlyAnswers(const GroupState& group) {
  if (group.phase == Phase::kBroken || group.returning()) return false;
  // Of one that nobody is in any more, and that is being cut, the policy knows nothing.
  if (group.members.empty() && group.then == GroupState::Then::kGoOn) return false;
  return std::ranges::all_of(group.members,
                             [](const auto& member) { return Generations::IsGuest(member.first); });
}

bool Core::State::IsInTurn(const GroupState& group) const {
  return std::ranges::any_of(group.members, [&](const auto& member) {
    const Guest* guest = generations_.Find(member.first);
    if (!guest || !guest->in_turn) return false;
    return group.phase == Phase::kForming ||
           turn_.now_us() - std::max(guest->placed_us, group.formed_us) < kAskTurnUs;
  });
}

std::string Core::State::WhoIsInTurn() const {
  for (const auto& [name, group] : groups_.all()) {
    if (OnlyAnswers(group) && IsInTurn(group)) {
      return absl::StrCat("; group ", name, " answers an ask that has waited, for ",
                          kAskTurnUs / 1'000'000, " s at most");
    }
  }
  return "";
}

void Core::State::AddClaims(planner::ClusterView* view) {
  std::vector<planner::QueuedJob> claims;
  for (const Guest* guest : generations_.Waiting()) {
    if (!WaitsLikeAJob(*guest, turn_.now_us())) continue;
    planner::QueuedJob& claim = claims.emplace_back(Queued(*guest));
    claim.resumes = false;
    claim.waited_s = SecondsSince(guest->since_us);
    claim.priority = 0;
    claim.arrival = std::numeric_limits<int64_t>::max();
    for (const planner::QueuedJob& job : view->queue) {
      // It goes first in any case, and would have the others' order turn as its group is formed again.
      if (job.resumes) continue;
      claim.priority = std::max(claim.priority, job.priority);
      const bool later = jobs_.Find(job.job)->since_us > guest->since_us;
      if (later) claim.arrival = std::min(claim.arrival, job.arrival);
    }
    AddTimes(guest->of.base_model, view);
  }
  // Of one order of arrival those go first that stand first.
  view->queue.insert(view->queue.begin(), claims.begin(), claims.end());
}

void Core::State::MakeWay(planner::ClusterView* view) {
  std::set<std::string> answering;
  for (const auto& [name, group] : groups_.all()) {
    if (OnlyAnswers(group) && !IsInTurn(group)) answering.insert(name);
  }
  if (answering.empty() || view->queue.empty()) return;
  const std::vector<planner::Decision> as_it_is = planner::Schedule(*view);
  const std::set<std::string> waiting = WhoWait(as_it_is);
  if (waiting.empty()) return;
  std::set<std::string> taken;
  for (const planner::Decision& decision : as_it_is) {
    if (UsesWorkers(decision)) taken.merge(WorkersOf(decision));
  }
  planner::ClusterView freed = *view;
  std::erase_if(freed.queue, [&](const auto& job) { return !waiting.contains(job.job); });
  std::erase_if(freed.groups, [&](const auto& group) { return answering.contains(group.name); });
  for (planner::WorkerView& worker : freed.workers) {
    const WorkerState& state = cluster_.At(worker.name);
    if (answering.contains(state.group)) worker.idle = cluster_.TakesJobs(state);
    if (taken.contains(worker.name)) worker.idle = false;
  }
  std::set<std::string> promised, kept;
  for (const planner::Decision& decision : planner::Schedule(freed)) {
    if (decision.kind != Kind::kFormGroup) continue;
    const std::set<std::string> workers = WorkersOf(decision);
    std::string group;
    for (const std::string& worker : workers) {
      const std::string& of = cluster_.At(worker).group;
      if (!answering.contains(of)) continue;
      group = of;
      GroupState& goes = *groups_.Find(group);
      for (const auto& [guest, member] : goes.members) generations_.EndTurn(guest);
      BeginCut(goes, GroupState::Then::kStop,
               absl::StrCat("it only answers, and makes way for ",
                            WhoIs(generations_, decision.jobs.front())));
    }
    if (group.empty()) continue;
    promised.insert(decision.jobs.begin(), decision.jobs.end());
    kept.insert(workers.begin(), workers.end());
    for (const std::string& job : decision.jobs) {
      SayWhy(job, absl::StrCat(group, ", which only answers, makes way for it"));
    }
  }
  std::erase_if(view->queue, [&](const auto& job) { return promised.contains(job.job); });
  for (planner::WorkerView& worker : view->workers) {
    if (kept.contains(worker.name)) worker.idle = false;
  }
  for (planner::GroupView& group : view->groups) {
    if (groups_.Find(group.name)->then == GroupState::Then::kStop) group.open = false;
  }
}

std::vector<Guest*> Core::State::WithoutPlace(const planner::ClusterView& view,
                                              const std::vector<planner::Decision>& of_queue) {
  std::vector<Guest*> guests = generations_.Waiting();
  std::erase_if(guests, [&](Guest* guest) {
    const planner::Decision* decision = FindOf(of_queue, guest->name);
    guest->in_turn = decision && decision->kind != Kind::kWait;
    // Of one that a group makes way for nothing is decided.
    if (guest->in_turn || (!decision && WaitsLikeAJob(*guest, turn_.now_us()))) return true;
    if (view.workers.empty()) generations_.Say(*guest, "no worker is connected");
    if (MayHavePlace(*guest, view, of_queue)) return false;
    generations_.Say(*guest, "jobs wait for a worker, and none of its base model trains");
    return true;
  });
  return guests;
}

std::vector<planner::Decision> Core::State::Decide(planner::ClusterView view) {
  FailMisfits(view.workers);
  AddClaims(&view);
  MakeWay(&view);
  std::vector<planner::Decision> of_queue = ScheduleOnce(view, generations_);
  std::vector<Guest*> guests = WithoutPlace(view, of_queue);
  if (guests.empty()) return of_queue;  // as mostly; the queue may be long
  const std::vector<planner::QueuedJob> queue = view.queue;
  while (!guests.empty()) {
    view.queue = queue;
    for (const Guest* guest : guests) {
      std::erase_if(view.queue, [&](const auto& job) { return job.job == guest->name; });
      view.queue.push_back(Queued(*guest));
      AddTimes(guest->of.base_model, &view);
    }
    std::vector<planner::Decision> decisions = ScheduleOnce(view, generations_);
    const size_t before = guests.size();
    std::erase_if(guests, [&](Guest* guest) {
      const planner::Decision* decision = FindOf(decisions, guest->name);
      if (decision->kind != Kind::kWait) return false;
      generations_.Say(*guest, WhyWait(*decision));
      return true;
    });
    if (guests.size() < before) continue;
    if (!HoldUp(decisions, of_queue)) return decisions;
    // The guests have what is left once the queue has its places: every such round places a job.
    turn_.WantSchedule();
    return of_queue;
  }
  return of_queue;
}

bool Core::State::TakesMore(const Guest& guest) const {
  const GroupState* group = groups_.Find(guest.group);
  return !group || TakesJobs(*group);
}

void Core::State::JoinAny(GroupState& group, const std::string& name) {
  Guest* guest = generations_.Find(name);
  if (!guest) return Join(group, *jobs_.Find(name));
  Member& member = groups_.Join(group, name, guest->of.shape, 0);
  if (guest->of.base()) member.slot = Member::Slot::kLoaded;  // it needs none
  generations_.Place(*guest, group.name);
}

void Core::State::SayWhy(const std::string& name, const std::string& why) {
  if (Guest* guest = generations_.Find(name)) return generations_.Say(*guest, why);
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
