#include "tests/sim/idleness.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>

#include "planner/schedule/ends.h"
#include "planner/schedule/schedule.h"
#include "server/core/catalog/model_shape.h"
#include "storage/models/model_description.h"
#include "tests/storage/published_configs.h"

namespace lorad::sim {
namespace {

constexpr int64_t kLookUs = 1'000'000;
constexpr int64_t kIdleUs = 10'000'000;
// A group that trains nobody may be being cut, or a job that leaves it is being saved: a shard that
// got lost is asked for again after a minute.
constexpr int64_t kAnswersUs = 90'000'000;
constexpr int kQuestions = 3;
// Jobs that were moved stay for a minimum run. Where that is longer than a history, nobody need move
// again.
constexpr int64_t kRunUs = 5'000'000;
constexpr int64_t kSharedUs = 15'000'000;
// What a move gains by far, whatever the coordinator's times err by.
constexpr double kGainS = 15;
constexpr double kGainShare = 0.3;

// It has met a failure that passes: its back-off is not over. Or the store has: nothing is begun. Or
// a quota holds it.
bool IsPostponed(const v1::Job& job) {
  const std::string& why = job.queue().why();
  return why.find("tried again at") != std::string::npos ||
         why.find("the store cannot be written") != std::string::npos ||
         why.find("quota team=") != std::string::npos;
}

// Its last checkpoint is being written, or the group that it leaves is cut.
bool IsSaved(const v1::Job& job) {
  const std::string& why = job.queue().why();
  return why.ends_with(" is being written") || why.ends_with(" is not free yet");
}

// Somebody says that the worker is kept for a job, or an ask, that needs several.
bool IsKept(const v1::Worker& worker, const v1::ListJobsResponse& jobs) {
  const std::string kept = absl::StrCat("worker ", worker.name(), " is kept for ");
  return std::ranges::any_of(jobs.jobs(), [&](const v1::Job& job) {
    return job.queue().why().find(kept) != std::string::npos;
  });
}

// Another job may need several workers: those that it will get idle until it has all.
bool AreKept(const v1::Job& job, const v1::ListJobsResponse& jobs) {
  return std::ranges::any_of(jobs.jobs(), [&](const v1::Job& other) {
    return other.state() == v1::Job::QUEUED && other.base_model() != job.base_model() &&
           ModelNamed(other.base_model()).shape.layers > 1 &&
           &ModelNamed(other.base_model()) != &TinyModel();
  });
}

bool IsThere(const v1::Worker& worker) {
  const bool away = worker.state() == v1::Worker::LOST || worker.state() == v1::Worker::AWAITED;
  return !away && !worker.drained();
}

// Of these the workers that the job may be on: not those on which it failed, as it says, for another
// is to try it.
std::vector<const v1::Worker*> Without(const std::vector<const v1::Worker*>& workers,
                                       const v1::Job& job) {
  const std::string& why = job.queue().why();
  const std::size_t at = why.find("another worker is to try it than ");
  if (at == std::string::npos) return workers;
  INFO(job.name() << ": " << why);
  REQUIRE(job.attempts() > 0);
  const std::string failed = why.substr(at, why.find(", on which it failed", at) - at);
  std::vector<const v1::Worker*> others = workers;
  std::erase_if(others, [&](const v1::Worker* worker) {
    return failed.find(absl::StrCat("'", worker->name(), "'")) != std::string::npos;
  });
  return others;
}

// In no group, or in one without jobs: of nobody, or of adapters and base models that are asked.
bool MayTrain(const v1::Worker& worker, const v1::ClusterStatus& cluster) {
  if (worker.state() == v1::Worker::IDLE) return true;
  const auto group = std::ranges::find(cluster.groups(), worker.group(),
                                       [](const auto& one) { return one.name(); });
  return group != cluster.groups().end() && group->jobs().empty() && !group->returning();
}

}  // namespace

Idleness::Idleness(Site& site, const SiteOptions& options)
    : site_(site),
      turns_(options.in_turn),
      minimum_run_us_(options.core.policy.minimum_run_s * 1'000'000) {
  for (const Machine& machine : options.machines) machines_[machine.worker] = machine;
}

void Idleness::Look() {
  const auto again = [this] { site_.At(site_.now_us() + kLookUs, [this] { Look(); }); };
  const SimDisk& disk = site_.disk();
  const bool is_ill =
      disk.read_only() || disk.capacity_bytes() != SimDisk::kUnbounded || site_.files_hang();
  const bool stood_still = site_.now_us() - looked_us_ > 3 * kLookUs;
  if (is_ill || stood_still || !site_.serves() || site_.stops()) Forget();
  looked_us_ = site_.now_us();
  // One event after the other: nothing happens between them. Their answers may come in any order.
  auto seen = std::make_shared<Seen>();
  const auto ask = [&]<class Answer>(server::Request request, Answer Seen::*part) {
    site_.Ask(std::move(request),
              [this, again, seen, part](const absl::StatusOr<server::ReplyValue>& value) {
                if (value.ok()) (*seen).*part = std::get<Answer>(*value);
                seen->whole &= value.ok();
                if (++seen->answers < kQuestions) return;
                // Answers that took so long say nothing of the time in between.
                const bool stood_still = site_.now_us() - looked_us_ > 3 * kLookUs;
                seen->whole && !stood_still ? Compare(*seen) : Forget();
                again();
              });
  };
  v1::ListJobsRequest jobs;
  jobs.set_page_size(1000);
  ask(v1::GetClusterRequest(), &Seen::cluster);
  ask(v1::ListWorkersRequest(), &Seen::workers);
  ask(jobs, &Seen::jobs);
}

void Idleness::Compare(const Seen& seen) {
  Workers idle, answering, free;
  busy_.clear();
  for (const v1::Worker& worker : seen.workers.workers()) {
    if (!IsThere(worker)) continue;
    // A rest may take a minute, and what it holds alone waits for that; that it ends, the end of the
    // history shows.
    if (!worker.resting().empty() || !MayTrain(worker, seen.cluster) || IsKept(worker, seen.jobs)) {
      busy_.push_back(&worker);
      continue;
    }
    free.push_back(&worker);
    (worker.group().empty() ? idle : answering).push_back(&worker);
  }
  Compare(free, seen.jobs, kAnswersUs, &since_answering_us_);
  // What one of those holds alone waits for it, beside several idle ones that would hold it.
  busy_.insert(busy_.end(), answering.begin(), answering.end());
  Compare(idle, seen.jobs, kIdleUs, &since_us_);
  busy_.clear();
  if (minimum_run_us_ <= kRunUs) CompareShared(free, seen);
  turns_.Look(
      site_.now_us(), seen.workers, seen.cluster, seen.jobs,
      [this](const v1::Worker& worker, const v1::Job& job) { return HaveRoom({&worker}, job); },
      [this](const std::string& job) { return site_.LastMove(job); });
}

bool Idleness::IsCrowded(const v1::Group& group, const v1::Worker& free, const Seen& seen,
                         const Moves& moves) const {
  const auto comes = [&](const auto& move) { return move.second.to == free.group(); };
  if (!free.group().empty() && std::ranges::any_of(moves, comes)) return false;
  const auto worker =
      std::ranges::find(seen.workers.workers(), group.workers(0), &v1::Worker::name);
  const auto times = std::ranges::find_if(seen.cluster.times(), [&](const auto& one) {
    return one.base_model() == group.base_model() && one.device_key() == free.device_key();
  });
  if (worker == seen.workers.workers().end() || worker->device_key() != free.device_key() ||
      worker->memory_bytes() > free.memory_bytes() || times == seen.cluster.times().end()) {
    return false;
  }
  planner::Crew crew;
  for (const std::string& name : group.jobs()) {
    if (moves.contains(name)) continue;
    const auto job = std::ranges::find(seen.jobs.jobs(), name, &v1::Job::name);
    // Evaluations have others train beside them, and by how much is the policy's to say.
    if (job == seen.jobs.jobs().end() || job->state() != v1::Job::RUNNING ||
        job->total_steps() == 0 || job->finish_step() > 0 || !job->validation_dataset().empty()) {
      return false;
    }
    const auto steps = static_cast<double>(job->total_steps());
    const int64_t parameters = planner::AdapterParameters(ModelNamed(job->base_model()).shape,
                                                          server::ShapeOfAdapter(job->adapter()));
    crew.Add({.step = planner::StepOf(static_cast<double>(job->total_tokens()) / steps,
                                      job->total_squared_lengths() / steps, parameters),
              .remaining_steps = job->total_steps() - job->step()});
  }
  const planner::TimeCoefficients pace{.constant_ms = times->constant_ms(),
                                       .token_ms = times->token_ms(),
                                       .squared_ms = times->squared_ms(),
                                       .adapter_ms = times->adapter_ms()};
  const double together_s = crew.SumOfEnds(pace, group.capacity_tokens());
  for (size_t i = 0; i < crew.size(); ++i) {
    planner::Crew alone;
    alone.Add(crew.jobs()[i]);
    const double gain_s = together_s - crew.SumOfEnds(pace, group.capacity_tokens(), nullptr, i) -
                          alone.SumOfEnds(pace, group.capacity_tokens()) - times->load_seconds();
    if (gain_s > kGainS && gain_s > kGainShare * together_s) return true;
  }
  return false;
}

Idleness::Moves Idleness::PendingMoves(const v1::ClusterStatus& cluster) {
  Moves moves;
  Since since_us;
  for (const v1::Group& group : cluster.groups()) {
    for (const std::string& job : group.jobs()) {
      const auto move = site_.LastMove(job);
      if (!move || !move->pending) continue;
      moves[job] = *move;
      const auto before = since_sent_us_.find(job);
      since_us[job] = before == since_sent_us_.end() ? site_.now_us() : before->second;
      INFO(job << " is to leave " << group.name() << " for " << move->to << " since "
               << since_us[job] << " us");
      REQUIRE(site_.now_us() - since_us[job] < kAnswersUs);
    }
  }
  since_sent_us_ = std::move(since_us);
  return moves;
}

void Idleness::CompareShared(const Workers& free, const Seen& seen) {
  Since since_us;
  std::optional<Moves> moves;
  for (const v1::Group& group : seen.cluster.groups()) {
    if (group.workers_size() != 1 || group.jobs_size() < 2) continue;
    const auto gains = [&](const v1::Worker* worker) {
      if (!IsCrowded(group, *worker, seen, moves.value_or(Moves()))) return false;
      // What was sent is read where it matters alone.
      if (!moves) moves = PendingMoves(seen.cluster);
      return IsCrowded(group, *worker, seen, *moves);
    };
    const auto beside = std::ranges::find_if(free, gains);
    if (beside == free.end()) continue;
    const auto before = since_shared_us_.find(group.name());
    since_us[group.name()] = before == since_shared_us_.end() ? site_.now_us() : before->second;
    INFO("jobs share " << group.ShortDebugString() << " since " << since_us[group.name()]
                       << " us beside " << (*beside)->ShortDebugString());
    REQUIRE(site_.now_us() - since_us[group.name()] < kSharedUs + 2 * minimum_run_us_);
  }
  if (!moves) since_sent_us_.clear();
  since_shared_us_ = std::move(since_us);
}

void Idleness::Compare(const Workers& free, const v1::ListJobsResponse& jobs, int64_t us_max,
                       Since* since_before_us) {
  Since since_us;
  for (const v1::Job& job : jobs.jobs()) {
    if (job.state() != v1::Job::QUEUED || IsPostponed(job)) continue;
    if (AreKept(job, jobs) || !HaveRoom(Without(free, job), job)) continue;
    const auto before = since_before_us->find(job.name());
    since_us[job.name()] = before == since_before_us->end() ? site_.now_us() : before->second;
    INFO("job " << job.ShortDebugString() << " waits since " << since_us[job.name()]
                << " us beside " << free.size() << " workers that idle or only answer, the first "
                << free.front()->ShortDebugString());
    REQUIRE(site_.now_us() - since_us[job.name()] < (IsSaved(job) ? kAnswersUs : us_max));
  }
  *since_before_us = std::move(since_us);
}

// As the policy has it, if there were nobody else. Jobs of one shape fare alike.
bool Idleness::HaveRoom(const Workers& idle, const v1::Job& job) {
  std::string who;
  for (const Workers* workers : {&idle, static_cast<const Workers*>(&busy_)}) {
    for (const v1::Worker* worker : *workers) {
      absl::StrAppend(&who, worker->name(), " ", worker->memory_bytes(), " ");
    }
    absl::StrAppend(&who, "/ ");
  }
  const auto [room, is_new] =
      rooms_.try_emplace({who, job.base_model(), job.adapter().rank(), site_.LongestRowOf(job)});
  if (is_new) room->second = FindRoom(idle, job);
  return room->second;
}

planner::WorkerView Idleness::ViewOf(const v1::Worker& worker, bool idle) const {
  const Machine& machine = machines_.at(worker.name());
  worker::v1::Hello hello;
  hello.set_device(machine.device);
  hello.set_threads(machine.threads);
  hello.set_multiprocessors(machine.multiprocessors);
  planner::WorkerView view;
  view.name = worker.name();
  view.budget_bytes = worker.memory_bytes();
  view.device = server::DeviceOf(hello);
  view.idle = idle;
  view.microbatch_tokens = 64;
  view.numerics_id = machine.numerics_id;
  // Alone it trains as others do; a group of several needs who reaches it.
  if (machine.isolated) view.transport = machine.worker;
  return view;
}

bool Idleness::FindRoom(const Workers& idle, const v1::Job& job) const {
  planner::ClusterView view;
  view.microbatch_tokens = 64;
  for (const Workers* workers : {&idle, &busy_}) {
    for (const v1::Worker* worker : *workers) {
      if (!machines_.contains(worker->name())) continue;  // it lied about its name
      view.workers.push_back(ViewOf(*worker, workers == &idle));
    }
  }
  planner::QueuedJob& queued = view.queue.emplace_back();
  queued.job = job.name();
  queued.base_model = job.base_model();
  queued.model = std::make_shared<const planner::ModelShape>(ModelNamed(job.base_model()).shape);
  queued.longest_sequence = site_.LongestRowOf(job);
  queued.adapter = planner::ShareAdapter(server::ShapeOfAdapter(job.adapter()));
  for (const planner::Decision& decision : planner::Schedule(view)) {
    if (decision.kind == planner::Decision::Kind::kFormGroup) return true;
  }
  return false;
}

}  // namespace lorad::sim
