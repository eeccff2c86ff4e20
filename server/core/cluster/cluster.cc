#include "server/core/cluster/cluster.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/catalog/stored.h"
#include "server/core/cluster/report_checks.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/losses.h"
#include "server/validation/limits.h"
#include "sizes/bytes_text.h"

namespace lorad::server {
namespace {

constexpr int64_t kForgetUs = 24LL * 3600 * 1'000'000;  // a lost worker
// Its process keeps weights for 30 s (worker/core/core.h) from when it has left the group; an order
// that comes to it within them is under way by then.
constexpr int64_t kWeightsKeptUs = 25'000'000;

// It is lost, and no group of before this start waits for it.
bool MayBeForgotten(const WorkerState& worker) { return worker.connection == 0 && !worker.awaited; }

}  // namespace

absl::Status Cluster::Load(const std::vector<std::pair<std::string, std::string>>& stored) {
  for (const auto& entry : stored) {
    records::WorkerRecord record;
    if (auto status = ParseStored(kWorkerKind, entry, &record); !status.ok()) return status;
    WorkerState& worker = workers_[entry.first];
    worker.hello = std::move(*record.mutable_hello());
    worker.connect_wall_us = record.connect_time_us();
    worker.drained = record.drained();
    worker.drain_reason = record.drain_reason();
    worker.drain_wall_us = record.drain_time_us();
  }
  return absl::OkStatus();
}

void Cluster::Start() {
  for (auto& [name, worker] : workers_) worker.lost_us = turn_.now_us();
}

// ---- finding ----

std::vector<WorkerState*> Cluster::Connected() {
  std::vector<WorkerState*> connected;
  for (auto& [name, worker] : workers_) {
    if (worker.connection != 0) connected.push_back(&worker);
  }
  return connected;
}

WorkerState* Cluster::Find(const std::string& name) {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

WorkerState* Cluster::FindConnection(uint64_t connection) {
  if (connection == 0) return nullptr;  // as those have who are lost
  for (auto& [name, worker] : workers_) {
    if (worker.connection == connection) return &worker;
  }
  return nullptr;
}

// ---- coming and going ----

bool Cluster::MakeRoom() {
  if (workers_.size() < static_cast<size_t>(kWorkersMax)) return true;
  // Those that are connected, or awaited, stand at the end, and drained ones before them.
  const auto first = std::ranges::min_element(workers_, {}, [](const auto& entry) {
    const WorkerState& worker = entry.second;
    return std::tuple(!MayBeForgotten(worker), worker.drained, worker.lost_us);
  });
  if (!MayBeForgotten(first->second)) return false;
  Erase(first);
  return true;
}

void Cluster::ForgetLost() {
  for (auto entry = workers_.begin(); entry != workers_.end();) {
    const WorkerState& worker = entry->second;
    // A drained one is drained until somebody says otherwise, also while its machine is away.
    const bool old =
        MayBeForgotten(worker) && !worker.drained && turn_.now_us() - worker.lost_us > kForgetUs;
    entry = old ? Erase(entry) : std::next(entry);
  }
}

std::map<std::string, WorkerState>::iterator Cluster::Erase(
    std::map<std::string, WorkerState>::iterator entry) {
  turn_.Put(storage::DeleteRecord(kWorkerKind, entry->first));
  return workers_.erase(entry);
}

void Cluster::Connect(uint64_t connection, const worker::v1::Hello& hello,
                      worker::v1::Welcome welcome) {
  const auto [entry, is_new] = workers_.try_emplace(hello.worker());
  WorkerState& worker = entry->second;
  assert(worker.connection == 0);
  if (is_new) grown_us_ = turn_.now_us();
  worker.awaited = false;
  worker.connections++;
  worker.connection = connection;
  if (!IsSameProcess(hello, worker.hello)) {
    ForgetSpeed(worker);
    worker.loaded_base_model.clear();
  }
  worker.hello = hello;
  worker.connect_wall_us = turn_.wall_us();
  worker.heard_us = turn_.now_us();
  worker.peak_bytes = 0;
  Put(worker);
  welcome.set_heartbeat_ms(static_cast<int32_t>(options_.heartbeat_ms));
  welcome.set_lease_ms(static_cast<int32_t>(options_.lease_ms));
  worker::v1::CoordinatorMessage message;
  *message.mutable_welcome() = std::move(welcome);
  turn_.Do(Send{connection, std::move(message)});
  turn_.Info(absl::StrCat("worker '", hello.worker(), "' connected: ", hello.device(), ", ",
                          hello.threads(), " threads, ", sizes::MemoryText(hello.memory_bytes())));
  WarnOfOthers(worker);
  SetTick();
  turn_.WantSchedule();
}

void Cluster::LeaveGroup(WorkerState& worker, const std::string& held,
                         const planner::StageRange& blocks) {
  worker.group.clear();
  worker.awaited = false;
  worker.loaded_base_model = held;
  worker.loaded_blocks = blocks;
  worker.loaded_until_us = turn_.now_us() + kWeightsKeptUs;
}

void Cluster::WarnOfOthers(const WorkerState& worker) {
  WarnOfTransports(worker);
  const worker::v1::Hello& hello = worker.hello;
  if (hello.version() != options_.version && !options_.version.empty()) {
    turn_.Warn(absl::StrCat("worker '", hello.worker(), "' is of version ", hello.version(),
                            ", this lorad of ", options_.version, ": run both from one release"));
  }
  for (const auto& [name, other] : workers_) {
    if (other.connection == 0 || other.hello.numerics_id() == hello.numerics_id()) continue;
    turn_.Warn(absl::StrCat("worker '", hello.worker(), "' has numerics ", hello.numerics_id(),
                            ", and worker '", name, "' ", other.hello.numerics_id(),
                            ": a job's bits depend on which of them trains it"));
    return;  // one says enough
  }
}

void Cluster::WarnOfTransports(const WorkerState& worker) {
  const worker::v1::Hello& hello = worker.hello;
  for (const auto& [name, other] : workers_) {
    if (other.connection == 0 || other.hello.transport() == hello.transport()) continue;
    turn_.Warn(absl::StrCat("worker '", hello.worker(), "' reaches other stages by '",
                            hello.transport(), "', and worker '", name, "' by '",
                            other.hello.transport(), "': no group has both (--transport)"));
    return;  // one says enough
  }
}

void Cluster::Put(const WorkerState& worker) {
  records::WorkerRecord record;
  *record.mutable_hello() = worker.hello;
  record.set_connect_time_us(worker.connect_wall_us);
  record.set_drained(worker.drained);
  record.set_drain_reason(worker.drain_reason);
  record.set_drain_time_us(worker.drain_wall_us);
  turn_.Put(storage::PutRecord(kWorkerKind, worker.hello.worker(), record.SerializeAsString()));
}

// ---- heartbeats ----

void Cluster::OnHeartbeat(WorkerState& worker, const worker::v1::Heartbeat& heartbeat) {
  worker.resident_bytes = heartbeat.resident_bytes();
  if (heartbeat.clock_us() > 0) worker.clock_offset.Heard(turn_.now_us(), heartbeat.clock_us());
  worker.peak_bytes = std::max(worker.peak_bytes, heartbeat.peak_resident_bytes());
  if (worker.leaves_epoch == 0 || heartbeat.epoch() == worker.leaves_epoch) return;
  worker.leaves_epoch = 0;
  turn_.WantSchedule();
}

int64_t Cluster::ClockOffsetUs(const WorkerState& worker) const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [name, other] : workers_) {
    const bool shares_clock =
        &other == &worker || (other.connection != 0 && !worker.hello.host().empty() &&
                              other.hello.host() == worker.hello.host());
    if (shares_clock && other.clock_offset.known()) {
      least = std::min(least, other.clock_offset.us());
    }
  }
  return least == std::numeric_limits<int64_t>::max() ? 0 : least;
}

void Cluster::Drain(WorkerState& worker, const std::string& reason) {
  if (!worker.drained) worker.drain_wall_us = turn_.wall_us();
  worker.drained = true;
  worker.drain_reason = reason;
  Put(worker);
}

void Cluster::Undrain(WorkerState& worker) {
  if (!worker.drained) return;
  worker.drained = false;
  worker.drain_reason.clear();
  worker.drain_wall_us = 0;
  Put(worker);
}

void Cluster::Lose(WorkerState& worker) {
  worker.connection = 0;
  worker.lost_us = turn_.now_us();
  worker.memory_rest = {};
  worker.memory_was_taken = false;
  worker.files_rest = {};
  worker.joins_failed = 0;
  worker.doubtful_until_us = 0;
  worker.leaving = false;
  worker.leaves_epoch = 0;
  worker.group.clear();
  worker.reforms.clear();
  turn_.WantSchedule();
}

bool Cluster::IsAwaited(const WorkerState& worker) const {
  if (worker.connection != 0) return false;
  const int64_t since_us = worker.connections == 0 ? worker.lost_us : worker.heard_us;
  return worker.awaited || turn_.now_us() - since_us < options_.lease_ms * kMillisecond;
}

void Cluster::End(WorkerState& worker) {
  worker.hello.set_outlives_coordinator(false);
  Put(worker);
}

std::string Cluster::WhyTaken(const worker::v1::Hello& hello) const {
  const auto found = workers_.find(hello.worker());
  if (found == workers_.end()) return "";
  const WorkerState& worker = found->second;
  constexpr char kMend[] =
      "give this one another name (--name, with a bundle for it where it has one)";
  if (worker.connection != 0) {
    if (IsSilent(worker)) return "";  // it may be dead
    return absl::StrCat("a worker named '", hello.worker(), "' is connected and alive: ", kMend);
  }
  const bool may_live = worker.connections == 0 && worker.hello.outlives_coordinator();
  if (!may_live || !IsAwaited(worker) || IsSameProcess(hello, worker.hello)) return "";
  return absl::StrCat(
      "process ", worker.hello.pid(), " on host '", worker.hello.host(), "' had the name '",
      hello.worker(),
      "' before the coordinator was started, and may still live: it is awaited for ",
      options_.lease_ms / 1000, " s from that, and this one, process ", hello.pid(), " on host '",
      hello.host(), "', tries again; if both live, ", kMend);
}

void Cluster::RenewLeases() {
  for (WorkerState* worker : Connected()) worker->heard_us = turn_.now_us();
}

int64_t Cluster::TickUs() const {
  return std::max<int64_t>(options_.lease_ms / 8, 1) * kMillisecond;
}

void Cluster::SetTick() {
  if (tick_us_ != 0) return;
  tick_us_ = turn_.now_us() + TickUs();
  turn_.Do(SetTimer{kTick, tick_us_});
}

int64_t Cluster::TakeTick() { return turn_.now_us() - std::exchange(tick_us_, 0); }

// ---- what a job would take ----

int64_t Cluster::TokensOf(const WorkerState& worker) const {
  // How much other processes have taken of its memory is not known: the less is asked for, the
  // better.
  if (worker.memory_was_taken && options_.microbatch_tokens == 0) return planner::kMicrobatchTokens;
  return options_.microbatch_tokens;
}

int64_t Cluster::UsualTokens(const WorkerState& worker) const {
  const int64_t tokens = TokensOf(worker);
  if (tokens > 0) return tokens;
  const bool gpu = DeviceOf(worker.hello).kind == planner::DeviceKind::kCuda;
  return gpu ? planner::kMicrobatchTokensOfGpu : planner::kMicrobatchTokens;
}

LoneGroup Cluster::GroupAlone(const planner::QueuedJob& job) const {
  const auto key = [](const LoneGroup& alone) {
    return std::pair(alone.total() - alone.budget_bytes, alone.worker->slowness);
  };
  LoneGroup best;
  for (const auto& [name, worker] : workers_) {
    LoneGroup alone = GroupAloneOn(&worker, job);
    if (best.worker == nullptr || key(alone) < key(best)) best = alone;
  }
  return best.worker ? best : GroupAloneOn(nullptr, job);
}

std::vector<planner::WorkerView> Cluster::Views() const {
  std::vector<planner::WorkerView> views;
  for (const auto& [name, worker] : workers_) {
    planner::WorkerView& view = views.emplace_back();
    view.name = name;
    view.budget_bytes = worker.hello.memory_bytes();
    view.device = DeviceOf(worker.hello);
    view.slowness = worker.slowness;
    view.idle = true;
    view.microbatch_tokens = TokensOf(worker);
    view.numerics_id = worker.hello.numerics_id();
    view.transport = worker.hello.transport();
    view.host = worker.hello.host();
    view.nccl = worker.hello.nccl();
  }
  return views;
}

LoneGroup Cluster::GroupAloneOn(const WorkerState* worker, const planner::QueuedJob& job) const {
  LoneGroup alone;
  alone.worker = worker;
  if (worker) {
    alone.device = DeviceOf(worker->hello);
    alone.budget_bytes = worker->hello.memory_bytes();
  }
  alone.shape = planner::ShapeAlone(
      job, alone.device, worker ? alone.budget_bytes : std::numeric_limits<int64_t>::max(),
      worker ? TokensOf(*worker) : options_.microbatch_tokens);
  alone.group = planner::BytesOfGroup(*job.model, alone.shape);
  alone.slot = planner::BytesOfSlot(*job.model, *job.adapter, alone.device);
  return alone;
}

bool Cluster::AnotherHolds(const planner::QueuedJob& job, const std::vector<std::string>& than,
                           When when) const {
  return std::ranges::any_of(workers_, [&](const auto& entry) {
    const auto& [name, worker] = entry;
    const bool there = worker.connection != 0 || IsAwaited(worker);
    const bool now = there && !worker.empties();
    const bool soon = there || turn_.now_us() - worker.lost_us < kForgivenUs;
    return (when == When::kNow ? now : soon) && std::ranges::find(than, name) == than.end() &&
           planner::FitsAlone(job, DeviceOf(worker.hello), worker.hello.memory_bytes(),
                              TokensOf(worker));
  });
}

// ---- invariants ----

absl::Status Cluster::CheckInvariants() const {
  std::set<uint64_t> connections;
  for (const auto& [name, worker] : workers_) {
    const auto broken = [&](const std::string& what) {
      return absl::InternalError(absl::StrCat("cluster: worker '", name, "' ", what));
    };
    if (worker.hello.worker() != name) return broken("gave another name");
    if (worker.awaited != (worker.connection == 0 && !worker.group.empty())) {
      return broken("is lost and has a group, or is awaited by none");
    }
    if (worker.connection == 0) {
      if (worker.memory_was_taken || worker.memory_rest.until_us != 0) {
        return broken("is lost and rests for its memory");
      }
      if (worker.leaving) return broken("is lost and is about to leave");
      if (worker.files_rest.until_us != 0) return broken("is lost and rests for its files");
      continue;
    }
    if (!connections.insert(worker.connection).second) return broken("has another's connection");
    if (tick_us_ == 0) return broken("is connected, and nobody looks after its lease");
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
