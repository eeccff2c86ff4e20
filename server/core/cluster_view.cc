// The status of the cluster, and other answers that change nothing.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

v1::SchedulingPolicy PolicyOf(const CoreOptions& options) {
  const planner::SchedulePolicy& policy = options.policy;
  v1::SchedulingPolicy proto;
  proto.set_evict(policy.evict);
  proto.set_rebalance(policy.rebalance);
  proto.set_minimum_run_seconds(policy.minimum_run_s);
  proto.set_points_per_hour(policy.points_per_hour);
  proto.set_points_max(policy.points_max);
  proto.set_least_gain(policy.least_gain);
  proto.set_least_share(policy.least_share);
  proto.set_share_label(options.share_label);
  proto.set_microbatch_tokens(options.microbatch_tokens);
  return proto;
}

v1::ForecastErrors ToProto(const planner::ForecastErrors& errors) {
  v1::ForecastErrors proto;
  proto.set_forecasts(errors.observations());
  proto.set_mean_error(errors.mean_error());
  proto.set_inside(errors.share_inside());
  return proto;
}

// Of one that is lost, and was there before this start of the coordinator, so many seconds ago.
std::string WhyAway(const WorkerState& worker, int64_t start_s) {
  const std::string since = absl::StrCat("since the coordinator was started, ", start_s, " s ago");
  const char* const holds = ": it may still hold ";
  if (worker.awaited) return absl::StrCat("is awaited ", since, holds, worker.group);
  return worker.connections == 0 ? absl::StrCat("has not come back ", since) : "";
}

}  // namespace

void Core::State::On(uint64_t request, const v1::GetClusterRequest&) {
  turn_.Answer(request, ViewCluster());
}

void Core::State::On(uint64_t request, const v1::ListWorkersRequest&) {
  turn_.Answer(request, ViewWorkers());
}

std::optional<ReplyValue> Core::State::Look(const Request& request,
                                            const absl::Status& unwritable) {
  const absl::Status room = turn_.room();
  turn_.SetRoom(unwritable);  // jobs wait for the one as for the other
  std::optional<ReplyValue> seen = LookNow(request);
  turn_.SetRoom(room);
  return seen;
}

std::optional<ReplyValue> Core::State::LookNow(const Request& request) {
  if (std::holds_alternative<v1::GetClusterRequest>(request)) return ViewCluster();
  if (std::holds_alternative<v1::ListWorkersRequest>(request)) return ViewWorkers();
  if (const auto* trace = std::get_if<v1::GetTraceRequest>(&request)) {
    absl::StatusOr<MeasuredGroup> measured = Measure(*trace);
    if (!measured.ok()) return std::nullopt;
    return *std::move(measured);
  }
  const auto* asked = std::get_if<EstimateJob>(&request);
  if (!asked) return std::nullopt;
  EstimateJob estimate = *asked;
  if (!FindLive(&estimate).ok() || !CheckReferences(estimate.job).ok()) return std::nullopt;
  for (const std::string& key : rows_.KeysOf(estimate.job)) {
    if (!rows_.Find(key)) return std::nullopt;  // they would have to be checked
  }
  absl::StatusOr<v1::JobEstimate> made = Estimate(estimate.job);
  if (!made.ok()) return std::nullopt;
  return *std::move(made);
}

v1::ClusterStatus Core::State::ViewCluster() {
  v1::ClusterStatus status;
  status.set_version(options_.version);
  turn_.StampWall(turn_.start_wall_us(), status.mutable_start_time());
  if (!turn_.room().ok()) {
    status.add_warnings(absl::StrCat(turn_.room().message(), "; jobs wait until then"));
  }
  int workers = 0;
  for (const auto& [name, worker] : cluster_.all()) workers += worker.connection != 0;
  status.set_workers(workers);
  for (const auto& [state, count] : jobs_.count_by_state()) {
    if (count > 0) {
      (*status.mutable_jobs_by_state())[ToText(static_cast<v1::Job::State>(state))] = count;
    }
  }
  for (const auto& [name, group] : groups_.all()) {
    v1::Group& view = *status.add_groups();
    view.set_name(name);
    view.set_epoch(group.epoch);
    view.set_base_model(group.base_model);
    int64_t reserved_bytes = 0;
    bool goes_on = turn_.room().ok();
    for (const StageState& stage : group.stages) {
      const WorkerState& worker = WorkerOf(stage);
      goes_on = goes_on && worker.connection != 0 && !cluster_.IsSilent(worker);
      view.add_workers(stage.worker);
      reserved_bytes += stage.reserved_bytes;
    }
    for (const auto& [job, member] : group.members) {
      if (!member.leaving && !Generations::IsGuest(job)) view.add_jobs(job);
    }
    view.set_capacity_tokens(static_cast<int32_t>(group.shape.capacity_tokens));
    view.set_recomputation(ToProto(group.shape.recomputation));
    if (const planner::MemoryFit* fit =
            cluster_.fits().MemoryOf(group.base_model, WorkerOf(group.first()))) {
      const double error = fit->mean_error();
      view.set_memory_peaks(fit->observations());
      view.set_memory_prediction_error(std::isnan(error) ? 0 : error);
    }
    view.set_windows(group.windows_done);
    view.set_microbatches(group.microbatches);
    if (group.microbatches > 0) {
      view.set_adapters_per_microbatch(static_cast<double>(group.adapters_in_microbatches) /
                                       static_cast<double>(group.microbatches));
    }
    if (goes_on) {
      view.set_tokens_per_second(group.pace.PerSecond(group.pace.Done().tokens));
    }
    view.set_reserved_bytes(reserved_bytes);
    view.set_bound_microbatches(group.bound_microbatches);
    view.set_planning_seconds(static_cast<double>(group.planning_us) / 1e6);
    view.set_planning_hidden_seconds(static_cast<double>(group.planning_hidden_us) / 1e6);
    view.mutable_packings()->insert(group.packings.begin(), group.packings.end());
    const planner::Shares shares = planner::SharesOf(MomentsOf(group, kMeasuredKept));
    AddStages(group, shares, view.mutable_stages());
    view.set_adopted(group.adopted > 0);
    view.set_returning(group.returning());
    view.set_measured_microbatches(shares.microbatches);
    view.set_bubble_ratio(shares.bubble_ratio);
  }
  AddTimes(&status);
  *status.mutable_start_errors() = ToProto(cluster_.fits().starts());
  *status.mutable_end_errors() = ToProto(cluster_.fits().ends());
  *status.mutable_policy() = PolicyOf(options_);
  return status;
}

void Core::State::AddTimes(v1::ClusterStatus* status) {
  planner::ClusterView view;
  for (const auto& [name, model] : catalog_.models()) AddTimes(name, &view);
  for (const auto& [key, times] : view.times) {
    v1::TrainingTimes& entry = *status->add_times();
    entry.set_base_model(key.first);
    entry.set_device_key(key.second);
    entry.set_constant_ms(times.constant_ms);
    entry.set_token_ms(times.token_ms);
    entry.set_squared_ms(times.squared_ms);
    entry.set_adapter_ms(times.adapter_ms);
    entry.set_load_seconds(view.load_s[key]);
  }
}

v1::ListWorkersResponse Core::State::ViewWorkers() const {
  v1::ListWorkersResponse response;
  for (const auto& [name, worker] : cluster_.all()) *response.add_workers() = ViewWorker(worker);
  return response;
}

v1::Worker Core::State::ViewWorker(const WorkerState& worker) const {
  v1::Worker view;
  const GroupState* group = groups_.Find(worker.group);
  const bool empty = !group || (group->members.empty() && group->windows_at_hand() == 0);
  view.set_name(worker.hello.worker());
  view.set_state(cluster_.IsAwaited(worker) ? v1::Worker::AWAITED
                 : worker.connection == 0   ? v1::Worker::LOST
                 : worker.empties()         ? empty ? v1::Worker::DRAINED : v1::Worker::DRAINING
                 : group && group->phase == GroupState::Phase::kForming ? v1::Worker::FORMING
                 : empty                                                ? v1::Worker::IDLE
                                                                        : v1::Worker::BUSY);
  view.set_device(worker.hello.device());
  view.set_device_name(worker.hello.device_name());
  view.set_memory_bytes(worker.hello.memory_bytes());
  view.set_threads(worker.hello.threads());
  view.set_group(worker.group);
  view.set_pid(worker.hello.pid());
  view.set_version(worker.hello.version());
  view.set_numerics_id(worker.hello.numerics_id());
  turn_.StampWall(worker.connect_wall_us, view.mutable_connect_time());
  view.set_restarts(std::max(worker.connections - 1, 0));
  view.set_lies(worker.lies);
  view.set_resting(worker.connection == 0 ? WhyAway(worker, turn_.run_us() / 1'000'000)
                   : worker.leaving       ? Cluster::WhyEmpties(worker)
                                          : cluster_.WhyRests(worker));
  view.set_drained(worker.drained);
  view.set_drain_reason(worker.drain_reason);
  view.set_multiprocessors(worker.hello.multiprocessors());
  view.set_value_bytes(DeviceOf(worker.hello).value_bytes);
  view.set_device_key(DeviceKeyOf(&worker));
  view.set_relative_speed(1 / worker.slowness);
  view.set_host(worker.hello.host());
  view.set_transport(worker.hello.transport());
  if (group) {
    const auto stage = std::ranges::find(group->stages, view.name(), &StageState::worker);
    view.set_stage(static_cast<int32_t>(stage - group->stages.begin()));
    view.set_stages(static_cast<int32_t>(group->stages.size()));
  }
  view.set_resident_bytes(worker.resident_bytes);
  view.set_peak_resident_bytes(worker.peak_bytes);
  if (worker.drained) turn_.StampWall(worker.drain_wall_us, view.mutable_drain_time());
  return view;
}

}  // namespace lorad::server
