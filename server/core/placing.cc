// What the policy sees of jobs, groups and workers, and how its decisions are carried out.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/jobs/evaluations_left.h"
#include "server/core/rules/due.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

// One that is yet to be saved counts as one step.
int64_t RemainingSteps(const v1::Job& job, const planner::EvaluationWork& evaluations) {
  if (job.total_steps() == 0) return 0;
  return std::max<int64_t>(EndStep(job) - job.step(), evaluations.parts > 0 ? 0 : 1);
}

// In the mean; 0: not known.
int64_t StepTokens(const v1::Job& job) {
  return job.total_steps() > 0 ? job.total_tokens() / job.total_steps() : 0;
}

double StepSquaredLengths(const v1::Job& job) {
  return job.total_steps() > 0
             ? job.total_squared_lengths() / static_cast<double>(job.total_steps())
             : 0;
}

// For so long a group without jobs is kept for one that is to come into it: its save may take long,
// or never get through.
constexpr int64_t kAwaitedUs = 10'000'000;

// One that has none, or only answers, makes way at once: nobody waits for the end of its work.
bool HasJobs(const GroupState& group) {
  return !std::ranges::all_of(
      group.members, [](const auto& member) { return Generations::IsGuest(member.first); });
}

}  // namespace

int64_t Core::State::SecondsSince(int64_t us) const { return (turn_.now_us() - us) / 1'000'000; }

planner::QueuedJob Core::State::Alone(const v1::Job& job, int64_t longest_tokens) const {
  return Alone(catalog_.Model(job.base_model()), job.base_model(), longest_tokens,
               planner::ShareAdapter(ShapeOfAdapter(job.adapter())));
}

planner::QueuedJob Core::State::Alone(const ModelState& model, const std::string& base_model,
                                      int64_t longest_tokens, planner::SharedAdapter adapter) {
  planner::QueuedJob alone;
  alone.base_model = base_model;
  alone.model = model.shape;
  alone.stages = model.record.model().stages();
  alone.longest_sequence = longest_tokens;
  alone.adapter = std::move(adapter);
  return alone;
}

planner::QueuedJob Core::State::Queued(const JobState& job, const ModelState& model) const {
  const v1::Job& content = job.job();
  planner::QueuedJob queued =
      Alone(model, content.base_model(), job.record.longest_tokens(),
            job.adapter ? job.adapter : planner::ShareAdapter(ShapeOfAdapter(content.adapter())));
  queued.job = job.name();
  queued.priority = content.priority();
  queued.arrival = job.record.order();
  queued.resumes = job.resumes;
  queued.first_of_equals = JobQueue::LeadsEquals(job);
  queued.waited_s = SecondsSince(job.since_us);
  queued.step_tokens = StepTokens(content);
  queued.step_squared_lengths = StepSquaredLengths(content);
  queued.label_group = options_.LabelGroup(content.labels());
  queued.evaluations = EvaluationsLeft(job, options_.evaluate_sequences);
  queued.remaining_steps = RemainingSteps(content, queued.evaluations);
  queued.company_max = job.record.company_max();
  queued.alone = job.record.alone();
  queued.to = job.goes_to;
  queued.trained_on = job.trained_on;
  std::vector<std::string> avoided = job.Avoided();
  const Cluster::When when = job.AwaitsAnotherWord() ? Cluster::When::kSoon : Cluster::When::kNow;
  if (!avoided.empty() && cluster_.AnotherHolds(queued, avoided, when)) {
    queued.avoids = std::move(avoided);
  }
  return queued;
}

void Core::State::AddTimes(const std::string& base_model, planner::ClusterView* view) {
  const planner::ModelShape& shape = *catalog_.Model(base_model).shape;
  for (const WorkerState* worker : cluster_.Connected()) {
    const planner::DeviceKey key(base_model, DeviceKeyOf(worker));
    if (view->times.contains(key)) continue;
    view->times[key] = cluster_.fits()
                           .TimesOf(base_model, shape, worker, cluster_.UsualTokens(*worker))
                           .TrainCoefficients();
    view->evaluated_shares[key] = EvaluatedShare(base_model, *worker);
    view->load_s[key] = cluster_.fits().LoadSeconds(base_model, shape, *worker);
  }
}

// The same wherever evaluated tokens are counted as if trained, so that it does not matter there how
// long the microbatches of a group are.
double Core::State::EvaluatedShare(const std::string& base_model, const WorkerState& worker) {
  const int64_t tokens = cluster_.UsualTokens(worker);
  return cluster_.fits()
      .TimesOf(base_model, *catalog_.Model(base_model).shape, &worker, tokens)
      .EvaluatedShare(static_cast<double>(tokens));
}

planner::RunningJob Core::State::RunningOf(const JobState& job) const {
  planner::RunningJob running;
  running.priority = job.job().priority();
  running.arrival = job.record.order();
  const bool trains = job.trains_since_us > 0;
  if (trains) running.running_s = SecondsSince(job.trains_since_us);
  running.longest_sequence = job.record.longest_tokens();
  running.step_tokens = StepTokens(job.job());
  running.step_squared_lengths = StepSquaredLengths(job.job());
  running.evaluations = EvaluationsLeft(job, options_.evaluate_sequences);
  running.remaining_steps = RemainingSteps(job.job(), running.evaluations);
  running.finishes = job.state() == v1::Job::FINALIZING && running.evaluations.parts > 0;
  running.label_group = options_.LabelGroup(job.job().labels());
  running.company_max = job.record.company_max();
  running.alone = job.record.alone();
  running.stays = quotas_.ArePassed(job.job().labels());
  if (job.moved_us) running.moved_s = trains ? SecondsSince(*job.moved_us) : 0;
  running.avoids = job.Avoided();
  return running;
}

planner::ClusterView Core::State::ClusterOf(Waiting waiting, const JobState* newcomer) {
  planner::ClusterView view;
  view.microbatch_tokens = options_.microbatch_tokens;
  view.policy = options_.policy;
  for (const auto& [name, worker] : cluster_.all()) {
    if (worker.connection == 0) {
      const int64_t bytes = worker.hello.memory_bytes();
      planner::AwayWorker& away = worker.drained ? view.drained_away : view.away;
      if (bytes > away.budget_bytes) away = {name, bytes};
      continue;
    }
    planner::WorkerView& entry = view.workers.emplace_back();
    entry.name = name;
    entry.budget_bytes = worker.hello.memory_bytes();
    entry.device = DeviceOf(worker.hello);
    entry.idle = worker.group.empty() && cluster_.TakesJobs(worker);
    entry.microbatch_tokens = cluster_.TokensOf(worker);
    entry.device_name = DeviceKeyOf(&worker);
    entry.slowness = worker.slowness;
    if (turn_.now_us() < worker.loaded_until_us) {
      entry.loaded_base_model = worker.loaded_base_model;
      entry.loaded_blocks = worker.loaded_blocks;
    }
    entry.numerics_id = worker.hello.numerics_id();
    entry.transport = worker.hello.transport();
    entry.host = worker.hello.host();
    entry.nccl = worker.hello.nccl();
    entry.joins_failed = worker.joins_failed;
    entry.doubtful = worker.empties();
    entry.silent = cluster_.IsSilent(worker);
    if (const GroupState* group = groups_.Find(worker.group)) {
      entry.doubtful |= IsOverdue(options_, AskedOf(*group), turn_.now_us() - group->heard_us);
      entry.doubtful |= HasJobs(*group) && turn_.now_us() < worker.doubtful_until_us;
    }
  }
  absl::flat_hash_map<std::string_view, const ModelState*> models;
  std::string_view last;  // of many jobs, one after the other, it is the same
  const ModelState* last_model = nullptr;
  const auto model_of = [&](const std::string& base_model) -> const ModelState& {
    if (last_model != nullptr && last == base_model) return *last_model;
    const auto [found, is_new] = models.try_emplace(base_model, nullptr);
    if (is_new) found->second = &catalog_.Model(base_model);
    last = found->first;
    return *(last_model = found->second);
  };
  std::set<std::string_view> members;
  std::vector<const JobState*> moving;
  for (const auto& [name, group] : groups_.all()) {
    if (group.returning()) {
      // Nothing is decided of it, nor of a job that waits and is yet to leave it.
      for (const auto& [job, member] : group.members) members.insert(job);
      continue;
    }
    planner::GroupView& entry = view.groups.emplace_back();
    entry.name = name;
    entry.base_model = group.base_model;
    entry.model = model_of(group.base_model).shape;
    entry.shape = group.shape;
    const WorkerState& worker = WorkerOf(group.first());
    if (group.stages.size() > 1) {
      for (const StageState& stage : group.stages) {
        entry.stages.push_back({stage.worker, stage.range, WorkerOf(stage).hello.memory_bytes()});
      }
    }
    entry.budget_bytes = worker.hello.memory_bytes();
    // Whom it would fit had better go elsewhere than wait for what comes of it.
    const bool silent = std::ranges::any_of(
        group.stages, [&](const StageState& stage) { return cluster_.IsSilent(WorkerOf(stage)); });
    entry.forming = group.phase == GroupState::Phase::kForming && !silent;
    entry.open = (group.phase == GroupState::Phase::kRunning || entry.forming) &&
                 group.then == GroupState::Then::kGoOn && TakesJobs(group);
    entry.worker = group.first().worker;
    entry.device_name = DeviceKeyOf(&worker);
    entry.formed_s = group.formed_us > 0 ? SecondsSince(group.formed_us) : 0;
    if (group.pace.IsKnown()) {
      entry.computed = group.pace.Done();
      entry.computed_s = group.pace.Seconds();
    }
    entry.changes = group.phase != GroupState::Phase::kRunning && !silent;
    if (entry.changes && group.makes_room()) entry.makes_room_for = group.urgent;
    entry.microbatch_tokens = cluster_.TokensOf(worker);
    for (const auto& [job, member] : group.members) {
      members.insert(job);
      entry.jobs.push_back(job);
      entry.adapters.push_back(member.adapter);
      planner::RunningJob& running = entry.running.emplace_back();
      running.longest_sequence = group.shape.longest_sequence;
      running.leaving = true;
      if (const Guest* guest = generations_.Find(job)) {
        running.longest_sequence = guest->longest_tokens;
      }
      const JobState* found = jobs_.FindWhole(job);
      if (!found) continue;  // a guest, or deleted and about to leave
      running = RunningOf(*found);
      for (const StageState& stage : group.stages) std::erase(running.avoids, stage.worker);
      if (member.departing && !found->moves_to.empty()) moving.push_back(found);
      running.leaving = member.leaving || member.departing || !MayDepart(*found);
    }
  }
  for (const JobState* job : moving) AddComing(*job, &view);
  if (view.policy.fair_share) view.left_lately = jobs_.LeftLately();
  const auto add = [&](const JobState& job) {
    view.queue.push_back(Queued(job, model_of(job.job().base_model())));
  };
  const std::vector<JobState*> jobs =
      waiting == Waiting::kAll ? jobs_.queue().All() : jobs_.queue().View();
  view.queue.reserve(jobs.size() + 1);
  for (size_t i = 0; i < jobs.size(); ++i) {
    JobQueue::PrefetchAfter(jobs, i);
    // Who is yet to leave a group is placed when it has.
    if (waiting == Waiting::kThoseLookedAt && members.contains(jobs[i]->name())) continue;
    add(*jobs[i]);
  }
  if (newcomer) add(*newcomer);
  for (const auto& [name, model] : models) AddTimes(std::string(name), &view);
  return view;
}

void Core::State::AddComing(const JobState& job, planner::ClusterView* view) const {
  const auto to = std::ranges::find(view->groups, job.moves_to, &planner::GroupView::name);
  if (to == view->groups.end()) return;  // it is gone meanwhile
  to->jobs.push_back(job.name());
  to->adapters.push_back(ShapeOfAdapter(job.job().adapter()));
  planner::RunningJob& running = to->running.emplace_back(RunningOf(job));
  running.moved_s = 0;
  running.coming = true;
  const int64_t departs_us = groups_.Find(job.job().group())->members.at(job.name()).departs_us;
  running.comes_late = turn_.now_us() - departs_us > kAwaitedUs;
  std::erase(running.avoids, to->worker);
}

void Core::State::Schedule() {
  if (!turn_.room().ok()) {
    for (Guest* guest : generations_.Waiting()) {
      generations_.Say(*guest, std::string(turn_.room().message()));
    }
  }
  if (stopping_ || !turn_.room().ok()) return;
  forecasts_.wanted = true;
  if (jobs_.queue().empty() && !options_.policy.rebalance && generations_.Waiting().empty()) return;
  planner::ClusterView view = ClusterOf(Waiting::kThoseLookedAt);
  Ration(&view);
  for (const planner::Decision& decision : Decide(std::move(view))) Carry(decision);
}

std::string Core::State::WhyWait(const planner::Decision& decision, const JobState* job) {
  std::string why = absl::StrCat(decision.why, WhoIsInTurn());
  std::vector<std::string> avoids;
  if (job && !job->failed_on.empty()) {
    avoids = Queued(*job, catalog_.Model(job->job().base_model())).avoids;
  }
  if (!avoids.empty()) {
    absl::StrAppend(&why, "; another worker is to try it than '", absl::StrJoin(avoids, "', '"),
                    "', on which it failed");
  }
  const std::string rest = cluster_.WhyRest();
  if (rest.empty()) return why;
  // Where none takes jobs, the text of those that rest says all, unless none of these would do.
  const bool lacks = decision.why.starts_with("needs ") || !avoids.empty();
  const bool any = std::ranges::any_of(cluster_.all(), [&](const auto& entry) {
    return entry.second.connection != 0 && cluster_.TakesJobs(entry.second);
  });
  return lacks || (any && !groups_.empty()) ? absl::StrCat(why, "; ", rest) : rest;
}

void Core::State::Carry(const planner::Decision& decision) {
  using Kind = planner::Decision::Kind;
  switch (decision.kind) {
    case Kind::kAdmit:
      for (const std::string& job : decision.jobs) JoinAny(*groups_.Find(decision.group), job);
      break;
    case Kind::kFormGroup: {
      GroupState& group = FormGroup(decision);
      for (const std::string& job : decision.jobs) JoinAny(group, job);
      break;
    }
    case Kind::kReform: {
      GroupState& group = *groups_.Find(decision.group);
      const bool shorter = decision.shape.capacity_tokens < group.shape.capacity_tokens;
      const std::string how =
          absl::StrCat("formed again ", shorter ? "with shorter microbatches" : "in another shape",
                       " to make room");
      for (const std::string& job : decision.jobs) {
        SayWhy(job, absl::StrCat(decision.group, " is ", how, " for it"));
        if (Guest* guest = generations_.Find(job)) guest->reformed = true;
      }
      BeginCut(group, GroupState::Then::kReform, how);
      break;
    }
    case Kind::kDissolve:
      Dissolve(*groups_.Find(decision.group), "it makes room for a job that it does not suit");
      break;
    case Kind::kEvict:
      for (const std::string& job : decision.jobs) Evict(*jobs_.Find(job), decision.why_job);
      break;
    case Kind::kReplace:
      for (const std::string& job : decision.jobs) Move(*jobs_.Find(job), decision);
      break;
    case Kind::kWait:
      for (const std::string& name : decision.jobs) {
        JobState* const job = jobs_.Find(name);
        if (job) job->why = WhyWait(decision, job);
        if (!job) generations_.Say(*generations_.Find(name), WhyWait(decision));
      }
      break;
  }
}

void Core::State::Join(GroupState& group, JobState& job) {
  job.job().set_group(group.name);
  job.job().set_attempts(job.job().attempts() + 1);
  groups_.Join(group, job.name(), ShapeOfAdapter(job.job().adapter()), job.job().step());
  jobs_.Transition(
      job, v1::Job::PREPARING,
      group.phase == GroupState::Phase::kForming
          ? absl::StrCat(group.name, " is being formed on ", GroupTable::WorkersText(group))
          : absl::StrCat("joins ", group.name, " on ", GroupTable::WorkersText(group)));
}

}  // namespace lorad::server
