#include "planner/foresight/foresee.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "planner/foresight/line.h"
#include "planner/foresight/place.h"
#include "planner/foresight/record.h"
#include "planner/schedule/shapes.h"

namespace lorad::planner {
namespace {

class Simulation {
 public:
  explicit Simulation(const ClusterView& view)
      : round_(view), line_(round_, kLeaversMax), record_(view.queue.size()) {
    for (const WorkerView& worker : view.workers) {
      if (!worker.idle) round_.idle.push_back({&worker, round_.KindOf(worker)});
    }
    place_of_.resize(round_.idle.size());
    kept_for_.resize(round_.idle.size(), kNobody);
    for (const GroupState& group : round_.groups) AddGroup(group);
    for (size_t i = 0; i < round_.idle.size(); ++i) {
      if (round_.idle[i].worker->idle) AddWorker(i);
    }
    several_ = std::ranges::any_of(round_.queue, [](const Waiter& job) { return job.needs; }) ||
               std::ranges::any_of(places_, &Place::IsSeveral);
  }

  Foresight Run() {
    for (Place& place : places_) changed_.push_back(&place);
    Rearrange(0);
    while (true) {
      Place* next = nullptr;
      double at_s = kNever;
      for (Place& place : places_) {
        if (const double time_s = std::min(place.NextEnd(), place.turn_s); time_s < at_s) {
          next = &place;
          at_s = time_s;
        }
      }
      if (next == nullptr) break;
      if (next->turn_s <= at_s) {
        EvictFor(*next, at_s);
        continue;
      }
      EndFirst(*next, at_s);
      changed_ = {next};
      const bool was_last = next->group.jobs == 0;
      if (several_ && was_last) {
        Rearrange(at_s);
      } else {
        Fill(*next, at_s, kNobody);
      }
      if (was_last) LookForRoom(at_s);
    }
    return record_.Take();
  }

 private:
  static constexpr size_t kNobody = Line::kNobody;

  Place& NewPlace(std::vector<size_t> workers) {
    Place& place = places_.emplace_back();
    for (const size_t worker : workers) place_of_[worker] = &place;
    place.workers = std::move(workers);
    return place;
  }

  void Remove(Place& place) {
    std::erase(changed_, &place);
    places_.remove_if([&](const Place& one) { return &one == &place; });
  }

  // A worker without a group.
  Place& AddWorker(size_t worker) {
    Place& place = NewPlace({worker});
    place.idle = &round_.idle[worker];
    place.group.worker_kind = place.idle->worker_kind;
    return place;
  }

  std::vector<size_t> WorkersOf(const GroupState& group) {
    std::vector<size_t> workers;
    const auto add = [&](const std::string& name) {
      const auto of_name = [&](const IdleWorker& one) { return one.worker->name == name; };
      const auto found = std::ranges::find_if(round_.idle, of_name);
      if (found == round_.idle.end()) return;
      workers.push_back(static_cast<size_t>(found - round_.idle.begin()));
    };
    if (group.stages.empty()) add(group.worker);
    for (const StageView& stage : group.stages) add(stage.worker);
    return workers;
  }

  void AddGroup(const GroupState& group) {
    Place& place = NewPlace(WorkersOf(group));
    place.Take(group);
    // What is under way with it is over soon, where its workers take jobs at all.
    const auto takes = [&](size_t worker) {
      return !round_.idle[worker].worker->doubtful && !round_.idle[worker].worker->silent;
    };
    place.open = group.open || std::ranges::all_of(place.workers, takes);
    for (size_t i = 0; i < place.trainees.size(); ++i) {
      place.trainees[i]->number = record_.AddRunning(place.group.members[i].job);
    }
  }

  void EndFirst(Place& place, double now_s) {
    place.rounds = place.trainees[place.NextToEnd()]->last_round;
    place.now_s = now_s;
    record_.End(place.Remove(place.NextToEnd()).trainee->number, now_s);
  }

  // The first that could run alone on the place, or on one of its workers.
  size_t FirstFor(const Place& place) {
    size_t first = line_.FirstOn(place.group.worker_kind);
    for (const size_t kind : place.group.stage_kinds) {
      if (const size_t job = line_.FirstOn(kind); line_.IsBefore(job, first)) first = job;
    }
    return first;
  }

  // For whom one of the place's workers is kept: nobody behind that job comes to it.
  size_t KeptFor(const Place& place) const {
    size_t job = kNobody;
    for (const size_t worker : place.workers) {
      if (line_.IsBefore(kept_for_[worker], job)) job = kept_for_[worker];
    }
    return job;
  }

  void Form(Place& place, const Waiter& job, double now_s) {
    place.Form(round_, job.job->base_model, *job.job->model, job.job_class, now_s);
    place.begun_s = now_s;
  }

  void Join(Place& place, size_t job) {
    const Waiter& waiter = round_.queue[job];
    const size_t original = round_.view.queue.size();
    const size_t number = job < original
                              ? static_cast<size_t>(waiter.job - round_.view.queue.data())
                              : put_back_[job - original];
    record_.Start(number, place.now_s);
    place.Join(round_, waiter, number);
    line_.Leave(job);
  }

  // The jobs of the queue that come next, of those before `end`.
  void Fill(Place& place, double now_s, size_t end) {
    if (!place.open) return;
    place.AdvanceTo(now_s);
    place.turn_s = kNever;
    if (const size_t kept_for = KeptFor(place); line_.IsBefore(kept_for, end)) end = kept_for;
    while (true) {
      const size_t first = place.next = FirstFor(place);
      if (!line_.IsBefore(first, end)) return;
      const Waiter& job = round_.queue[first];
      const bool fits = round_.sizes.FitsAlone(job.job_class, place.group.worker_kind);
      if (fits && place.group.jobs == 0) {
        Form(place, job, now_s);
      } else if (!fits || !place.MakeRoom(round_, job)) {
        if (place.begun_s == now_s) TakeOvertakers(place, job, end);
        if (fits) place.turn_s = TurnOf(place, first, now_s, -kNever);
        return;
      }
      Join(place, first);
    }
  }

  // Those before `end` who may overtake the first that waits for the place.
  void TakeOvertakers(Place& place, const Waiter& first, size_t end) {
    while (place.group.jobs > 0) {
      const size_t next = line_.FirstOn(place.group.worker_kind, place.group.base);
      if (!line_.IsBefore(next, end) || !place.MakeRoom(round_, round_.queue[next], &first)) return;
      Join(place, next);
    }
  }

  // ---- evictions ----

  // Of its label group, as in Schedule().
  double ShareOf(const QueuedJob& job) const {
    double share = 0;
    if (!round_.view.policy.fair_share) return share;
    for (const Place& place : places_) {
      for (const auto& trainee : place.trainees) {
        share += trainee->running.label_group == job.label_group;
      }
    }
    return share;
  }

  // When the job may first evict someone of the place, of whom it could not by `failed_s`.
  double TurnOf(const Place& place, size_t job, double now_s, double failed_s) {
    const SchedulePolicy& policy = round_.view.policy;
    const QueuedJob& queued = *round_.queue[job].job;
    if (!policy.evict || queued.asks || leavers_ >= kLeaversMax) return kNever;
    const double settled_s = std::max(now_s, place.now_s);
    const double points = 1 + ShareOf(queued);
    const bool gathers = policy.points_per_hour > 0 && points <= policy.points_max;
    // Whole seconds count, as in PointsOf().
    const double aged_s = !gathers ? kNever
                                   : now_s - line_.WaitedBy(job, now_s) +
                                         std::ceil(points * 3600 / policy.points_per_hour);
    return place.TurnFor(policy, queued, {settled_s, aged_s, failed_s},
                         [&](size_t job_class) { return MayGo(place, job_class); });
  }

  // Whether one of its jobs might go to another group, or to a worker that is free.
  bool MayGo(const Place& from, size_t job_class) {
    return std::ranges::any_of(places_, [&](const Place& to) {
      const GroupState& group = to.group;
      if (&to == &from || IsFree(to)) return &to != &from;
      return to.open && !to.IsSeveral() && group.jobs > 0 && group.base == from.group.base &&
             !group.full() && !group.alone && Covers(group.shape, round_.sizes.of(job_class)) &&
             FitsIn(round_.sizes, group, job_class);
    });
  }

  // Those who wait may have room made for them by jobs that go to a worker that has become free.
  void LookForRoom(double now_s) {
    if (std::ranges::none_of(places_, [&](const Place& one) { return IsFree(one); })) return;
    for (Place& place : places_) {
      const size_t first = place.group.jobs > 0 ? FirstFor(place) : kNobody;
      if (!line_.IsBefore(first, KeptFor(place))) continue;
      place.turn_s = std::min(place.turn_s, TurnOf(place, first, now_s, -kNever));
    }
  }

  // The first that waits for the place has others evicted, from whichever place that harms least.
  void EvictFor(Place& place, double now_s) {
    const size_t job = FirstFor(place);
    const auto may_now = [&](const Place& one) {
      const QueuedJob& queued = *round_.queue[job].job;
      const bool parted = one.group.base_model == queued.base_model && !Mix(one.group, queued);
      return one.turn_s <= now_s && FirstFor(one) == job && line_.IsBefore(job, KeptFor(one)) &&
             !parted;
    };
    if (job == kNobody || !may_now(place)) {
      place.turn_s = kNever;
      return;
    }
    std::vector<Place*> places;
    std::vector<const GroupState*> groups;
    std::vector<bool> allowed;
    for (Place& one : places_) {
      places.push_back(&one);
      groups.push_back(&one.group);
      allowed.push_back(may_now(one));
      one.SetMoment(now_s, allowed.back());
    }
    const std::list<Refuge> refuges = RefugesFrom(places, allowed);
    for (const Refuge& refuge : refuges) {
      places.push_back(refuge.place);
      groups.push_back(&refuge.group);
    }
    const auto accepts = [&](size_t p) {  // nobody before the job waits for it, or has it kept
      const size_t kept_for = KeptFor(*places[p]);
      return !line_.IsBefore(FirstFor(*places[p]), job) && kept_for != job &&
             !line_.IsBefore(kept_for, job);
    };
    const Waiter waiter = round_.queue[job];
    const double points =
        PointsOf(round_.view.policy, static_cast<int64_t>(line_.WaitedBy(job, now_s))) -
        ShareOf(*waiter.job);
    const std::optional<Eviction> eviction = ChooseEviction(
        round_.view, round_.sizes, groups, allowed, accepts, waiter, points, Targets::kFewestJobs);
    if (!eviction || eviction->leavers.empty()) {
      place.turn_s = TurnOf(place, job, now_s, now_s);
      return;
    }
    leavers_ += eviction->leavers.size();
    const size_t evicted = Carry(*eviction, places, now_s);
    Place& left = *places[eviction->group];
    if (left.group.jobs == 0) Form(left, waiter, now_s);
    if (left.group.base_model == waiter.job->base_model) {
      left.GrowFor(round_, waiter.job_class, waiter.job->resumes);
    }
    if (left.HasRoom(round_, waiter)) Join(left, job);
    for (Place* one : places) {
      if (one == &left || line_.IsBefore(evicted, one->next)) Fill(*one, now_s, kNobody);
    }
  }

  // Its worker trains nobody, and is kept for nobody.
  bool IsFree(const Place& place) const {
    return place.open && place.group.jobs == 0 && !place.IsSeveral() && KeptFor(place) == kNobody;
  }

  // A group that jobs which make room for another would have to themselves.
  struct Refuge {
    Place* place = nullptr;
    GroupState group;
  };
  std::list<Refuge> RefugesFrom(const std::vector<Place*>& places,
                                const std::vector<bool>& allowed) {
    std::list<Refuge> refuges;
    std::set<size_t> bases;
    for (size_t p = 0; p < allowed.size(); ++p) {
      const GroupState& from = places[p]->group;
      if (!allowed[p] || places[p]->IsSeveral() || !bases.insert(from.base).second) continue;
      for (Place* place : places) {
        if (!IsFree(*place) || place->group.base_model == from.base_model) continue;
        refuges.push_back({place, StateOf(round_.idle[place->workers[0]], from.base_model,
                                          *from.model, round_.sizes, round_.paces)});
      }
    }
    return refuges;
  }

  // They leave, to be queued again or for another place. The first in the queue of those.
  size_t Carry(const Eviction& eviction, const std::vector<Place*>& places, double now_s) {
    Place& from = *places[eviction.group];
    from.AdvanceTo(now_s);
    std::vector<Eviction::Leaver> leavers = eviction.leavers;
    // The last first, as the last of all takes the place of each.
    std::ranges::sort(leavers, std::greater<>(), &Eviction::Leaver::member);
    size_t first = kNobody;
    for (const Eviction::Leaver& leaver : leavers) {
      auto [member, trainee] = from.Remove(leaver.member);
      if (!leaver.to) {
        const size_t job = line_.PutBack(from.group, member, now_s);
        put_back_.push_back(trainee->number);
        if (line_.IsBefore(job, first)) first = job;
        continue;
      }
      Place& to = *places[*leaver.to];
      if (to.group.jobs == 0 && to.group.base_model != from.group.base_model) {
        to.Form(round_, from.group.base_model, *from.group.model, member.job_class, now_s);
      }
      to.GrowFor(round_, member.job_class, false);
      to.AdvanceTo(now_s);
      trainee->began_s = trainee->moved_at_s = now_s;
      member.slot_bytes = round_.sizes.SlotBytes(member.job_class, to.group.worker_kind);
      to.Add(std::move(member), std::move(trainee));
    }
    return first;
  }

  // ---- several workers: put together and parted where places have no job ----

  // Who may come to places that have changed, in queue order.
  void Rearrange(double now_s) {
    for (Place& place : places_) {
      if (place.group.jobs == 0 && std::ranges::find(changed_, &place) == changed_.end()) {
        changed_.push_back(&place);
      }
    }
    const auto fill = [&](size_t end) {
      for (Place* place : changed_) Fill(*place, now_s, end);
    };
    if (several_) {
      fill(line_.FirstInNeed());
      Part();
      for (const size_t job : InNeed()) {
        fill(job);
        if (std::ranges::find(kept_for_, job) == kept_for_.end()) Keep(job, now_s);
        Part();
        PutTogether(job, now_s);
      }
    }
    fill(kNobody);
  }

  // Workers that are together without a job stay so for the next that could run on all of them, and
  // only for that.
  void Part() {
    std::vector<Place*> parted;
    for (Place& place : places_) {
      if (!place.IsSeveral() || !place.open || place.group.jobs > 0) continue;
      const size_t first = FirstFor(place), kept_for = KeptFor(place);
      if (first == kNobody && kept_for == kNobody) continue;
      if (line_.IsBefore(first, kept_for) &&
          round_.sizes.FitsAlone(round_.queue[first].job_class, place.group.worker_kind)) {
        continue;
      }
      parted.push_back(&place);
    }
    for (Place* place : parted) {
      for (const size_t worker : place->workers) changed_.push_back(&AddWorker(worker));
      Remove(*place);
    }
  }

  // In queue order, the first job of each base model that needs several workers and has no place to
  // wait for.
  std::vector<size_t> InNeed() {
    std::map<size_t, size_t> first_of;  // by base model
    for (size_t job_class = 0; job_class < line_.classes(); ++job_class) {
      const size_t job = line_.FirstOf(job_class);
      if (job == kNobody || round_.queue[job].needs == nullptr) continue;
      const size_t base = round_.sizes.of(job_class).base;
      const bool has_place = std::ranges::any_of(places_, [&](const Place& place) {
        return place.IsSeveral() && place.group.base == base &&
               round_.sizes.FitsAlone(job_class, place.group.worker_kind);
      });
      if (has_place) continue;
      const auto [first, is_new] = first_of.try_emplace(base, job);
      if (!is_new && line_.IsBefore(job, first->second)) first->second = job;
    }
    std::vector<size_t> jobs;
    for (const auto& [base, job] : first_of) jobs.push_back(job);
    std::ranges::sort(jobs, [&](size_t a, size_t b) { return line_.IsBefore(a, b); });
    return jobs;
  }

  // Those that will be free the soonest and hold the job are kept for it, as in KeepWorkers.
  void Keep(size_t job, double now_s) {
    std::vector<size_t> order;
    for (size_t worker = 0; worker < round_.idle.size(); ++worker) {
      const Place* place = place_of_[worker];
      if (place != nullptr && place->open && KeptFor(*place) == kNobody) order.push_back(worker);
    }
    const auto free_s = [&](size_t worker) {
      const Place& place = *place_of_[worker];
      return place.group.jobs == 0 ? now_s : place.LastEnd();
    };
    const auto key = [&](size_t worker) {
      return std::pair(round_.idle[worker].worker->doubtful, free_s(worker));
    };
    std::ranges::stable_sort(order, {}, key);
    std::vector<size_t> kept = FirstThatHold(job, order, now_s, free_s);
    if (kept.empty()) return;
    const size_t last = *std::ranges::max_element(kept, {}, key);
    if (!key(last).first && free_s(last) > now_s) {
      std::erase_if(order, [&](size_t worker) { return key(last) < key(worker); });
      std::ranges::stable_sort(order, std::ranges::greater(), free_s);
      kept = FirstThatHold(job, order, now_s, free_s);
    }
    for (const size_t worker : kept) kept_for_[worker] = job;
  }

  // The fewest of the workers, from the first on, that hold the job; none where not even all do.
  std::vector<size_t> FirstThatHold(size_t job, const std::vector<size_t>& workers, double now_s,
                                    const std::function<double(size_t)>& free_s) {
    const Waiter& waiter = round_.queue[job];
    for (IdleWorker& idle : round_.idle) idle.taken = true;
    for (size_t i = 0; i < workers.size(); ++i) {
      round_.idle[workers[i]].taken = false;
      if (i + 1 < waiter.needs->workers.size()) continue;
      // All that are free are chosen from; then one more each time.
      const bool is_free = free_s(workers[i]) <= now_s;
      if (is_free && i + 1 < workers.size() && free_s(workers[i + 1]) <= now_s) continue;
      const std::optional<Placement> placement = PlaceOnIdle(round_, waiter, {});
      if (placement) return placement->workers;
    }
    return {};
  }

  // The workers that are kept for the job, once they all are free.
  void PutTogether(size_t job, double now_s) {
    for (size_t worker = 0; worker < round_.idle.size(); ++worker) {
      const bool kept = kept_for_[worker] == job;
      round_.idle[worker].taken = !kept;
      if (kept && (place_of_[worker]->IsSeveral() || place_of_[worker]->group.jobs > 0)) return;
    }
    const Waiter waiter = round_.queue[job];
    const std::optional<Placement> placement = PlaceOnIdle(round_, waiter, {});
    if (!placement) return;  // none is kept
    for (size_t worker : placement->workers) {
      kept_for_[worker] = kNobody;
      Remove(*place_of_[worker]);
    }
    Place& place = NewPlace(placement->workers);
    changed_.push_back(&place);
    place.group = StateOf(round_.idle, *placement, waiter.job->base_model, *waiter.job->model,
                          round_.sizes, round_.paces);
    place.load_s = std::exchange(place.group.delay_s, 0);
    Form(place, waiter, now_s);
    Join(place, job);
  }

  Round round_;
  Line line_;
  size_t leavers_ = 0;  // for whom others came
  std::list<Place> places_;
  std::vector<Place*> place_of_;  // by worker; null: of a group that is not in the view
  std::vector<size_t> kept_for_;  // by worker, the job of the queue; kNobody: for none
  bool several_ = false;          // some places or jobs are of several workers
  std::vector<Place*> changed_;   // that may take jobs by what has just ended
  Record record_;
  std::vector<size_t> put_back_;  // numbers of who came into the queue since, in its order
};

}  // namespace

Foresight Foresee(const ClusterView& view) { return Simulation(view).Run(); }

}  // namespace lorad::planner
