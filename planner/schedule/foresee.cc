#include "planner/schedule/foresee.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "planner/schedule/shapes.h"
#include "planner/schedule/state.h"

namespace lorad::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// A measurement that says more than that is of something else: of jobs that have just come, say.
constexpr double kSlownessMax = 16;

struct Trainee {
  double last_round = 0;  // of the group, after which it ends
  std::string job;
  JobWork work;  // as it is in the group's crew
  StageBytes slot_bytes;

  bool operator>(const Trainee& other) const { return last_round > other.last_round; }
};

// A worker, or several that are together, with their group, in simulated time.
struct Place {
  GroupState group;             // what decides who fits
  std::vector<size_t> workers;  // indexes of Round::idle, which has all workers here
  const IdleWorker* idle = nullptr;
  bool open = true;   // takes jobs at all
  double load_s = 0;  // of several idle workers: until the first group is formed
  double now_s = 0;   // `rounds` were done by then; later than the simulation where it is formed
  double rounds = 0;
  double last_round = 0;  // after which all that came into it have ended
  double longest_step_ms = 0;
  bool paced = false;   // `slowness` was measured
  double slowness = 1;  // as many times as long as by the time model its rounds have lasted
  std::priority_queue<Trainee, std::vector<Trainee>, std::greater<>> trainees;

  double ModelSeconds() const {
    const double ms =
        RoundMs(group.pace.times, group.crew.step_tokens(), group.shape.capacity_tokens);
    return std::max(ms, longest_step_ms) / 1000;
  }
  // On several workers a round lasts no less than the step of any job does where none overlaps it.
  // Where the group's pace was measured that has it already.
  void SetLongestStep() {
    longest_step_ms = 0;
    if (group.stages.empty() || paced) return;
    const int64_t capacity = group.shape.capacity_tokens;
    for (const JobWork& job : group.crew.jobs()) {
      const double alone_ms = RoundMs(group.pace.times, job.step_tokens, capacity) *
                              FillAndDrainFactor(job.step_tokens, capacity, group.stages.size());
      longest_step_ms = std::max(longest_step_ms, alone_ms);
    }
  }
  double RoundSeconds() const { return slowness * ModelSeconds(); }
  double NextEnd() const {
    if (trainees.empty()) return kNever;
    return now_s + (trainees.top().last_round - rounds) * RoundSeconds();
  }
  // When the last of its jobs ends, were none to end before.
  double LastEnd() const { return now_s + (last_round - rounds) * RoundSeconds(); }
  void AdvanceTo(double time_s) {
    if (time_s <= now_s) return;
    if (!trainees.empty()) rounds += (time_s - now_s) / RoundSeconds();
    now_s = time_s;
  }
  // REQUIRES: the group's crew has it.
  void Begin(const std::string& job, const JobWork& work, const StageBytes& slot_bytes) {
    const double last = rounds + static_cast<double>(work.remaining_steps);
    trainees.push({last, job, work, slot_bytes});
    last_round = std::max(last_round, last);
  }
};

class Simulation {
 public:
  explicit Simulation(const ClusterView& view) : round_(view) {
    foreseen_.reserve(2 * round_.queue.size());
    for (size_t i = 0; i < round_.queue.size(); ++i) {
      const size_t job_class = round_.queue[i].job_class;
      if (waiting_.size() <= job_class) waiting_.resize(job_class + 1);
      waiting_[job_class].push_back(i);
    }
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
               std::ranges::any_of(places_, [](const Place& place) { return IsSeveral(place); });
  }

  Foresight Run() {
    for (Place& place : places_) changed_.push_back(&place);
    Rearrange(0);
    while (true) {
      Place* next = nullptr;
      double at_s = kNever;
      for (Place& place : places_) {
        if (const double end_s = place.NextEnd(); end_s < at_s) {
          next = &place;
          at_s = end_s;
        }
      }
      if (next == nullptr) return std::move(foreseen_);
      EndFirst(*next, at_s);
      changed_ = {next};
      if (several_ && next->group.jobs == 0) {
        Rearrange(at_s);
      } else {
        Fill(*next, at_s, kNobody);
      }
    }
  }

 private:
  static constexpr size_t kNobody = std::numeric_limits<size_t>::max();

  static bool IsSeveral(const Place& place) { return !place.group.stages.empty(); }

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
    place.group = group;
    place.open = group.open;
    place.now_s = group.delay_s;
    for (const MemberState& member : group.members) {
      if (member.works) {
        place.Begin(member.job, member.work, member.slot_bytes);
      } else {
        place.group.slot_bytes -= member.slot_bytes;
        --place.group.jobs;
      }
    }
    place.paced = group.tokens_per_second > 0 && !place.trainees.empty();
    place.SetLongestStep();
    if (!place.paced) return;
    const auto tokens = static_cast<double>(group.crew.step_tokens());
    place.slowness = std::clamp(tokens / group.tokens_per_second / place.ModelSeconds(),
                                1 / kSlownessMax, kSlownessMax);
  }

  void EndFirst(Place& place, double now_s) {
    const Trainee ended = place.trainees.top();
    place.rounds = ended.last_round;
    place.now_s = now_s;
    place.trainees.pop();
    place.group.crew.Remove(ended.work);
    place.SetLongestStep();
    place.group.slot_bytes -= ended.slot_bytes;
    --place.group.jobs;
    foreseen_[ended.job].end_s = now_s;
  }

  // The first of the queue for which `could_run` is true of its class; kNobody: none waits.
  template <typename CouldRun>
  size_t First(const CouldRun& could_run) const {
    size_t first = kNobody;
    for (size_t job_class = 0; job_class < waiting_.size(); ++job_class) {
      const std::deque<size_t>& jobs = waiting_[job_class];
      if (!jobs.empty() && jobs.front() < first && could_run(job_class)) first = jobs.front();
    }
    return first;
  }

  // The first that could run alone on the place, or on one of its workers.
  size_t FirstFor(const Place& place) {
    return First([&](size_t job_class) {
      const auto fits = [&](size_t kind) { return round_.sizes.FitsAlone(job_class, kind); };
      return fits(place.group.worker_kind) || std::ranges::any_of(place.group.stage_kinds, fits);
    });
  }

  // For whom one of the place's workers is kept: nobody behind that job comes to it.
  size_t KeptFor(const Place& place) const {
    size_t job = kNobody;
    for (const size_t worker : place.workers) job = std::min(job, kept_for_[worker]);
    return job;
  }

  bool HasRoom(const Place& place, const Waiter& job) {
    const GroupState& group = place.group;
    return group.base_model == job.job->base_model && !group.full() && Mix(group, *job.job) &&
           Covers(group.shape, round_.sizes.of(job.job_class)) &&
           FitsIn(round_.sizes, group, group.shape, job.job_class) &&
           round_.Helps(group, group.shape, *job.job, job.work);
  }

  // A group for the job alone takes the place of the one without jobs that is there, if one is.
  void Form(Place& place, const Waiter& job, double now_s) {
    GroupState& group = place.group;
    const bool loaded = group.base_model == job.job->base_model ||
                        (place.idle != nullptr && group.base_model.empty() &&
                         place.idle->worker->loaded_base_model == job.job->base_model);
    const WorkerKind& kind = round_.sizes.kind(group.worker_kind);
    if (group.base_model != job.job->base_model) {
      place.slowness = 1;
      place.paced = false;
    }
    GroupState formed;
    formed.name = group.name;
    formed.base_model = job.job->base_model;
    formed.device_name =
        place.idle != nullptr ? place.idle->worker->device_name : group.device_name;
    formed.model = job.job->model.get();
    formed.base = round_.sizes.BaseOf(formed.base_model);
    formed.worker_kind = group.worker_kind;
    formed.budget_bytes = kind.budget_bytes;
    formed.open = true;
    formed.stages = group.stages;
    formed.stage_kinds = group.stage_kinds;
    formed.shape = round_.sizes.AloneOn(job.job_class, group.worker_kind).shape;
    formed.pace =
        group.stages.empty() ? round_.paces.Of(formed.base_model, formed.device_name) : group.pace;
    group = std::move(formed);
    place.now_s = now_s + (loaded ? std::exchange(place.load_s, 0) : group.pace.load_s);
  }

  void Join(Place& place, const Waiter& job) {
    const StageBytes slot_bytes = round_.sizes.SlotBytes(job.job_class, place.group.worker_kind);
    place.group.slot_bytes += slot_bytes;
    place.group.Suspect(job.job->company_max, job.job->alone);
    ++place.group.jobs;
    place.group.lowest_priority = std::min(place.group.lowest_priority, job.job->priority);
    place.group.crew.Add(job.work);
    place.SetLongestStep();
    place.Begin(job.job->job, job.work, slot_bytes);
    foreseen_[job.job->job].start_s = place.now_s;
    waiting_[job.job_class].pop_front();
  }

  // The jobs of the queue that come next, of those before `end`.
  void Fill(Place& place, double now_s, size_t end) {
    if (!place.open) return;
    place.AdvanceTo(now_s);
    end = std::min(end, KeptFor(place));
    for (size_t first = FirstFor(place); first < end; first = FirstFor(place)) {
      const Waiter& job = round_.queue[first];
      if (!round_.sizes.FitsAlone(job.job_class, place.group.worker_kind)) return;
      if (place.group.jobs == 0) Form(place, job, now_s);
      if (!HasRoom(place, job) && place.group.jobs > 0) return;
      Join(place, job);
    }
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
      fill(First([&](size_t job_class) { return NeedsSeveral(job_class); }));
      Part();
      for (const size_t job : InNeed()) {
        fill(job);
        if (!IsKept(job)) Keep(job, now_s);
        Part();
        PutTogether(job, now_s);
      }
    }
    fill(kNobody);
  }

  bool NeedsSeveral(size_t job_class) const {
    return round_.queue[waiting_[job_class].front()].needs != nullptr;
  }

  // Workers that are together without a job stay so for the next that could run on all of them, and
  // only for that.
  void Part() {
    std::vector<Place*> parted;
    for (Place& place : places_) {
      if (!IsSeveral(place) || !place.open || place.group.jobs > 0) continue;
      const size_t first = FirstFor(place), kept_for = KeptFor(place);
      if (first == kNobody && kept_for == kNobody) continue;
      if (first < kept_for &&
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
    for (size_t job_class = 0; job_class < waiting_.size(); ++job_class) {
      if (waiting_[job_class].empty() || !NeedsSeveral(job_class)) continue;
      const size_t base = round_.sizes.of(job_class).base;
      const bool has_place = std::ranges::any_of(places_, [&](const Place& place) {
        return IsSeveral(place) && place.group.base == base &&
               round_.sizes.FitsAlone(job_class, place.group.worker_kind);
      });
      if (has_place) continue;
      const size_t job = waiting_[job_class].front();
      const auto [first, is_new] = first_of.try_emplace(base, job);
      if (!is_new) first->second = std::min(first->second, job);
    }
    std::vector<size_t> jobs;
    for (const auto& [base, job] : first_of) jobs.push_back(job);
    std::ranges::sort(jobs);
    return jobs;
  }

  bool IsKept(size_t job) const { return std::ranges::find(kept_for_, job) != kept_for_.end(); }

  // Those that will be free the soonest and hold the job are kept for it, as in KeepWorkers.
  void Keep(size_t job, double now_s) {
    std::vector<size_t> order;
    for (size_t worker = 0; worker < round_.idle.size(); ++worker) {
      round_.idle[worker].taken = true;
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
    const Waiter& waiter = round_.queue[job];
    for (size_t i = 0; i < order.size(); ++i) {
      round_.idle[order[i]].taken = false;
      if (i + 1 < waiter.needs->workers.size()) continue;
      // All that are free are chosen from; then one more each time.
      if (i + 1 < order.size() && free_s(order[i + 1]) <= now_s) continue;
      const std::optional<Placement> placement = PlaceOnIdle(round_, waiter, {});
      if (!placement) continue;
      for (const size_t worker : placement->workers) kept_for_[worker] = job;
      return;
    }
  }

  // The workers that are kept for the job, once they all are free.
  void PutTogether(size_t job, double now_s) {
    for (size_t worker = 0; worker < round_.idle.size(); ++worker) {
      const bool kept = kept_for_[worker] == job;
      round_.idle[worker].taken = !kept;
      if (kept && (IsSeveral(*place_of_[worker]) || place_of_[worker]->group.jobs > 0)) return;
    }
    const Waiter& waiter = round_.queue[job];
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
    Join(place, waiter);
  }

  Round round_;
  std::vector<std::deque<size_t>> waiting_;  // by class, indexes of the queue in its order
  std::list<Place> places_;
  std::vector<Place*> place_of_;  // by worker; null: of a group that is not in the view
  std::vector<size_t> kept_for_;  // by worker, the job of the queue; kNobody: for none
  bool several_ = false;          // some places or jobs are of several workers
  std::vector<Place*> changed_;   // that may take jobs by what has just ended
  Foresight foreseen_;
};

}  // namespace

Foresight Foresee(const ClusterView& view) { return Simulation(view).Run(); }

}  // namespace lorad::planner
