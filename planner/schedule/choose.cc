#include "planner/schedule/choose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/schedule/shapes.h"

namespace lorad::planner {
namespace {

// Sums of ends that differ by less are equal.
constexpr double kTie = 1e-9;

class Chooser {
 public:
  Chooser(Round& round, Lookahead& lookahead, size_t position)
      : round_(round),
        lookahead_(lookahead),
        job_(round.queue[position]),
        robbed_(lookahead.Robbed(position)) {
    for (size_t i = 0; i < round.idle.size(); ++i) {
      const IdleWorker& idle = round.idle[i];
      if (idle.taken || !round.sizes.FitsAlone(job_.job_class, idle.worker_kind)) continue;
      // Who goes on goes before those who wait, but not onto what may be kept for them.
      const std::string& own = job_.job->trained_on;
      const bool is_kept = !own.empty() && own != idle.worker->name && lookahead.AnyNeedsSeveral();
      (robbed_[idle.worker_kind] || is_kept ? needed_ : free_).push_back(i);
    }
    if (job_.job->trained_on.empty() || job_.job->company_max > 0) return;
    for (const IdleWorker& idle : round.idle) {
      if (idle.worker->name == job_.job->trained_on) own_kind_ = idle.worker_kind;
    }
    for (const GroupState& group : round.groups) {
      if (group.worker == job_.job->trained_on) own_kind_ = group.worker_kind;
    }
  }

  std::optional<Place> Choose() {
    // A suspect had better not be where others already are.
    if (job_.job->company_max > 0) {
      WeighIdle();
      if (!best_) WeighGroups("");
      return best_;
    }
    if (!job_.job->to.empty()) {
      WeighGroups(job_.job->to);
      if (best_) return best_;
    }
    WeighGroups("");
    WeighIdle();
    if (best_ && best_->group) WeighEmpty();
    if (!best_ && std::exchange(own_kind_, std::nullopt)) WeighGroups("");
    return best_;
  }

 private:
  // All, or the one of that name.
  void WeighGroups(std::string_view name) {
    for (size_t g = 0; g < round_.groups.size(); ++g) {
      const GroupState& group = round_.groups[g];
      if (!name.empty() && group.name != name) continue;
      if (!group.open || group.base != round_.sizes.of(job_.job_class).base || group.full() ||
          !Mix(group, *job_.job)) {
        continue;
      }
      const auto shape = ShapeToJoin(round_.sizes, group, job_.job_class, job_.job->resumes);
      if (!shape || round_.KeepsOut(group, job_, *shape) ||
          (name.empty() && IsNeededByOthers(group)) ||
          !round_.Helps(group, *shape, *job_.job, job_.work)) {
        continue;
      }
      // Where it is not known what they cost, an idle worker is better than shorter microbatches.
      const bool shorter = shape->capacity_tokens < group.shape.capacity_tokens;
      if (shorter && !group.pace.known && HasIdle(shape->device.kind)) continue;
      const double raise_s =
          group.SumOfEndsWith(job_.work, shape->capacity_tokens) - group.SumOfEnds();
      Offer({.group = g, .shape = *shape, .raise_s = raise_s},
            {0, shape->device.kind != DeviceKind::kCuda, -group.budget_bytes, group.worker});
    }
  }

  // The job may go back to its own worker, and the group's may be what another waits for.
  bool IsNeededByOthers(const GroupState& group) const {
    return own_kind_ && group.worker != job_.job->trained_on &&
           lookahead_.AnyNeeds(group.worker_kind, *own_kind_);
  }

  bool HasIdle(DeviceKind kind) const {
    return std::ranges::any_of(
        free_, [&](size_t i) { return round_.idle[i].worker->device.kind == kind; });
  }

  void WeighIdle() {
    if (job_.needs != nullptr) return WeighSeveral();
    Weigh(free_);
    if (!best_) Weigh(needed_);
  }

  // A placement on idle workers, of which others have no more need unless it can go nowhere else.
  void WeighSeveral() {
    std::optional<Placement> placement = PlaceOnIdle(round_, job_, robbed_);
    if (!placement && !best_) placement = PlaceOnIdle(round_, job_, {});
    if (!placement) return;
    if (const auto empty = EmptyRatherThan(*placement)) {
      return Offer({.group = *empty, .vacates = true}, {});
    }
    const GroupState group = StateOf(round_.idle, *placement, job_.job->base_model,
                                     *job_.job->model, round_.sizes, round_.paces);
    const double raise_s = group.SumOfEndsWith(job_.work, group.shape.capacity_tokens);
    const WorkerView& first = *round_.idle[placement->workers[0]].worker;
    Offer({.several = placement, .shape = placement->shape, .raise_s = raise_s},
          {group.delay_s > 0, first.device.kind != DeviceKind::kCuda, -first.budget_bytes,
           first.name});
  }

  // A group without jobs whose worker has failed to join others less often than one of those that
  // idle, and has room for any of their stages.
  std::optional<size_t> EmptyRatherThan(const Placement& placement) {
    int32_t failed = 0;
    for (const size_t i : placement.workers) {
      failed = std::max(failed, round_.idle[i].worker->joins_failed);
    }
    if (failed == 0) return std::nullopt;
    const WorkerView& first = *round_.idle[placement.workers[0]].worker;
    for (size_t g = 0; g < round_.groups.size(); ++g) {
      const GroupState& group = round_.groups[g];
      if (!group.settled() || group.jobs > 0 || !group.stages.empty()) continue;
      if (lookahead_.Asked(group) || round_.Ahead(group) != nullptr) continue;
      const auto worker = std::ranges::find(round_.view.workers, group.worker, &WorkerView::name);
      if (worker != round_.view.workers.end() && worker->joins_failed < failed &&
          worker->numerics_id == first.numerics_id && worker->transport == first.transport &&
          Fits(placement.bytes[placement.tightest], worker->budget_bytes)) {
        return g;
      }
    }
    return std::nullopt;
  }

  void Weigh(const std::vector<size_t>& idle) {
    for (const size_t i : idle) {
      const WorkerView& worker = *round_.idle[i].worker;
      const bool holds = worker.Holds(job_.job->base_model);
      const Pace pace = round_.paces.Of(job_.job->base_model, worker.device_name, worker.slowness);
      const GroupShape& shape =
          round_.sizes.AloneOn(job_.job_class, round_.idle[i].worker_kind).shape;
      Offer({.idle = i, .shape = shape, .raise_s = EndAlone(pace, shape, holds)},
            {!holds, worker.device.kind != DeviceKind::kCuda, -worker.budget_bytes, worker.name});
    }
  }

  // A group of another base model that has no jobs, and none that wait: rather than join others, the
  // job may have its worker. One that waits for a place at all has it in any case (Dissolve).
  void WeighEmpty() {
    for (size_t g = 0; g < round_.groups.size(); ++g) {
      const GroupState& group = round_.groups[g];
      if (!group.settled() || group.jobs > 0 || lookahead_.Asked(group)) continue;
      const std::optional<size_t> kind = round_.KindAlone(job_, group);
      if (!kind || round_.Ahead(group) != nullptr) continue;
      const Pace pace =
          round_.paces.Of(job_.job->base_model, group.device_name, group.pace.slowness);
      if (!pace.known) continue;
      const GroupShape& shape = round_.sizes.AloneOn(job_.job_class, *kind).shape;
      const double end_s = EndAlone(pace, shape, false);
      Offer({.group = g, .vacates = true, .shape = shape, .raise_s = end_s},
            {true, shape.device.kind != DeviceKind::kCuda, -group.budget_bytes, group.worker});
    }
  }

  double EndAlone(const Pace& pace, const GroupShape& shape, bool holds) const {
    const double round_s = RoundMs(pace.times, job_.work.step, shape.capacity_tokens) / 1000;
    return (holds ? 0 : pace.load_s) + static_cast<double>(job_.work.remaining_steps) * round_s;
  }

  // Whether its worker has to load the base model, and is none of the GPUs; its budget; its name.
  using Rank = std::tuple<bool, bool, int64_t, std::string_view>;

  void Offer(const Place& place, const Rank& rank) {
    if (best_) {
      const double margin = kTie * std::max(std::abs(place.raise_s), std::abs(best_->raise_s));
      if (place.raise_s > best_->raise_s + margin) return;
      if (place.raise_s >= best_->raise_s - margin && rank >= rank_) return;
    }
    best_ = place;
    rank_ = rank;
  }

  Round& round_;
  Lookahead& lookahead_;
  const Waiter& job_;
  const std::vector<bool>& robbed_;  // by kind of worker: others have more need of it
  std::optional<size_t> own_kind_;   // of the worker that it comes back to; none: any will do
  std::vector<size_t> free_;         // idle workers that it fits,
  std::vector<size_t> needed_;       // and those of them that others have more need of
  std::optional<Place> best_;
  Rank rank_;
};

}  // namespace

Lookahead::Lookahead(Round& round) : round_(round) {
  for (size_t i = 0; i < round.queue.size(); ++i) {
    const size_t base = round.sizes.of(round.queue[i].job_class).base;
    if (positions_.size() <= base) {
      positions_.resize(base + 1);
      classes_of_.resize(base + 1);
    }
    positions_[base].push_back(i);
    std::vector<size_t>& classes = classes_of_[base];
    const size_t job_class = round.queue[i].job_class;
    if (std::ranges::find(classes, job_class) == classes.end()) classes.push_back(job_class);
    any_needs_several_ |= round.queue[i].needs != nullptr;
    const bool resumes = round.queue[i].job->resumes;
    if (!resumes && std::ranges::find(waiting_, job_class) == waiting_.end()) {
      waiting_.push_back(job_class);
    }
  }
  next_.resize(positions_.size(), 0);
}

bool Lookahead::Asked(const GroupState& group) {
  if (group.base >= classes_of_.size()) return false;
  const std::vector<size_t>& classes = classes_of_[group.base];
  if (!group.stages.empty()) return !classes.empty();
  return std::ranges::any_of(classes, [&](size_t job_class) {
    return round_.sizes.FitsAlone(job_class, group.worker_kind);
  });
}

bool Lookahead::AnyNeeds(size_t worker_kind, size_t other) const {
  return std::ranges::any_of(waiting_, [&](size_t job_class) {
    return round_.sizes.FitsAlone(job_class, worker_kind) &&
           !round_.sizes.FitsAlone(job_class, other);
  });
}

bool Lookahead::CanJoin(const Waiter& job) {
  const size_t base = round_.sizes.of(job.job_class).base;
  return std::ranges::any_of(round_.groups, [&](const GroupState& group) {
    return group.open && group.base == base && !group.full() &&
           ShapeToJoin(round_.sizes, group, job.job_class, job.job->resumes).has_value();
  });
}

std::vector<size_t> Lookahead::Unserved(size_t position) {
  const QueuedJob& asks = *round_.queue[position].job;
  const size_t own = round_.sizes.of(round_.queue[position].job_class).base;
  std::vector<size_t> classes;
  for (size_t base = 0; base < positions_.size(); ++base) {
    const std::vector<size_t>& positions = positions_[base];
    size_t& next = next_[base];
    while (next < positions.size() && positions[next] <= position) ++next;
    if (base == own || next == positions.size()) continue;
    const Waiter& job = round_.queue[positions[next]];
    if (job.job->priority != asks.priority || job.job->resumes != asks.resumes) continue;
    if (!CanJoin(job)) classes.push_back(job.job_class);
  }
  return classes;
}

size_t Lookahead::Matched(const std::vector<size_t>& classes, const std::vector<size_t>& free) {
  std::vector<std::vector<size_t>> takers(free.size());  // of each kind, as indexes of `classes`
  std::vector<bool> seen;
  const std::function<bool(size_t)> match = [&](size_t taker) {
    for (size_t kind = 0; kind < free.size(); ++kind) {
      if (free[kind] == 0 || seen[kind] || !round_.sizes.FitsAlone(classes[taker], kind)) continue;
      seen[kind] = true;
      if (takers[kind].size() < free[kind]) {
        takers[kind].push_back(taker);
        return true;
      }
      for (size_t& other : takers[kind]) {
        if (!match(other)) continue;
        other = taker;
        return true;
      }
    }
    return false;
  };
  size_t matched = 0;
  for (size_t taker = 0; taker < classes.size(); ++taker) {
    seen.assign(free.size(), false);
    matched += match(taker);
  }
  return matched;
}

const std::vector<bool>& Lookahead::Robbed(size_t position) {
  std::vector<size_t> free;
  for (const IdleWorker& idle : round_.idle) {
    if (free.size() <= idle.worker_kind) free.resize(idle.worker_kind + 1, 0);
    if (!idle.taken) ++free[idle.worker_kind];
  }
  std::vector<size_t> classes = Unserved(position);
  if (classes == classes_ && free == free_ && robbed_.size() == free.size()) return robbed_;
  classes_ = std::move(classes);
  free_ = std::move(free);
  robbed_.assign(free_.size(), false);
  if (classes_.empty()) return robbed_;
  const size_t matched = Matched(classes_, free_);
  for (size_t kind = 0; kind < free_.size(); ++kind) {
    if (free_[kind] == 0) continue;
    std::vector<size_t> less = free_;
    --less[kind];
    robbed_[kind] = Matched(classes_, less) < matched;
  }
  return robbed_;
}

std::optional<Place> ChoosePlace(Round& round, Lookahead& lookahead, size_t position) {
  return Chooser(round, lookahead, position).Choose();
}

}  // namespace lorad::planner
