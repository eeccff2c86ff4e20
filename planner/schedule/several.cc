// Jobs that need several workers: where they may go, and what is kept for them (schedule.h).
#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>

#include "planner/schedule/shapes.h"
#include "planner/schedule/state.h"

namespace lorad::planner {
namespace {

StageJob StageJobOf(const Footprint& job) {
  return {*job.model, *job.adapter, job.longest_sequence, job.stages};
}

StageWorker StageWorkerOf(const WorkerView& worker, const std::string& base_model,
                          int64_t microbatch_tokens) {
  const bool holds = !base_model.empty() && worker.loaded_base_model == base_model;
  return {.name = worker.name,
          .device = worker.device,
          .budget_bytes = worker.budget_bytes,
          .numerics_id = worker.numerics_id,
          .transport = worker.transport,
          .host = worker.host,
          .nccl = worker.nccl,
          .microbatch_tokens =
              worker.microbatch_tokens > 0 ? worker.microbatch_tokens : microbatch_tokens,
          .holds = holds ? std::optional(worker.loaded_blocks) : std::nullopt};
}

// The shapes of a group on these workers for the job.
std::vector<ShapeChoice> ShapesOnStages(const Footprint& job,
                                        const std::vector<const StageWorker*>& workers) {
  WorkerKind kind{workers[0]->device, workers[0]->budget_bytes, 0};
  for (const StageWorker* worker : workers) {
    kind.microbatch_tokens = LeastTokens(kind.microbatch_tokens, worker->microbatch_tokens);
  }
  kind.stages.resize(workers.size());
  return ShapesAlone(job, kind);
}

std::optional<Placement> Place(const Footprint& job, const std::vector<StageWorker>& workers) {
  return PlaceStages(StageJobOf(job), workers,
                     [&](const auto& of_stages) { return ShapesOnStages(job, of_stages); });
}

std::vector<StageWorker> All(const std::vector<WorkerView>& views, int64_t microbatch_tokens) {
  std::vector<StageWorker> workers;
  for (const WorkerView& worker : views) {
    workers.push_back(StageWorkerOf(worker, "", microbatch_tokens));
  }
  return workers;
}

// A worker that a job may wait for, and when it will be free.
struct Candidate {
  const WorkerView* worker = nullptr;
  IdleWorker* idle = nullptr;   // now, or
  GroupState* group = nullptr;  // once this has ended
  double free_s = 0;
};

double EndOf(const GroupState& group) {
  const int64_t capacity = std::max<int64_t>(1, group.shape.capacity_tokens);
  return group.delay_s + group.crew.LastEnd(group.pace.times, capacity);
}

// Those that will be free the soonest first, doubtful ones last. While a group drains nothing makes
// its end later, so who is first stays so: the job's workers come together, and a change is to one
// that is free sooner.
std::vector<Candidate> CandidatesOf(Round& round) {
  std::vector<Candidate> candidates;
  for (IdleWorker& idle : round.idle) {
    if (!idle.taken) candidates.push_back({.worker = idle.worker, .idle = &idle});
  }
  for (GroupState& group : round.groups) {
    if (group.kept_for != nullptr) continue;
    const double end_s = EndOf(group);
    const auto add = [&](const std::string& name) {
      const auto worker = std::ranges::find(round.view.workers, name, &WorkerView::name);
      if (worker == round.view.workers.end()) return;
      const double free_s = worker->doubtful ? std::numeric_limits<double>::infinity() : end_s;
      candidates.push_back({.worker = &*worker, .group = &group, .free_s = free_s});
    };
    if (group.stages.empty()) add(group.worker);
    for (const StageView& stage : group.stages) add(stage.worker);
  }
  std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
    const auto key = [](const Candidate& candidate) {
      const size_t jobs = candidate.group != nullptr ? candidate.group->jobs : 0;
      return std::tuple(candidate.group != nullptr, candidate.free_s, jobs,
                        std::string_view(candidate.worker->name));
    };
    return key(a) < key(b);
  });
  return candidates;
}

// The fewest of them, from the first on, that hold the job; none where not even all do.
std::vector<Candidate> FirstThatHold(Round& round, const Waiter& job,
                                     const std::vector<Candidate>& candidates) {
  std::vector<StageWorker> workers;
  for (const Candidate& candidate : candidates) {
    workers.push_back(
        StageWorkerOf(*candidate.worker, job.job->base_model, round.view.microbatch_tokens));
    if (workers.size() < job.needs->workers.size()) continue;
    const auto placement = Place(round.sizes.of(job.job_class), workers);
    if (!placement) continue;
    std::vector<Candidate> first;
    for (const size_t worker : placement->workers) first.push_back(candidates[worker]);
    return first;
  }
  return {};
}

}  // namespace

int64_t LeastTokens(int64_t a, int64_t b) {
  return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b);
}

double FillAndDrainFactor(int64_t step_tokens, int64_t capacity_tokens, size_t stages) {
  const int64_t microbatches =
      std::max({int64_t{1}, (step_tokens + capacity_tokens - 1) / capacity_tokens,
                step_tokens / kMicrobatchTokens});
  return 1 + static_cast<double>(stages - 1) / static_cast<double>(microbatches);
}

std::optional<Placement> PlaceAlone(const QueuedJob& job, const std::vector<WorkerView>& workers,
                                    int64_t microbatch_tokens) {
  const Footprint footprint{0, job.model.get(), job.adapter.get(), job.longest_sequence,
                            job.stages};
  return Place(footprint, All(workers, microbatch_tokens));
}

std::optional<Placement> PlaceAloneNearest(const QueuedJob& job,
                                           const std::vector<WorkerView>& workers,
                                           int64_t microbatch_tokens) {
  const Footprint footprint{0, job.model.get(), job.adapter.get(), job.longest_sequence,
                            job.stages};
  return PlaceNearest(StageJobOf(footprint), All(workers, microbatch_tokens),
                      [&](const auto& of_stages) { return ShapesOnStages(footprint, of_stages); });
}

const Placement* NeedsOf(Round& round, size_t job_class) {
  const auto [entry, is_new] = round.needs.try_emplace(job_class);
  std::optional<Placement>& needs = entry->second;
  if (is_new) {
    const Footprint job = round.sizes.of(job_class);
    const std::vector<WorkerView>& all = round.view.workers;
    // What fitted one before it failed there is for another one, not for several.
    const auto fits = [&](const WorkerView& worker) {
      const size_t kind = round.KindOf(worker);
      return round.sizes.FitsAlone(job_class, kind) || round.sizes.Avoids(job_class, kind);
    };
    const bool fits_one = std::ranges::any_of(
        all, [&](const WorkerView& worker) { return !worker.doubtful && fits(worker); });
    if (!fits_one && job.stages != 1) {
      std::vector<WorkerView> sure;
      std::ranges::remove_copy_if(all, std::back_inserter(sure), &WorkerView::doubtful);
      needs = Place(job, All(sure, round.view.microbatch_tokens));
      // What only they could hold, with others, waits for doubtful ones, too.
      if (!needs && std::ranges::none_of(all, fits)) {
        needs = Place(job, All(all, round.view.microbatch_tokens));
      }
    }
  }
  return needs ? &*needs : nullptr;
}

std::optional<Placement> PlaceOnIdle(Round& round, const Waiter& job,
                                     const std::vector<bool>& without) {
  std::vector<size_t> index;
  for (size_t i = 0; i < round.idle.size(); ++i) {
    const IdleWorker& idle = round.idle[i];
    if (idle.taken || (!without.empty() && without[idle.worker_kind])) continue;
    index.push_back(i);
  }
  const auto failed = [&](size_t i) { return round.idle[i].worker->joins_failed; };
  std::ranges::stable_sort(index, {}, failed);
  std::vector<StageWorker> workers;
  std::optional<Placement> placement;
  for (size_t next = 0; !placement && next < index.size(); ++next) {
    workers.push_back(StageWorkerOf(*round.idle[index[next]].worker, job.job->base_model,
                                    round.view.microbatch_tokens));
    // All that have joined what they were to, and then one more each time.
    const bool more = next + 1 < index.size() && failed(index[next + 1]) == 0;
    if (!more) placement = Place(round.sizes.of(job.job_class), workers);
  }
  if (placement) {
    for (size_t& worker : placement->workers) worker = index[worker];
  }
  return placement;
}

void KeepWorkers(Round& round, const Waiter& job) {
  if (job.needs == nullptr) return;
  const size_t base = round.sizes.of(job.job_class).base;
  for (const GroupState& group : round.groups) {
    if (group.base == base && round.sizes.FitsAlone(job.job_class, group.worker_kind)) return;
  }
  if (!round.keepers.insert(base).second) return;
  std::vector<Candidate> candidates = CandidatesOf(round);
  std::vector<Candidate> kept = FirstThatHold(round, job, candidates);
  if (kept.empty()) return;  // some of the workers that it needs take no jobs
  const double last_s = std::ranges::max(kept, {}, &Candidate::free_s).free_s;
  // It begins when the last of them is free. Those that fall free with that one are kept rather
  // than such as could train others until then.
  if (last_s < kNever) {
    std::erase_if(candidates, [&](const Candidate& one) { return one.free_s > last_s; });
    std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::free_s);
    kept = FirstThatHold(round, job, candidates);
  }
  for (const Candidate& candidate : kept) {
    if (candidate.group != nullptr) {
      candidate.group->kept_for = &job;
    } else {
      candidate.idle->taken = true;
      candidate.idle->kept_for = &job;
    }
  }
}

void KeepOne(Round& round, const Waiter& job) {
  GroupState* first = nullptr;
  double first_s = 0;
  for (GroupState& group : round.groups) {
    if (group.kept_for != nullptr || !round.FitsAlone(job, group)) continue;
    const double end_s = group.rests ? kNever : EndOf(group);
    if (first != nullptr && first_s <= end_s) continue;
    first = &group;
    first_s = end_s;
  }
  if (first != nullptr) first->kept_for = &job;
}

}  // namespace lorad::planner
