// The jobs that a job that fits nowhere may drive out, or send elsewhere (schedule.h).
#include <algorithm>
#include <cassert>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "planner/schedule/shapes.h"
#include "planner/schedule/state.h"

namespace lorad::planner {
namespace {

class Chooser {
 public:
  Chooser(const ClusterView& view, Footprints& sizes, const std::vector<const GroupState*>& groups,
          const std::vector<bool>& allowed, absl::FunctionRef<bool(size_t)> accepts,
          const Waiter& waiter, double points, Targets targets)
      : view_(view),
        sizes_(sizes),
        groups_(groups),
        allowed_(allowed),
        accepts_(accepts),
        waiter_(waiter),
        job_(*waiter.job),
        points_(points),
        targets_(targets) {
    if (!view.policy.fair_share) return;
    for (const GroupState* group : groups) {  // foresight's are not the view's
      for (const MemberState& member : group->members) {
        const bool runs = member.running != nullptr && !member.running->coming;
        if (runs) ++shares_[member.running->label_group];
      }
    }
  }

  std::optional<Eviction> Choose() const {
    std::optional<Eviction> best;
    Harm least;
    for (size_t g = 0; g < allowed_.size(); ++g) {
      if (!allowed_[g] || !groups_[g]->settled()) continue;
      std::optional<Eviction> eviction = Clear(g);
      if (!eviction) continue;
      const Harm harm = HarmOf(*eviction);
      if (best && !(harm < least)) continue;
      best = std::move(eviction);
      least = harm;
    }
    return best;
  }

 private:
  using Harm = std::tuple<int64_t, size_t, size_t>;  // priority evicted, evicted, re-placed

  struct Candidate {
    size_t member = 0;
    bool evictable = false;
    bool movable = false;
  };

  const RunningJob& Running(size_t group, size_t member) const {
    return *groups_[group]->members[member].running;
  }

  // The fewest leavers after whom the job has its room in the group, if there are such.
  std::optional<Eviction> Clear(size_t g) const {
    const GroupState& group = *groups_[g];
    // Who needs several workers drives out nobody of another base model, and those who have several
    // are not driven out by one: such groups drain.
    const bool several = waiter_.needs != nullptr || !group.stages.empty();
    if (several && group.base_model != job_.base_model) return std::nullopt;
    const Need need = NeedOf(group);
    StageBytes slot_bytes = group.slot_bytes;
    size_t jobs = group.jobs;
    for (const MemberState& member : group.members) {
      // Who finishes may have a long evaluation to do first.
      if (member.running == nullptr || member.works) continue;
      slot_bytes -= member.slot_bytes;
      --jobs;
    }
    // It waits for something else than room.
    if (jobs == group.jobs && HasRoom(group, need, slot_bytes, jobs)) return std::nullopt;
    std::vector<Candidate> candidates = CandidatesOf(g);
    std::vector<Candidate> chosen;
    for (const Candidate& candidate : candidates) {
      if (HasRoom(group, need, slot_bytes, jobs)) break;
      slot_bytes -= group.members[candidate.member].slot_bytes;
      --jobs;
      chosen.push_back(candidate);
    }
    if (!HasRoom(group, need, slot_bytes, jobs)) return std::nullopt;
    // A large one may have made those before it unnecessary; the most important stay first.
    for (size_t i = chosen.size(); i-- > 0;) {
      const StageBytes& bytes = group.members[chosen[i].member].slot_bytes;
      if (!HasRoom(group, need, slot_bytes + bytes, jobs + 1)) continue;
      slot_bytes += bytes;
      ++jobs;
      chosen.erase(chosen.begin() + static_cast<ptrdiff_t>(i));
    }
    return Settle(g, chosen);
  }

  // The job's need of the group's worker, the slots of its other jobs apart.
  struct Need {
    StageBytes bytes;
    bool alone = false;  // the group's base model is another, or the job shares with nobody
  };
  Need NeedOf(const GroupState& group) const {
    if (group.base_model != job_.base_model) {
      return {.bytes = sizes_.AloneOn(waiter_.job_class, group.worker_kind).bytes, .alone = true};
    }
    const GroupShape shape = ShapeWith(sizes_, group, waiter_.job_class, job_.resumes);
    return {.bytes = sizes_.GroupBytes(group.base, *group.model, shape, group.worker_kind) +
                     sizes_.SlotBytes(waiter_.job_class, group.worker_kind),
            .alone = job_.alone};
  }

  bool HasRoom(const GroupState& group, const Need& need, const StageBytes& slot_bytes,
               size_t jobs) const {
    const size_t others_max = need.alone ? 0 : static_cast<size_t>(group.shape.slots_max) - 1;
    return jobs <= others_max && sizes_.Fit(need.bytes + slot_bytes, group.worker_kind);
  }

  // Those who can be re-placed first, then the least important first.
  std::vector<Candidate> CandidatesOf(size_t g) const {
    std::vector<Candidate> candidates;
    for (size_t m = 0; m < groups_[g]->members.size(); ++m) {
      const RunningJob* running = groups_[g]->members[m].running;
      // One that is tried alone would stand before all others again (QueuedJob::alone).
      if (running == nullptr || running->leaving || running->coming || running->alone) continue;
      const bool had_its_time = running->running_s >= view_.policy.MinimumRun();
      Candidate candidate{.member = m};
      candidate.evictable = running->priority < job_.priority ||
                            (running->priority == job_.priority && had_its_time && points_ >= 1 &&
                             MayGiveWay(*running));
      // A job that was moved stays, but for a higher static priority; nor is it moved then.
      const bool suspect = running->company_max > 0 || running->alone;
      candidate.movable = !suspect && !running->stays &&
                          running->moved_s >= view_.policy.minimum_run_s &&
                          groups_[g]->stages.empty() && HasOtherGroup(g, m);
      if (candidate.evictable || candidate.movable) candidates.push_back(candidate);
    }
    std::stable_sort(
        candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
          const RunningJob& x = Running(g, a.member);
          const RunningJob& y = Running(g, b.member);
          return std::make_tuple(!a.movable, x.priority, -ShareOf(x.label_group), -x.arrival) <
                 std::make_tuple(!b.movable, y.priority, -ShareOf(y.label_group), -y.arrival);
        });
    return candidates;
  }

  // So many jobs of the label group run; 0 where shares are not fair.
  int64_t ShareOf(const std::string& label_group) const {
    const auto share = shares_.find(label_group);
    return share == shares_.end() ? 0 : share->second;
  }

  // A place goes to the job's label group from itself, or from one that has more.
  bool MayGiveWay(const RunningJob& running) const {
    return running.label_group == job_.label_group ||
           ShareOf(running.label_group) > ShareOf(job_.label_group) || shares_.empty();
  }

  // The share of a group that re-placed jobs take.
  struct Taken {
    StageBytes bytes;
    std::vector<ShapeFor> jobs;
    std::vector<JobWork> works;
  };

  bool HasOtherGroup(size_t g, size_t m) const {
    const std::vector<size_t>& groups = WithRoomFor(groups_[g]->members[m].job_class);
    return std::ranges::any_of(groups, [&](size_t other) { return MayGo(g, m, other); });
  }

  // One that ends in its company before the base model is loaded elsewhere ends where it is.
  bool MayGo(size_t g, size_t m, size_t other) const {
    const GroupState& from = *groups_[g];
    const GroupState& to = *groups_[other];
    if (other == g || !to.fresh() || !from.pace.known) return other != g;
    const TimeCoefficients& times = from.pace.times;
    const int64_t capacity = from.shape.capacity_tokens;
    // Rounds have more than the microbatches that the times are of: small models' mostly that.
    const double longer = std::max(1.0, MeasuredSlowness(from));
    const double end_s =
        longer * EndsOf(times, capacity, from.crew.jobs())[from.crew.Find(from.members[m].work)];
    return view_.move_s + to.delay_s < end_s;
  }

  // The open group of the base model with room for the member, beside what is taken of each, where
  // the sum of ends rises the least, or where that is too dear, with the fewest jobs.
  std::optional<size_t> OtherGroup(size_t g, size_t m, const std::vector<Taken>& taken) const {
    const MemberState& member = groups_[g]->members[m];
    std::optional<size_t> best;
    double least = 0;
    for (const size_t other : WithRoomFor(member.job_class)) {
      const GroupState& group = *groups_[other];
      if (!MayGo(g, m, other) || !HasRoomFor(member.job_class, group, taken[other])) continue;
      const double harm = targets_ == Targets::kFewestJobs
                              ? static_cast<double>(group.jobs + taken[other].jobs.size())
                              : RaiseOf(group, taken[other], member);
      if (best && harm >= least) continue;
      best = other;
      least = harm;
    }
    return best;
  }

  // Of the sum of ends, if the member comes after those.
  double RaiseOf(const GroupState& group, const Taken& taken, const MemberState& member) const {
    const int64_t capacity = group.fresh()
                                 ? ShapeFormed(member.job_class, group, taken)->capacity_tokens
                                 : group.shape.capacity_tokens;
    if (taken.works.empty()) return group.SumOfEndsWith(member.work, capacity) - group.SumOfEnds();
    Crew crew = group.crew;
    for (const JobWork& work : taken.works) crew.Add(work);
    return group.delay_s + crew.SumOfEnds(group.pace.times, capacity, &member.work) -
           crew.SumOfEnds(group.pace.times, capacity);
  }

  // Of a group that is not formed yet.
  std::optional<GroupShape> ShapeFormed(size_t job_class, const GroupState& group,
                                        const Taken& taken) const {
    std::vector<ShapeFor> jobs = taken.jobs;
    jobs.push_back({.job_class = job_class});
    return ShapeOf(sizes_, group, jobs);
  }

  bool HasRoomFor(size_t job_class, const GroupState& group, const Taken& taken) const {
    if (group.fresh()) return ShapeFormed(job_class, group, taken).has_value();
    return group.jobs + taken.jobs.size() < static_cast<size_t>(group.shape.slots_max) &&
           !sizes_.Avoids(job_class, group.worker_kind) &&
           sizes_.Fit(group.bytes + group.slot_bytes + taken.bytes +
                          sizes_.SlotBytes(job_class, group.worker_kind),
                      group.worker_kind);
  }

  // The groups that a job of that class could move to, once for each: where all are full, hundreds
  // of members ask.
  const std::vector<size_t>& WithRoomFor(size_t job_class) const {
    const auto [entry, is_new] = with_room_.try_emplace(job_class);
    if (!is_new) return entry->second;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const GroupState& group = *groups_[g];
      if (group.model == nullptr) continue;  // an idle worker of foresight/
      const bool takes_it = (group.fresh() && group.jobs == 0) ||
                            (group.settled() && group.stages.empty() && !group.alone &&
                             Covers(group.shape, sizes_.of(job_class)));
      if (takes_it && group.base == sizes_.of(job_class).base && HasRoomFor(job_class, group, {}) &&
          (g >= allowed_.size() || accepts_(g))) {
        entry->second.push_back(g);
      }
    }
    return entry->second;
  }

  // Where each goes; none where one that may only be re-placed finds the room taken.
  std::optional<Eviction> Settle(size_t g, const std::vector<Candidate>& chosen) const {
    Eviction eviction;
    eviction.group = g;
    std::vector<Taken> taken(groups_.size());
    for (const Candidate& candidate : chosen) {
      Eviction::Leaver leaver{candidate.member, std::nullopt};
      if (candidate.movable) leaver.to = OtherGroup(g, candidate.member, taken);
      if (!leaver.to && !candidate.evictable) return std::nullopt;
      if (leaver.to) {
        const MemberState& member = groups_[g]->members[candidate.member];
        Taken& share = taken[*leaver.to];
        share.bytes += sizes_.SlotBytes(member.job_class, groups_[*leaver.to]->worker_kind);
        share.jobs.push_back({.job_class = member.job_class});
        share.works.push_back(member.work);
      }
      eviction.leavers.push_back(leaver);
    }
    return eviction;
  }

  Harm HarmOf(const Eviction& eviction) const {
    int64_t priority = std::numeric_limits<int64_t>::min();
    size_t evicted = 0;
    for (const Eviction::Leaver& leaver : eviction.leavers) {
      if (leaver.to) continue;
      ++evicted;
      priority = std::max<int64_t>(priority, Running(eviction.group, leaver.member).priority);
    }
    return {priority, evicted, eviction.leavers.size() - evicted};
  }

  const ClusterView& view_;
  Footprints& sizes_;
  const std::vector<const GroupState*>& groups_;
  const std::vector<bool>& allowed_;
  const absl::FunctionRef<bool(size_t)> accepts_;
  const Waiter& waiter_;
  const QueuedJob& job_;
  const double points_;
  const Targets targets_;
  std::map<std::string_view, int64_t> shares_;  // running jobs by label group; empty: not fair
  mutable std::map<size_t, std::vector<size_t>> with_room_;  // groups, by class of jobs
};

}  // namespace

std::optional<Eviction> ChooseEviction(const ClusterView& view, Footprints& sizes,
                                       const std::vector<const GroupState*>& groups,
                                       const std::vector<bool>& allowed,
                                       absl::FunctionRef<bool(size_t)> accepts, const Waiter& job,
                                       double points, Targets targets) {
  return Chooser(view, sizes, groups, allowed, accepts, job, points, targets).Choose();
}

}  // namespace lorad::planner
