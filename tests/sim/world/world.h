// The place for stories: the coordinator's pure core, real workers' cores, and around them a store,
// a disk, planners and clients of which a story says what they do. One seed reproduces everything.
// Messages and the ends of effects may be delayed and overtake each other; workers and the
// coordinator are killed between any two effects.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/core/core.h"
#include "tests/sim/disk/memory_store.h"
#include "tests/sim/worker/clockwork.h"
#include "tests/sim/worker/worker_process.h"

namespace lorad::sim {

inline constexpr int64_t kTrainedTokens = 1;       // of every row: its last
inline constexpr int64_t kCheckpointBytes = 1000;  // of every one

struct WorldOptions {
  uint64_t seed = 1;
  int workers = 1;
  int64_t gpu_memory_bytes = 0;  // of each worker's GPU; 0: they are CPUs
  // Machine's, of all:
  double token_ms = 0;
  double rank_ms = 0;
  bool truthful = false;
  // 0: everything happens at once, in the order it was caused.
  int64_t delay_us_max = 0;
  int64_t plan_us = 0;           // that a window takes to plan well; in a hurry, no time
  bool workers_outlive = false;  // the coordinator: else they die with it
  server::CoreOptions core = OptionsForMachines();
};

class World final : public CoordinatorSide {
 public:
  explicit World(const WorldOptions& options);
  ~World() override;

  // ---- what a client does ----

  using OnReply = std::function<void(absl::StatusOr<server::ReplyValue>)>;
  uint64_t Ask(server::Request request, OnReply on_reply);  // its number
  // Asks and runs until the reply is there.
  absl::StatusOr<server::ReplyValue> Call(server::Request request);
  template <class T>
  T Get(server::Request request) {
    absl::StatusOr<server::ReplyValue> value = Call(std::move(request));
    RequireOk(value.status());
    return std::get<T>(*std::move(value));
  }
  v1::Job Job(const std::string& name);
  v1::Job::State StateOf(const std::string& name) { return Job(name).state(); }
  std::vector<v1::Event> Events(const std::string& name);
  std::vector<v1::StepMetrics> Metrics(const std::string& name);
  std::vector<v1::EvaluationMetrics> Evaluations(const std::string& name);
  // Of two layers; `stages` as in RegisterModelRequest.
  static server::RegisterModel NewModel(const std::string& name, int stages = 0);
  void AddModel(const std::string& name, int stages = 0);
  void AddDataset(const std::string& name, int64_t rows);
  // A job on model "m" with dataset "train": 12 rows, batches of 4, 2 epochs, a checkpoint every 2
  // steps.
  static v1::Job NewJob();
  std::string Submit(const v1::Job& job, const std::string& request_id = "");

  // ---- time and calamity ----

  // Lets the next thing happen; false: nothing is left that could.
  bool RunNext() { return clock_.RunNext(); }
  // Runs until `done`, which is asked after each turn of the coordinator; fails the test after
  // `steps_max` steps, or where nothing is left to happen.
  void RunUntil(const std::function<bool()>& done, int64_t steps_max = 100'000);
  // Runs until nothing is left but timers and heartbeats.
  void Settle();
  void RunUntilState(const std::string& job, v1::Job::State state);
  int64_t now_us() const { return clock_.now_us(); }
  void Sleep(int64_t us) { clock_.Sleep(us); }
  // The wall's clock, which else goes with the other.
  void SetWallClock(int64_t us) { wall_ahead_us_ = us - now_us(); }

  void StartWorkers();
  WorkerProcess& worker(int i) { return *workers_[i]; }
  // What goes wrong in workers by itself.
  WorkerScript& script() { return script_; }
  // A process that says nothing but this; the number of its stream.
  uint64_t Connect(const worker::v1::Hello& hello);
  // It says that, too.
  void Say(uint64_t connection, const worker::v1::WorkerMessage& message);
  bool IsConnected(uint64_t connection) const { return !closed_.contains(connection); }
  // Why the coordinator ended a stream.
  const absl::Status& closed(uint64_t connection) const { return closed_.at(connection); }
  // A shard whose bytes have come, from whomever.
  void UploadShard(worker::v1::UploadShardRequest::Header header, OnReply on_reply);
  // The coordinator's process is stopped for so long; what is due meanwhile comes at once after it.
  void StandStill(int64_t us) { clock_.StandStill(us); }
  // SIGKILL: what was not committed is gone, what was committed may not have been told; its workers
  // die with it, or lose their streams. It is started again at once, and with it who has died.
  void CrashCoordinator();
  void FailPlans(absl::Status status) { plan_failure_ = std::move(status); }
  // Its rows cannot be read while windows are planned; OK: they can.
  void FailRows(const std::string& dataset, absl::Status status) {
    row_failures_[dataset] = std::move(status);
  }
  // How long a check of its rows takes.
  void SlowChecks(const std::string& dataset, int64_t us) { check_us_[dataset] = us; }
  int64_t cancelled_checks() const { return cancelled_checks_; }
  // Checks of a dataset's rows; OK: they are made again.
  void FailChecks(const std::string& dataset, absl::Status status) {
    check_failures_[dataset] = std::move(status);
  }
  // What the coordinator is told of the disk's room; low where less is free than wanted.
  void SetRoom(int64_t free_bytes, int64_t wanted_bytes) {
    Post(server::RoomChanged{"/data", free_bytes, wanted_bytes});
  }
  void FailSaves(absl::Status status) { save_failure_ = std::move(status); }
  // What workers send of checkpoints, before the coordinator hears of it.
  void RefuseShards(absl::Status status) { shard_refusal_ = std::move(status); }
  // What the coordinator finds when it reads it; OK: it is whole.
  void FailContent(const std::string& content, absl::Status status) {
    content_failures_[content] = std::move(status);
  }
  // Rows of this dataset are bad from this line on.
  void SpoilRows(const std::string& dataset, int64_t line) { bad_lines_[dataset] = line; }
  void SetLongest(const std::string& dataset, int32_t tokens) { longest_[dataset] = tokens; }

  // ---- what must hold ----

  // Of every job that succeeded: each step and evaluation there, once, with the right numbers; its
  // events form a chain; what the store names lies on the disk. Fails the test otherwise.
  void CheckInvariants();
  // Jobs, groups and workers as they stand, for failing tests.
  std::string Describe();
  const std::vector<v1::WatchJobsResponse>& announced() const { return announced_; }
  storage::JobStore& store() { return store_; }
  // A file that a client has sent.
  std::string NewUpload();
  const std::set<std::string>& disk() const { return disk_; }
  const std::vector<server::PlanInput>& plans() const { return plans_; }
  int64_t hurries() const { return hurries_; }
  const std::vector<std::string>& notes() const { return notes_; }  // of all starts

 private:
  // CoordinatorSide.
  int64_t life() const override { return life_; }
  uint64_t NewConnection() override { return next_connection_++; }
  void TakeShard(const worker::v1::UploadShardRequest::Header& header, OnTaken on_taken) override;
  absl::StatusOr<int64_t> Fetch(const std::string& content) override;

  server::Moment Now() const { return {now_us(), now_us() + wall_ahead_us_}; }
  server::ReplyValue Look(server::Request request);
  static void RequireOk(const absl::Status& status);
  void Start();
  // In a turn of its own or with others; lost if the coordinator dies before.
  bool Post(decltype(server::Event::content) content) override;
  void Turn();
  void CheckTables();
  void Carry(std::vector<server::Effect> effects);
  void EndPlan(uint64_t number);
  void Do(server::Effect effect);
  static std::vector<server::BatchLines> LinesOf(const server::PlanInput& input);
  absl::StatusOr<server::StageWindows> PlanWindow(const server::PlanInput& input);
  // Takes out the units whose rows are not to be had.
  std::vector<server::UnitFailure> DropUnits(server::PlanInput& input) const;
  void CheckRowsLater(const server::CheckRows& check);
  void CancelCheck(const std::string& key);
  absl::StatusOr<server::records::RowsSummary> SumRows(const server::RowSource& source) const;
  int64_t RowLength(const std::string& dataset, int64_t row) const;

  const WorldOptions options_;
  Clockwork clock_;
  int64_t wall_ahead_us_ = 0;

  // Durable:
  MemoryStore store_;
  std::set<std::string> disk_;  // paths below the data directory
  std::set<std::string> uploads_;
  int64_t next_upload_ = 1;

  // Of the running coordinator:
  std::unique_ptr<server::Core> core_;
  int64_t life_ = 0;  // counts its starts
  std::deque<decltype(server::Event::content)> inbox_;
  bool turn_due_ = false;
  int64_t turns_ = 0;  // of all starts
  std::map<uint64_t, OnReply> replies_;
  uint64_t next_request_ = 1;
  uint64_t next_connection_ = 1;

  absl::Status plan_failure_, save_failure_, shard_refusal_;
  std::map<std::string, absl::Status> check_failures_, row_failures_;  // by dataset
  std::map<std::string, absl::Status> content_failures_;
  std::map<std::string, int64_t> check_us_;  // likewise
  std::map<std::string, int64_t> checks_;    // under way: key -> number
  int64_t next_check_ = 1;
  int64_t cancelled_checks_ = 0;
  std::map<std::string, int64_t> bad_lines_;
  std::map<uint64_t, absl::Status> closed_;  // by connection
  std::map<std::string, int32_t> longest_;
  std::vector<v1::WatchJobsResponse> announced_;
  std::vector<server::PlanInput> plans_;
  std::map<uint64_t, std::function<void()>> unhurried_;  // plan -> its end
  int64_t hurries_ = 0;
  std::vector<std::string> notes_;

  WorkerScript script_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

}  // namespace lorad::sim
