#include "planner/schedule/schedule.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/schedule/choose.h"
#include "planner/schedule/improve.h"
#include "planner/schedule/regrow.h"
#include "planner/schedule/shapes.h"
#include "planner/schedule/state.h"
#include "planner/schedule/why.h"

namespace lorad::planner {
namespace {

// Two jobs of which the policy knows no difference but their order, as long as they wait.
bool FareAlike(const QueuedJob& a, const QueuedJob& b) {
  const auto key = [](const QueuedJob& job) {
    return std::tie(job.base_model, job.priority, job.longest_sequence, *job.adapter,
                    job.step_tokens, job.step_squared_lengths, job.label_group, job.resumes,
                    job.first_of_equals, job.company_max, job.alone, job.asks, job.to,
                    job.trained_on, job.avoids);
  };
  return key(a) == key(b);
}

class Scheduler {
 public:
  explicit Scheduler(const ClusterView& view) : view_(view), round_(view), lookahead_(round_) {}

  std::vector<Decision> Run() {
    answers_.reserve(round_.queue.size());
    const Waiter* before = nullptr;
    int alike = 0;  // that wait, one right behind the other
    for (size_t i = 0; i < round_.queue.size(); ++i) {
      const Waiter& job = round_.queue[i];
      if (before == nullptr || !FareAlike(*before->job, *job.job)) alike = 0;
      // The second waits behind the first, and so does the third: nothing else has changed.
      alike = (alike >= 2 ? WaitLike(*before, job) : Place(i)) ? alike + 1 : 0;
      before = &job;
    }
    const Improvement improvement = Improve(round_, lookahead_);
    std::vector<bool> touched(round_.groups.size(), false);
    std::vector<Decision> decisions = Answers();
    for (const size_t vacated : improvement.vacated) {
      Decision& decision = decisions.emplace_back();
      decision.kind = Decision::Kind::kDissolve;
      decision.group = round_.groups[vacated].name;
    }
    for (const Replacement& replacement : improvement.replacements) {
      touched[replacement.from] = touched[replacement.to] = true;
      decisions.push_back(Replaced(replacement));
    }
    for (const Regrowth& regrowth : Regrow(round_, touched)) {
      Decision& decision = decisions.emplace_back();
      decision.kind = Decision::Kind::kReform;
      decision.group = round_.groups[regrowth.group].name;
      decision.shape = regrowth.shape;
      decision.why = regrowth.why;
    }
    return decisions;
  }

 private:
  // A decision, or a job that was placed: what becomes of that is said once all are.
  struct Answer {
    Decision decision;
    std::optional<size_t> placed;  // index of Round::queue
  };

  // Whether it waits, and nothing was decided but that.
  bool Place(size_t i) {
    const size_t decided = answers_.size();
    changed_ = false;
    PlaceOrWait(i);
    return !changed_ && answers_.size() == decided + 1 && !answers_.back().placed &&
           answers_.back().decision.kind == Decision::Kind::kWait;
  }

  // As the one before it, which waits. A crowd of one shape costs no more than two of them.
  bool WaitLike(const Waiter& before, const Waiter& job) {
    round_.waiting.push_back(&job);
    if (round_.settled.count(before.job) > 0) round_.settled.insert(job.job);
    const std::string why = answers_.back().decision.why;
    Decide(Decision::Kind::kWait, job).why = why;
    return true;
  }

  void PlaceOrWait(size_t i) {
    const Waiter& job = round_.queue[i];
    const auto place = ChoosePlace(round_, lookahead_, i);
    if (place && place->vacates) return Vacate(round_.groups[*place->group], job);
    if (place) {
      const size_t group = place->group ? *place->group : Form(job, *place);
      Add(round_.groups[group], job, place->shape, round_.sizes);
      answers_.push_back({{}, i});
      return;
    }
    round_.waiting.push_back(&job);
    KeepWorkers(round_, job);
    const bool parted = PartedFrom(round_, job) != nullptr;
    if (Dissolve(job)) return;
    // Who is kept out of a group for suspicion alone is soon let in: no group drains for it
    // meanwhile, but others make room for one that is no suspect, or is to be alone.
    const bool awaits = Awaited(round_, job) != nullptr;
    const bool stays_out = parted && job.job->company_max > 0 && !job.job->alone;
    if (!stays_out && (Reform(job, awaits) || ShareRoom(job) || (!awaits && Evict(job)))) return;
    if (parted && job.job->alone) KeepOne(round_, job);
    const GroupState* const makes_room = MakesRoomFor(round_, job);
    if (makes_room != nullptr) Promise(IndexOf(*makes_room), job);
    if (parted || makes_room != nullptr) round_.settled.insert(job.job);
    Decide(Decision::Kind::kWait, job).why = WhyWait(round_, job);
  }

  Decision& Decide(Decision::Kind kind, const Waiter& job) {
    Decision& decision = answers_.emplace_back().decision;
    decision.kind = kind;
    decision.jobs = {job.job->job};
    decision.place = static_cast<int>(round_.waiting.size());
    return decision;
  }

  // The worker of a group of another base model, which leaves it to a job: what will be formed there.
  struct Room {
    size_t group = 0;  // that leaves, of Round::groups
    const Waiter* first = nullptr;
    GroupState formed;
  };

  size_t IndexOf(const GroupState& group) const {
    return static_cast<size_t>(&group - round_.groups.data());
  }

  void Promise(size_t group, const Waiter& job) {
    const GroupState& leaves = round_.groups[group];
    const auto worker = std::ranges::find(round_.view.workers, leaves.worker, &WorkerView::name);
    const bool is_known = worker != round_.view.workers.end() && leaves.stages.empty();
    const bool shares = job.needs == nullptr && !job.job->alone &&
                        round_.sizes.FitsAlone(job.job_class, leaves.worker_kind);
    if (!is_known || !shares || leaves.base_model == job.job->base_model) return;
    const IdleWorker there{.worker = &*worker, .worker_kind = leaves.worker_kind};
    Room& room = rooms_.emplace_back();
    room.group = group;
    room.first = &job;
    room.formed = StateOf(there, job.job->base_model, *job.job->model, round_.sizes, round_.paces);
    Add(room.formed, job, round_.sizes.AloneOn(job.job_class, leaves.worker_kind).shape,
        round_.sizes);
  }

  // Who has room beside a job ahead, where that gets a worker, drives out nobody elsewhere.
  bool ShareRoom(const Waiter& job) {
    if (job.needs != nullptr || job.job->asks) return false;
    for (Room& room : rooms_) {
      if (room.formed.base != round_.sizes.of(job.job_class).base || !Mix(room.formed, *job.job)) {
        continue;
      }
      const auto shape = ShapeToJoin(round_.sizes, room.formed, job.job_class, job.job->resumes);
      if (!shape || !round_.Helps(room.formed, *shape, *job.job, job.work)) continue;
      Add(room.formed, job, *shape, round_.sizes);
      round_.settled.insert(job.job);
      changed_ = true;
      Decide(Decision::Kind::kWait, job).why =
          absl::StrCat(NameOf(round_.groups[room.group]), " makes room for ", room.first->job->job,
                       ", and for it beside that");
      return true;
    }
    return false;
  }

  // The index of the new group.
  size_t Form(const Waiter& job, const planner::Place& place) {
    const std::string& base_model = job.job->base_model;
    const ModelShape& model = *job.job->model;
    if (place.several) {
      for (const size_t idle : place.several->workers) round_.idle[idle].taken = true;
      round_.groups.push_back(
          StateOf(round_.idle, *place.several, base_model, model, round_.sizes, round_.paces));
    } else {
      round_.idle[place.idle].taken = true;
      round_.groups.push_back(
          StateOf(round_.idle[place.idle], base_model, model, round_.sizes, round_.paces));
    }
    return round_.groups.size() - 1;
  }

  // A job that does not fit beside the group's jobs in any shape waits for one to end. While it awaits
  // another group, only one without jobs is formed again: that interrupts nobody.
  bool Reform(const Waiter& job, bool awaits) {
    for (GroupState& group : round_.groups) {
      if (awaits && group.jobs > 0) continue;
      // A job ahead decides what becomes of the group.
      if (!group.settled() || group.base_model != job.job->base_model ||
          round_.Ahead(group) != &job || !Mix(group, *job.job)) {
        continue;
      }
      const auto shape =
          group.joined.empty()
              ? ShapeFormedAgain(round_.sizes, group, ShapeFor{job.job_class, job.job->resumes})
              : std::nullopt;
      if (!shape || !round_.Helps(group, *shape, *job.job, job.work)) continue;
      group.open = false;
      group.changes = true;
      Decision& decision = Decide(Decision::Kind::kReform, job);
      decision.group = group.name;
      decision.shape = *shape;
      return true;
    }
    return false;
  }

  // Or such alone as are late to come to it.
  static bool HasNoJobs(const GroupState& group) {
    const auto late = std::ranges::count_if(group.members, [](const MemberState& member) {
      return member.running != nullptr && member.running->comes_late;
    });
    return static_cast<int64_t>(group.jobs) == late;
  }

  // A group without jobs makes way, also one of several workers of which one takes no jobs, for the
  // others do. Where a group is being formed that the job could join, only one of a base model that
  // no job of the queue is of: its worker idles otherwise.
  bool Dissolve(const Waiter& job) {
    const GroupState* const awaited = Awaited(round_, job);
    if (awaited != nullptr && !awaited->forming) return false;
    for (GroupState& group : round_.groups) {
      const bool makes_way = group.settled() || (group.rests && group.stages.size() > 1);
      if (!makes_way || !HasNoJobs(group) || !round_.FitsAlone(job, group)) continue;
      if (awaited != nullptr && lookahead_.Asked(group)) continue;
      group.open = group.rests = false;
      Decide(Decision::Kind::kDissolve, job).group = group.name;
      Promise(IndexOf(group), job);
      return true;
    }
    return false;
  }

  // The job waits for the group's worker, and keeps no others from theirs meanwhile.
  void Vacate(GroupState& group, const Waiter& job) {
    round_.waiting.push_back(&job);
    round_.settled.insert(job.job);
    group.open = false;
    changed_ = true;
    Decide(Decision::Kind::kDissolve, job).group = group.name;
    Promise(IndexOf(group), job);
  }

  // A group that jobs which make room for another would have to themselves.
  struct Refuge {
    size_t idle = 0;  // index of Round::idle
    GroupState group;
    std::vector<ShapeFor> jobs;
  };

  std::vector<Refuge> RefugesFrom(const std::vector<bool>& allowed) {
    std::vector<Refuge> refuges;
    std::set<size_t> bases;
    for (size_t g = 0; g < allowed.size(); ++g) {
      const GroupState& group = round_.groups[g];
      if (!allowed[g] || !group.stages.empty() || !bases.insert(group.base).second) continue;
      for (auto& [idle, on_idle] : OnIdle(round_, group)) {
        refuges.push_back({.idle = idle, .group = std::move(on_idle), .jobs = {}});
      }
    }
    return refuges;
  }

  // Evicts from groups that do not drain for a job ahead of it.
  bool Evict(const Waiter& job) {
    if (!view_.policy.evict || job.job->asks) return false;
    std::vector<const GroupState*> groups;
    std::vector<bool> allowed;
    for (const GroupState& group : round_.groups) {
      groups.push_back(&group);
      const bool parted = group.base_model == job.job->base_model && !Mix(group, *job.job);
      allowed.push_back(round_.Ahead(group) == &job && (!parted || job.job->alone));
    }
    const auto accepts = [&](size_t g) {
      GroupState& group = round_.groups[g];
      if (group.kept_for != nullptr) return false;
      const Waiter* const ahead = round_.Ahead(group);
      return ahead == nullptr || ahead == &job;
    };
    std::vector<Refuge> refuges = RefugesFrom(allowed);
    for (const Refuge& refuge : refuges) groups.push_back(&refuge.group);
    const double points = PointsOf(view_.policy, job.job->waited_s) - ShareOf(*job.job);
    const std::optional<Eviction> eviction = ChooseEviction(
        view_, round_.sizes, groups, allowed, accepts, job, points, Targets::kLeastEnds);
    if (!eviction) return false;
    GroupState& group = round_.groups[eviction->group];
    group.open = false;
    changed_ = true;
    round_.settled.insert(job.job);
    for (const Eviction::Leaver& leaver : eviction->leavers) {
      if (!leaver.to) continue;
      const MemberState& member = group.members[leaver.member];
      Refuge* const refuge =
          *leaver.to < allowed.size() ? nullptr : &refuges[*leaver.to - allowed.size()];
      if (refuge != nullptr) refuge->jobs.push_back({.job_class = member.job_class});
      GroupState& to = refuge != nullptr ? refuge->group : round_.groups[*leaver.to];
      to.slot_bytes += round_.sizes.SlotBytes(member.job_class, to.worker_kind);
      to.crew.Add(member.work);
      to.touched = true;
      ++to.jobs;
    }
    for (Refuge& refuge : refuges) {
      if (!refuge.jobs.empty()) Take(refuge);
    }
    for (const Eviction::Leaver& leaver : eviction->leavers) {
      Decision& decision = answers_.emplace_back().decision;
      decision.kind = leaver.to ? Decision::Kind::kReplace : Decision::Kind::kEvict;
      decision.jobs = {group.members[leaver.member].job};
      decision.group = group.name;
      decision.why_job = job.job->job;
      if (leaver.to) SetTarget(*groups[*leaver.to], &decision);
    }
    Decision& decision = Decide(Decision::Kind::kWait, job);
    decision.why = MakingRoom(group);
    for (Refuge& refuge : refuges) {
      if (!refuge.jobs.empty()) round_.groups.push_back(std::move(refuge.group));
    }
    Promise(eviction->group, job);
    return true;
  }

  // Nobody else comes to it in this round.
  void Take(Refuge& refuge) {
    GroupState& group = refuge.group;
    group.shape = *ShapeOf(round_.sizes, group, refuge.jobs);
    group.bytes = round_.sizes.GroupBytes(group.base, *group.model, group.shape, group.worker_kind);
    group.open = false;
    round_.idle[refuge.idle].taken = true;
  }

  // Of a job that goes on there.
  static void SetTarget(const GroupState& to, Decision* decision) {
    decision->to = to.name;
    if (!to.fresh()) return;
    decision->worker = to.worker;
    decision->base_model = to.base_model;
    decision->shape = to.shape;
  }

  // Running jobs of its label group, which count against it.
  double ShareOf(const QueuedJob& job) const {
    if (!view_.policy.fair_share) return 0;
    double share = 0;
    for (const GroupView& group : view_.groups) {
      for (const RunningJob& running : group.running) {
        share += running.label_group == job.label_group;
      }
    }
    return share;
  }

  // The decisions, of a group that is formed at the first of its jobs.
  std::vector<Decision> Answers() {
    std::vector<const GroupState*> group_of(round_.queue.size(), nullptr);
    for (const GroupState& group : round_.groups) {
      for (const Waiter* job : group.joined) {
        group_of[static_cast<size_t>(job - round_.queue.data())] = &group;
      }
    }
    std::vector<Decision> decisions;
    decisions.reserve(answers_.size());
    for (Answer& answer : answers_) {
      if (!answer.placed) {
        decisions.push_back(std::move(answer.decision));
        continue;
      }
      const GroupState& group = *group_of[*answer.placed];
      const Waiter& job = round_.queue[*answer.placed];
      if (group.fresh() && group.joined.front() != &job) continue;
      Decision& decision = decisions.emplace_back();
      if (!group.fresh()) {
        decision.kind = Decision::Kind::kAdmit;
        decision.jobs = {job.job->job};
        decision.group = group.name;
        continue;
      }
      decision.kind = Decision::Kind::kFormGroup;
      for (const Waiter* joined : group.joined) decision.jobs.push_back(joined->job->job);
      decision.worker = group.worker;
      decision.base_model = group.base_model;
      decision.shape = group.shape;
      decision.stages = group.stages;
    }
    return decisions;
  }

  Decision Replaced(const Replacement& replacement) const {
    const GroupState& from = round_.groups[replacement.from];
    const GroupState& to = round_.groups[replacement.to];
    Decision decision;
    decision.kind = Decision::Kind::kReplace;
    decision.jobs = {from.members[replacement.member].job};
    decision.group = from.name;
    decision.why = replacement.why;
    SetTarget(to, &decision);
    return decision;
  }

  const ClusterView& view_;
  Round round_;
  Lookahead lookahead_;
  std::vector<Answer> answers_;
  std::vector<Room> rooms_;
  bool changed_ = false;  // a group was closed for the job that is being placed
};

}  // namespace

std::vector<Decision> Schedule(const ClusterView& view) { return Scheduler(view).Run(); }

}  // namespace lorad::planner
