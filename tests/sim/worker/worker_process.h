// A worker's process in a simulation: the very WorkerCore, its engine without arithmetic, and the
// network between it and the coordinator, in which each stream keeps its order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "server/core/events/events.h"
#include "server/core/events/options.h"
#include "tests/sim/worker/clockwork.h"
#include "tests/sim/worker/mischief.h"
#include "tests/sim/worker/sim_engine.h"
#include "worker/core/core.h"

namespace lorad::sim {

// The coordinator as its workers reach it.
class CoordinatorSide {
 public:
  virtual ~CoordinatorSide() = default;
  // Counts its starts: what was on its way to one that has died is lost.
  virtual int64_t life() const = 0;
  virtual uint64_t NewConnection() = 0;
  // False: nobody is there, or takes any more.
  virtual bool Post(decltype(server::Event::content) content) = 0;
  // The bytes of a shard have come. Answered at most once, not by a coordinator that dies.
  using OnTaken = std::function<void(const absl::Status&)>;
  virtual void TakeShard(const worker::v1::UploadShardRequest::Header& header,
                         OnTaken on_taken) = 0;
  // The step of the checkpoint that a slot's content names; 0: it starts over from there.
  virtual absl::StatusOr<int64_t> Fetch(const std::string& content) = 0;
  // What comes next on this stream may not be what the worker has said.
  virtual void Mistrust(uint64_t) {}
};

// What a worker says of itself. Several may have one name: one of them is heard at a time.
struct Machine {
  std::string worker;
  std::string device = "cpu";
  int64_t memory_bytes = int64_t{8} << 30;
  int threads = 2;
  int multiprocessors = 0;  // of a GPU
  int value_bytes = 0;      // likewise
  int64_t order_us = 1000;  // its engine takes so long for each
  double pass_ms = 1;       // it says that a pass takes so long,
  double token_ms = 0;      // and each of its tokens that much longer,
  double rank_ms = 0;       // with so much more for each rank of its adapter
  bool truthful = false;    // which they do, once it is said
  std::string numerics_id = "sim";
  int64_t joins_us = 0;   // so long after the others
  bool outlives = true;   // Hello.outlives_coordinator
  bool isolated = false;  // no other worker can reach it, nor it them
};

// Of a coordinator that learns from passes, though their workers say of them before they took so
// long.
inline server::CoreOptions OptionsForMachines() {
  server::CoreOptions options;
  options.pass_slack_ms = 1'000'000;
  return options;
}

class WorkerProcess {
 public:
  // All of them outlive it. `net`: where groups have several stages.
  WorkerProcess(const Machine& machine, Clockwork& clock, CoordinatorSide& coordinator,
                const WorkerScript& script, StageNet* net = nullptr);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // ---- its life ----

  // REQUIRES: it does not run.
  void Start();
  // SIGKILL, if it runs.
  void Kill(bool restart = true);
  // SIGTERM, if it runs; it is started again once it has ended.
  void Terminate();
  bool running() const { return core_ != nullptr; }
  // 0: it has no stream.
  uint64_t connection() const { return connection_; }
  // Of the group that it holds; 0: of none.
  int64_t epoch() const { return core_ ? core_->held().epoch : 0; }
  // What it says of itself on every stream.
  const worker::v1::Hello& hello() const { return hello_; }

  // ---- its stream ----

  // What the coordinator says, some time later.
  void Send(worker::v1::CoordinatorMessage message);
  // Both ends learn of it, each when the news has come.
  void EndStream(const absl::Status& why);
  // What it says is lost until its stream has ended.
  void Silence() { silent_ = true; }
  // What it says from here on arrives so much later.
  void HoldUp(int64_t us);

  // ---- its mischief ----

  Mischief& mischief() { return mischief_; }
  // Its engine does nothing that it is told until it is let.
  void Hang(bool hung);
  // SIGSTOP, and SIGCONT after so long: what comes meanwhile waits, and its kernel answers.
  void Stop(int64_t us);
  // For how long it has stood still at the most, stops that follow each other as one.
  int64_t longest_stop_us() const { return longest_stop_us_; }
  // Says this, a report under its next number.
  void Lie(worker::v1::WorkerMessage message);
  // What the script has held of its shards goes on.
  void ReleaseShards();

 private:
  // Of an upload.
  struct Try {
    int64_t number = 0;
    std::string job;
  };

  // A call of the process that runs; nothing happens where it has died by then.
  std::function<void()> IfAlive(std::function<void()> what);
  // Now, or when the process goes on, in their order. REQUIRES: it runs.
  void WhenAwake(std::function<void()> what);
  void GoOn();
  void Apply(decltype(worker::Event::content) content);
  void ApplyLater(int64_t delay_us, decltype(worker::Event::content) content);
  void Do(worker::Effect effect);
  void CarryOut(worker::Effect order);
  // That nothing is done to the memory which uploads read.
  void CheckUploads(const worker::Effect& order) const;
  void Dial(const worker::Dial& dial);
  void Say(worker::v1::WorkerMessage message);
  void Deliver(worker::v1::WorkerMessage message);
  void Upload(const worker::Upload& upload);
  void EndTry(int64_t upload, int64_t tried, const absl::Status& status);
  void SetTimer(double at_ms);

  Clockwork& clock_;
  CoordinatorSide& coordinator_;
  const WorkerScript& script_;
  StageNet* const net_;
  const worker::v1::Hello hello_;
  const int64_t order_us_;
  const double pass_ms_, token_ms_, rank_ms_;
  const bool truthful_;
  int64_t tokens_us_ = 0;  // that tokens of the present order took, if so
  Mischief mischief_;

  std::unique_ptr<worker::WorkerCore> core_;  // null: it does not run
  std::unique_ptr<SimEngine> engine_;
  int64_t life_ = 0;  // counts its starts and ends
  bool terminated_ = false;
  int64_t stopped_until_us_ = 0;
  int64_t stopped_since_us_ = 0;
  int64_t longest_stop_us_ = 0;
  std::deque<std::function<void()>> backlog_;  // of the process that is stopped
  bool hung_ = false;
  std::optional<worker::Effect> held_order_;  // of the engine that hangs
  uint64_t connection_ = 0;
  int64_t stream_ = 0;
  int64_t dialled_life_ = 0;  // of the coordinator
  bool silent_ = false;
  int64_t timer_ = 0;                          // counts SetTimer
  int64_t up_free_us_ = 0, down_free_us_ = 0;  // before that the stream is at work
  std::map<int64_t, Try> uploads_;             // under way
  int64_t last_try_ = 0;
  std::vector<std::function<void()>> held_shards_;
};

// nullptr: the stream is of none of them, or has ended.
WorkerProcess* FindConnection(const std::vector<std::unique_ptr<WorkerProcess>>& workers,
                              uint64_t connection);

}  // namespace lorad::sim
