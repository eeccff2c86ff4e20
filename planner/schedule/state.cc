#include "planner/schedule/state.h"

#include <algorithm>
#include <utility>

#include "planner/schedule/shapes.h"
#include "planner/stages/blocks.h"

namespace lorad::planner {
namespace {

// Of several workers as if all were as slow as the slowest.
void SetPace(GroupState& group, Paces& paces) {
  double slowness = group.stages.empty() ? paces.SlownessOf(group.worker) : 0;
  for (const StageView& stage : group.stages) {
    slowness = std::max(slowness, paces.SlownessOf(stage.worker));
  }
  group.pace = paces.Of(group.base_model, group.device_name, slowness);
  if (group.stages.empty()) return;
  std::vector<StageRange> ranges;
  for (const StageView& stage : group.stages) ranges.push_back(stage.range);
  group.pace.times = OfPipeline(
      group.pace.times, SlowestShare(*group.model, ranges, group.shape.longest_sequence / 2));
}

int64_t TokensOn(const ClusterView& view, int64_t own) {
  return own > 0 ? own : view.microbatch_tokens;
}

// What the bytes of a stage depend on, of the worker that has it.
StageWorker SeatOf(const WorkerView& worker) {
  return {.name = worker.name,
          .device = worker.device,
          .transport = worker.transport,
          .host = worker.host,
          .nccl = worker.nccl};
}

// The group is on several workers, its seats: each by itself, and all together.
void SetStages(GroupState& group, const std::vector<StageWorker>& seats, int64_t tokens,
               Footprints& sizes) {
  WorkerKind all{seats[0].device, group.budget_bytes, tokens};
  std::vector<const StageWorker*> by_stage;
  for (const StageWorker& seat : seats) by_stage.push_back(&seat);
  const std::vector<int> borders = BordersByNccl(by_stage);
  all.base = group.base;
  for (size_t s = 0; s < group.stages.size(); ++s) {
    const StageView& stage = group.stages[s];
    all.stages.push_back({stage.range, seats[s].device, stage.budget_bytes, borders[s]});
    group.stage_kinds.push_back(
        sizes.KindOf({seats[s].device, stage.budget_bytes, tokens}, stage.worker));
  }
  group.worker_kind = sizes.KindOf(all);
}

// Of a job that trains, or that waits.
template <class Job>
JobWork WorkOf(const Job& job, const Footprint& footprint, double evaluated_share) {
  const bool known = job.remaining_steps > 0 || job.evaluations.parts > 0;
  const int64_t tokens = job.step_tokens > 0 ? job.step_tokens : kUnknownTokens;
  return WithEvaluations({.step = StepOf(static_cast<double>(tokens), job.step_squared_lengths,
                                         footprint.adapter_parameters),
                          .remaining_steps = known ? job.remaining_steps : kUnknownSteps},
                         job.evaluations, footprint.adapter_parameters, evaluated_share);
}

}  // namespace

Paces::Paces(const ClusterView& view) : view_(view) {
  for (const WorkerView& worker : view.workers) {
    if (worker.slowness != 1) slownesses_.emplace(worker.name, worker.slowness);
  }
  std::map<std::string, double> devices;
  for (const auto& [key, times] : view.times) {
    TimeCoefficients& mean = means_[key.first];
    const double n = ++devices[key.first];
    mean = (1 - 1 / n) * mean + 1 / n * times;
  }
  std::map<std::string, double> shares;
  for (const auto& [key, share] : view.evaluated_shares) {
    double& mean = evaluated_shares_[key.first];
    mean += (share - mean) / ++shares[key.first];
  }
}

double Paces::EvaluatedShare(const std::string& base_model) const {
  const auto mean = evaluated_shares_.find(base_model);
  return mean == evaluated_shares_.end() ? kEvaluatedShare : mean->second;
}

double Paces::SlownessOf(std::string_view worker) const {
  const auto found = slownesses_.find(worker);
  return found == slownesses_.end() ? 1 : found->second;
}

Pace Paces::Of(const std::string& base_model, const std::string& device_name, double slowness) {
  Pace pace = OfDevice(base_model, device_name);
  pace.times = slowness * pace.times;
  pace.slowness = slowness;
  return pace;
}

const Pace& Paces::OfDevice(const std::string& base_model, const std::string& device_name) {
  const DeviceKey key{base_model, device_name};
  const auto [entry, is_new] = paces_.try_emplace(key);
  Pace& pace = entry->second;
  if (!is_new) return pace;
  if (const auto own = view_.times.find(key); own != view_.times.end()) {
    pace.times = own->second;
    pace.known = true;
  } else if (const auto mean = means_.find(base_model); mean != means_.end()) {
    pace.times = mean->second;
  } else {
    return pace;  // a unit of time without seconds
  }
  if (const auto load = view_.load_s.find(key); load != view_.load_s.end()) {
    pace.load_s = load->second;
  }
  return pace;
}

double GroupState::SumOfEnds() const {
  return crew.SumOfEnds(pace.times, shape.capacity_tokens) +
         delay_s * static_cast<double>(crew.size());
}

double GroupState::SumOfEndsWith(const JobWork& comes, int64_t capacity_tokens) const {
  return crew.SumOfEnds(pace.times, capacity_tokens, &comes) +
         delay_s * static_cast<double>(crew.size() + 1);
}

GroupState StateOf(const GroupView& group, const ClusterView& view, Footprints& sizes,
                   Paces& paces) {
  GroupState state;
  state.name = group.name;
  state.base_model = group.base_model;
  state.worker = group.worker;
  state.device_name = group.device_name;
  state.model = group.model.get();
  state.base = sizes.BaseOf(group.base_model);
  const int64_t tokens = TokensOn(view, group.microbatch_tokens);
  state.shape = group.shape;
  state.computed = group.computed;
  state.computed_s = group.computed_s;
  state.budget_bytes = group.budget_bytes;
  state.stages = group.stages;
  if (group.stages.empty()) {
    state.worker_kind =
        sizes.KindOf({group.shape.device, group.budget_bytes, tokens}, group.worker);
  } else {
    std::vector<StageWorker> seats;
    for (const StageView& stage : group.stages) {
      const auto worker = std::ranges::find(view.workers, stage.worker, &WorkerView::name);
      const bool gone = worker == view.workers.end();
      seats.push_back(gone ? StageWorker{.name = stage.worker, .device = group.shape.device}
                           : SeatOf(*worker));
    }
    SetStages(state, seats, tokens, sizes);
  }
  state.bytes = sizes.GroupBytes(state.base, *group.model, group.shape, state.worker_kind);
  state.open = group.open;
  state.changes = group.changes;
  state.makes_room_for = group.makes_room_for;
  state.forming = group.forming;
  state.rests = !group.open && !group.changes;
  state.formed_s = group.formed_s;
  state.jobs = group.jobs.size();
  SetPace(state, paces);
  if (group.forming) state.delay_s = group.ready_s > 0 ? group.ready_s : state.pace.load_s;
  for (size_t i = 0; i < group.adapters.size(); ++i) {
    MemberState& member = state.members.emplace_back();
    member.job = group.jobs[i];
    member.running = group.running.empty() ? nullptr : &group.running[i];
    const RunningJob known = member.running != nullptr ? *member.running : RunningJob{};
    const int64_t longest =
        member.running != nullptr ? known.longest_sequence : group.shape.longest_sequence;
    member.job_class =
        member.running == nullptr
            ? sizes.ClassOf(group.base_model, *group.model, group.adapters[i], longest)
            : sizes.ClassOf(group.base_model, *group.model, group.adapters[i], longest, 0,
                            member.running->avoids);
    member.slot_bytes = sizes.SlotBytes(member.job_class, state.worker_kind);
    member.work = WorkOf(known, sizes.of(member.job_class), paces.EvaluatedShare(group.base_model));
    member.trains = !known.leaving;
    member.works = member.trains || known.finishes;
    state.slot_bytes += member.slot_bytes;
    if (member.works) state.crew.Add(member.work);
    if (member.running == nullptr) continue;
    state.Suspect(known.company_max, known.alone);
    state.lowest_priority = std::min(state.lowest_priority, known.priority);
  }
  return state;
}

GroupState StateOf(const IdleWorker& idle, const std::string& base_model, const ModelShape& model,
                   Footprints& sizes, Paces& paces) {
  const WorkerKind& kind = sizes.kind(idle.worker_kind);
  GroupState state;
  state.base_model = base_model;
  state.worker = idle.worker->name;
  state.device_name = idle.worker->device_name;
  state.model = &model;
  state.base = sizes.BaseOf(base_model);
  state.worker_kind = idle.worker_kind;
  state.shape = EmptyShape(kind.device);
  state.budget_bytes = kind.budget_bytes;
  state.open = true;
  SetPace(state, paces);
  if (!idle.worker->Holds(base_model)) state.delay_s = state.pace.load_s;
  return state;
}

GroupState StateOf(const std::vector<IdleWorker>& idle, const Placement& placement,
                   const std::string& base_model, const ModelShape& model, Footprints& sizes,
                   Paces& paces) {
  GroupState state = StateOf(idle[placement.workers[0]], base_model, model, sizes, paces);
  state.delay_s = 0;
  std::vector<StageWorker> seats;
  int64_t tokens = 0;
  for (size_t s = 0; s < placement.workers.size(); ++s) {
    const WorkerView& worker = *idle[placement.workers[s]].worker;
    state.stages.push_back({worker.name, placement.ranges[s], worker.budget_bytes});
    seats.push_back(SeatOf(worker));
    tokens =
        LeastTokens(tokens, sizes.kind(idle[placement.workers[s]].worker_kind).microbatch_tokens);
    if (!worker.Holds(base_model, placement.ranges[s])) state.delay_s = state.pace.load_s;
  }
  state.shape = placement.shape;
  SetStages(state, seats, tokens, sizes);
  SetPace(state, paces);
  return state;
}

bool IsKnown(const GroupState& group) {
  return group.pace.known && std::ranges::all_of(group.members, [](const MemberState& member) {
           return member.running != nullptr && member.running->step_tokens > 0 &&
                  (member.running->remaining_steps > 0 || member.running->evaluations.parts > 0 ||
                   !member.works);
         });
}

// In rounds like its present one: so microbatches that could not be filled are in it.
double MeasuredSlowness(const GroupState& group) {
  const Workload& round = group.crew.round();
  if (group.computed_s <= 0 || group.computed.tokens <= 0 || round.tokens <= 0) return 0;
  const double of_round =
      std::max(1.0, round.tokens / static_cast<double>(group.shape.capacity_tokens));
  const double ms =
      group.pace.times.Ms(group.computed, group.computed.tokens / round.tokens * of_round);
  return ms > 0 ? 1000 * group.computed_s / ms : 0;
}

bool Mix(const GroupState& group, const QueuedJob& job) {
  if (group.jobs == 0) return true;
  if (job.alone || group.alone) return false;
  return job.company_max == 0 || group.suspects < std::min(group.company_max, job.company_max);
}

void Add(GroupState& group, const Waiter& job, const GroupShape& shape, Footprints& sizes) {
  if (group.fresh()) {
    group.shape = shape;
    group.bytes = sizes.GroupBytes(group.base, *group.model, shape, group.worker_kind);
  }
  group.slot_bytes += sizes.SlotBytes(job.job_class, group.worker_kind);
  group.lowest_priority = std::min(group.lowest_priority, job.job->priority);
  group.Suspect(job.job->company_max, job.job->alone);
  group.crew.Add(job.work);
  group.joined.push_back(&job);
  ++group.jobs;
}

Round::Round(const ClusterView& cluster) : view(cluster), paces(cluster) {
  for (const QueuedJob& job : view.queue) sizes.Avoid(job.avoids);
  for (const GroupView& group : view.groups) {
    for (const RunningJob& job : group.running) sizes.Avoid(job.avoids);
  }
  for (const GroupView& group : view.groups) {
    groups.push_back(StateOf(group, view, sizes, paces));
  }
  for (const WorkerView& worker : view.workers) {
    if (worker.idle) idle.push_back({&worker, KindOf(worker)});
  }
  queue.reserve(view.queue.size());
  for (const size_t i : QueueOrder(view)) {
    const QueuedJob& job = view.queue[i];
    Waiter& waiter = queue.emplace_back();
    waiter.job = &job;
    waiter.job_class = sizes.ClassOf(job.base_model, *job.model, *job.adapter, job.longest_sequence,
                                     job.stages, job.avoids);
    waiter.work = WorkOf(job, sizes.of(waiter.job_class), paces.EvaluatedShare(job.base_model));
    waiter.needs = NeedsOf(*this, waiter.job_class);
  }
}

std::vector<std::pair<size_t, GroupState>> OnIdle(Round& round, const GroupState& like) {
  std::vector<std::pair<size_t, GroupState>> groups;
  for (size_t i = 0; i < round.idle.size(); ++i) {
    if (round.idle[i].taken) continue;
    groups.emplace_back(
        i, StateOf(round.idle[i], like.base_model, *like.model, round.sizes, round.paces));
  }
  return groups;
}

size_t Round::KindOf(const WorkerView& worker) {
  return sizes.KindOf(
      {worker.device, worker.budget_bytes, TokensOn(view, worker.microbatch_tokens)}, worker.name);
}

std::optional<size_t> Round::KindAlone(const Waiter& job, const GroupState& group) {
  if (group.kept_for == &job) return group.worker_kind;
  const auto fits = [&](size_t kind) { return sizes.FitsAlone(job.job_class, kind); };
  if (fits(group.worker_kind)) return group.worker_kind;
  const auto stage = std::ranges::find_if(group.stage_kinds, fits);
  if (stage == group.stage_kinds.end()) return std::nullopt;
  return *stage;
}

const Waiter* Round::Ahead(const GroupState& group, bool own, size_t& before) {
  for (size_t& i = before; i < waiting.size(); ++i) {
    const Waiter* job = waiting[i];
    if (own && sizes.of(job->job_class).base != group.base) continue;
    if (group.kept_for != job && settled.count(job->job) > 0) continue;
    if (FitsAlone(*job, group)) return job;
  }
  return nullptr;
}

bool Round::Helps(const GroupState& group, const GroupShape& shape, const QueuedJob& job,
                  const JobWork& work) const {
  if (view.policy.least_gain <= 0 || group.jobs == 0) return true;
  if (job.resumes || job.first_of_equals) return true;  // it goes on
  if (!group.pace.known || group.crew.size() == 0 || job.step_tokens == 0) return true;
  if (group.lowest_priority < job.priority) return true;
  return SharingGain(group.pace.times, group.crew.round(), work.step, shape.capacity_tokens) >=
         view.policy.least_gain;
}

}  // namespace lorad::planner
