// The workers by name, connected or lost; which of them rest; and what was learned of them: how
// long work takes, on their kind and on each beside it, and what memory it takes beyond what was
// counted.
//
// Invariants: a worker is found by the name that it gave; a connection is that of one worker; a
// lost one has no rest for its memory, which its next process finds out, and a group only where
// that is of before this start and waits for it; while any is connected, a tick is due. A worker
// that has connected has a record in the store until it is forgotten: after a restart jobs are
// judged by those of before, too.
//
// It knows the Turn, and groups as values. That a worker's group is there, and is that worker's, is
// for Core::State to see to. Threads: the core's one. Errors: of Load, DATA_LOSS (STORE_CORRUPT);
// what REQUIRES to be there and is not is our own bug. A reference to a WorkerState holds until
// MakeRoom.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "planner/cost/memory.h"
#include "planner/schedule/schedule.h"
#include "server/core/cluster/fits.h"
#include "server/core/cluster/group_state.h"
#include "server/core/cluster/worker_state.h"
#include "server/core/events/options.h"
#include "server/core/events/turn.h"

namespace lorad::server {

// A group for a job alone.
struct LoneGroup {
  const WorkerState* worker = nullptr;  // null: some CPU
  planner::DeviceShape device;
  planner::GroupShape shape;
  planner::GroupBytes group;
  planner::SlotBytes slot;
  int64_t budget_bytes = 0;
  int64_t total() const { return group.total() + slot.total(); }
};

class Cluster {
 public:
  Cluster(const CoreOptions& options, Turn& turn) : options_(options), turn_(turn), fits_(turn) {}
  // Those of before this start, as records: they are lost until they connect.
  absl::Status Load(const std::vector<std::pair<std::string, std::string>>& stored);
  // They count as lost from now. To be called once, when the turn has its first moment.
  void Start();

  // ---- finding ----
  const std::map<std::string, WorkerState>& all() const { return workers_; }
  bool empty() const { return workers_.empty(); }
  // When a worker came last whom nobody knew; 0: none since the start.
  int64_t grown_us() const { return grown_us_; }
  std::vector<WorkerState*> Connected();
  // Null where there is none.
  WorkerState* Find(const std::string& name);
  // Null where it was closed, or is gone.
  WorkerState* FindConnection(uint64_t connection);
  // REQUIRES: it is there.
  WorkerState& At(const std::string& name) { return workers_.at(name); }
  const WorkerState& At(const std::string& name) const { return workers_.at(name); }

  // ---- coming and going ----
  // Whether one more may come. Lost workers are remembered for those who look, and for jobs that
  // fit no other; the one that was lost first makes room.
  bool MakeRoom();
  // Those that were lost a day ago, by the time that this process has run.
  void ForgetLost();
  // Connects the worker, and sends it `welcome`. REQUIRES: none of its name is connected, and there
  // is room.
  void Connect(uint64_t connection, const worker::v1::Hello& hello,
               worker::v1::Welcome welcome = {});
  void Lose(WorkerState& worker);
  // Its group is no more. `held`: the base model of which its process has these blocks in memory,
  // and keeps them for a while; empty: none.
  void LeaveGroup(WorkerState& worker, const std::string& held, const planner::StageRange& blocks);
  // Whether it is not connected and its group waits for it, or no lease has passed since its last
  // message; since this start, where this process has never heard of it.
  bool IsAwaited(const WorkerState& worker) const;
  // Notes that the worker, which has no group, was told to end: after the next start its name is
  // anybody's, also if it has not heard that.
  void End(WorkerState& worker);
  // Why the process may not have its name yet; empty: it may. One of the name is connected and was
  // heard of just now (it may be the same one, whose broken stream has not been heard of yet), or
  // was there before this start, outlives that, is another process, and is awaited.
  std::string WhyTaken(const worker::v1::Hello& hello) const;
  void RenewLeases();
  // From one tick to the next. A standstill of twice as long, a quarter of a lease, is always seen.
  int64_t TickUs() const;
  // So that it fires in time for the leases.
  void SetTick();
  // It has fired; how late, in microseconds.
  int64_t TakeTick();

  // ---- draining ----
  void Drain(WorkerState& worker, const std::string& reason);
  void Undrain(WorkerState& worker);

  // ---- rests (rests.cc) ----
  void RestForMemory(WorkerState& worker, const std::string& why);
  // The files of a base model on its host are missing or other ones: meanwhile its jobs go to
  // others.
  void RestForFiles(WorkerState& worker, const std::string& why);
  // It said what does not fit: it rests, also when it comes again.
  void RestAsLiar(WorkerState& worker, const std::string& what);
  // It neither rests nor empties.
  bool TakesJobs(const WorkerState& worker) const {
    return !worker.empties() && WhyRests(worker).empty();
  }
  std::string WhyRests(const WorkerState& worker) const;
  // REQUIRES: it does.
  static std::string WhyEmpties(const WorkerState& worker);
  // It is connected, but so many heartbeats did not come that it may be stopped, or gone. One
  // without a group leaves every second one out.
  bool IsSilent(const WorkerState& worker) const;
  static constexpr int64_t kSilentHeartbeats = 5;
  // The text that a waiting job shows about workers that rest or empty; empty where none does.
  std::string WhyRest() const;

  // ---- heartbeats ----
  // Jobs are placed again where it has let go of a group that was lost.
  void OnHeartbeat(WorkerState& worker, const worker::v1::Heartbeat& heartbeat);
  // How far the coordinator's clock is ahead of the worker's. Workers of one host share a clock.
  int64_t ClockOffsetUs(const WorkerState& worker) const;

  // ---- memory (memory.cc) ----
  // The group ends: the peak of its worker goes into the fit.
  void KeepPeak(const GroupState& group);
  // Tokens of a microbatch of groups on it, as in planner::ClusterView,
  int64_t TokensOf(const WorkerState& worker) const;
  // and where that says nothing, as many as are usual on its device.
  int64_t UsualTokens(const WorkerState& worker) const;
  // The group that the job would have alone, on the worker where it leaves the most memory (the
  // same job needs more on one device than on another), of these on the least slow, or, while there
  // is none, on some CPU. Of the job, here and below, only model, longest_sequence and adapter
  // count.
  LoneGroup GroupAlone(const planner::QueuedJob& job) const;
  // The workers as the policy sees them, each as if it were idle; lost ones too.
  std::vector<planner::WorkerView> Views() const;
  // The same on that worker; null: some CPU.
  LoneGroup GroupAloneOn(const WorkerState* worker, const planner::QueuedJob& job) const;
  // Whether a worker that is none of `than` holds the job alone: now, being connected or awaited and
  // taking jobs; or soon, where it may also empty, or was lost a short while ago, as when its host
  // is started again.
  enum class When { kNow, kSoon };
  bool AnotherHolds(const planner::QueuedJob& job, const std::vector<std::string>& than,
                    When when) const;

  // ---- how fast they are (speeds.cc) ----
  // Learns from a microbatch of a group of the worker's own the times of its kind, as far as it is
  // not slower or faster than these, and how slow the worker is.
  void Observe(const std::string& base_model, const planner::ModelShape& shape, WorkerState& worker,
               int64_t capacity_tokens, const TimedMicrobatch& microbatch);
  // Sets the slowness of all that are connected. To be called at every tick.
  void CompareSpeeds();
  // One that differs by less from 1 counts as 1.
  // A split of jobs that takes two workers for equally fast though one is so many times as slow has
  // a sum of ends (1 + x)^2 / (4 x) times the least: 1.25 % more, below
  // SchedulePolicy::least_share.
  static constexpr double kNoticed = 1.25;
  static constexpr double kSlownessMax = 100;  // or fastness: what says more is of something else
  // Who is slow may get no job, and never be measured again: after so long it counts as recovered.
  static constexpr int64_t kSlowForUs = 900LL * 1'000'000;

  // ---- what was learned of them ----
  Fits& fits() { return fits_; }
  const Fits& fits() const { return fits_; }

  // OK where the invariants hold, else INTERNAL and which does not. To be asked between turns.
  absl::Status CheckInvariants() const;

 private:
  // Of another version, or of another transport or other numerics than one that is connected.
  void WarnOfOthers(const WorkerState& worker);
  void WarnOfTransports(const WorkerState& worker);
  static void ForgetSpeed(WorkerState& worker);
  void Put(const WorkerState& worker);
  std::map<std::string, WorkerState>::iterator Erase(
      std::map<std::string, WorkerState>::iterator entry);
  void Prolong(const WorkerState& worker, Rest& rest, int64_t first_ms, int64_t max_ms,
               const std::string& why);

  const CoreOptions& options_;
  Turn& turn_;
  std::map<std::string, WorkerState> workers_;
  int64_t grown_us_ = 0;
  Fits fits_;
  int64_t tick_us_ = 0;  // when the next is due; 0 = none is set
};

}  // namespace lorad::server
