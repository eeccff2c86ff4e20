#include "planner/schedule/foresee.h"

#include <algorithm>
#include <deque>
#include <limits>
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

// A worker with its group, in simulated time.
struct Place {
  GroupState group;  // of it: what decides who fits
  const IdleWorker* idle = nullptr;
  bool open = true;   // takes jobs at all
  double load_s = 0;  // of several idle workers: until the first group is formed
  double now_s = 0;   // `rounds` were done by then; later than the simulation where it is formed
  double rounds = 0;
  double slowness = 1;  // as many times as long as by the time model its rounds have lasted
  std::priority_queue<Trainee, std::vector<Trainee>, std::greater<>> trainees;

  double ModelSeconds() const {
    return RoundMs(group.pace.times, group.crew.step_tokens(), group.shape.capacity_tokens) / 1000;
  }
  double RoundSeconds() const { return slowness * ModelSeconds(); }
  double NextEnd() const {
    if (trainees.empty()) return kNever;
    return now_s + (trainees.top().last_round - rounds) * RoundSeconds();
  }
  void AdvanceTo(double time_s) {
    if (time_s <= now_s) return;
    if (!trainees.empty()) rounds += (time_s - now_s) / RoundSeconds();
    now_s = time_s;
  }
  // REQUIRES: the group's crew has it.
  void Begin(const std::string& job, const JobWork& work, const StageBytes& slot_bytes) {
    trainees.push({rounds + static_cast<double>(work.remaining_steps), job, work, slot_bytes});
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
    for (const GroupState& group : round_.groups) AddGroup(group);
    for (const Waiter& job : round_.queue) AddSeveral(job);
    for (const IdleWorker& idle : round_.idle) {
      if (idle.taken) continue;
      Place& place = places_.emplace_back();
      place.idle = &idle;
      place.group.worker_kind = idle.worker_kind;
    }
  }

  Foresight Run() {
    for (Place& place : places_) Fill(place, 0);
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
      Fill(*next, at_s);
    }
  }

 private:
  void AddGroup(const GroupState& group) {
    Place& place = places_.emplace_back();
    place.group = group;
    place.open = group.open;
    place.now_s = group.delay_s;
    for (const MemberState& member : group.members) {
      if (member.trains) {
        place.Begin(member.job, member.work, member.slot_bytes);
      } else {
        place.group.slot_bytes -= member.slot_bytes;
        --place.group.jobs;
      }
    }
    if (group.tokens_per_second <= 0 || place.trainees.empty()) return;
    const auto tokens = static_cast<double>(group.crew.step_tokens());
    place.slowness = std::clamp(tokens / group.tokens_per_second / place.ModelSeconds(),
                                1 / kSlownessMax, kSlownessMax);
  }

  // On several idle workers, where the job needs them and no group could take it.
  void AddSeveral(const Waiter& job) {
    if (job.needs == nullptr) return;
    for (const Place& place : places_) {
      if (round_.sizes.FitsAlone(job.job_class, place.group.worker_kind)) return;
    }
    const std::optional<Placement> placement = PlaceOnIdle(round_, job, {});
    if (!placement) return;
    for (const size_t idle : placement->workers) round_.idle[idle].taken = true;
    Place& place = places_.emplace_back();
    place.group = StateOf(round_.idle, *placement, job.job->base_model, *job.job->model,
                          round_.sizes, round_.paces);
    place.load_s = std::exchange(place.group.delay_s, 0);
  }

  void EndFirst(Place& place, double now_s) {
    const Trainee ended = place.trainees.top();
    place.rounds = ended.last_round;
    place.now_s = now_s;
    place.trainees.pop();
    place.group.crew.Remove(ended.work);
    place.group.slot_bytes -= ended.slot_bytes;
    --place.group.jobs;
    foreseen_[ended.job].end_s = now_s;
  }

  // The first of the queue that could run alone on the place's worker; nullptr: none waits.
  const Waiter* FirstFor(const Place& place) {
    size_t first = round_.queue.size();
    for (size_t job_class = 0; job_class < waiting_.size(); ++job_class) {
      const std::deque<size_t>& jobs = waiting_[job_class];
      if (jobs.empty() || jobs.front() >= first) continue;
      if (round_.sizes.FitsAlone(job_class, place.group.worker_kind)) first = jobs.front();
    }
    return first == round_.queue.size() ? nullptr : &round_.queue[first];
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
    if (group.base_model != job.job->base_model) place.slowness = 1;
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
    place.Begin(job.job->job, job.work, slot_bytes);
    foreseen_[job.job->job].start_s = place.now_s;
    waiting_[job.job_class].pop_front();
  }

  void Fill(Place& place, double now_s) {
    if (!place.open) return;
    place.AdvanceTo(now_s);
    while (const Waiter* job = FirstFor(place)) {
      if (place.group.jobs == 0) Form(place, *job, now_s);
      if (!HasRoom(place, *job) && place.group.jobs > 0) return;
      Join(place, *job);
    }
  }

  Round round_;
  std::vector<std::deque<size_t>> waiting_;  // by class, indexes of the queue in its order
  std::deque<Place> places_;
  Foresight foreseen_;
};

}  // namespace

Foresight Foresee(const ClusterView& view) { return Simulation(view).Run(); }

}  // namespace lorad::planner
