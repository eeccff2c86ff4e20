// A whole site in one thread: the coordinator's real loop, core, feed, files and store on a
// simulated disk, and the very cores of workers around engines without arithmetic. Time, network,
// deaths and the disk's faults are simulated; one seed reproduces everything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "planner/window/learning_rate.h"
#include "server/driver/loop.h"
#include "tests/server/feed/house.h"
#include "tests/sim/disk/sim_disk.h"
#include "tests/sim/disk/sim_files.h"
#include "tests/sim/disk/sim_vfs.h"
#include "tests/sim/group_promises.h"
#include "tests/sim/promises.h"
#include "tests/sim/standing_orders.h"
#include "tests/sim/worker/clockwork.h"
#include "tests/sim/worker/worker_process.h"

namespace lorad::sim {

struct SiteOptions {
  uint64_t seed = 1;
  std::vector<Machine> machines = {{"worker-0"}};
  int64_t delay_us_max = 1000;
  int64_t file_us_max = 0;    // that a task of files takes; writing an upload takes no time
  int64_t reserve_bytes = 0;  // of room on the disk; 0: it is not looked at
  bool sqlite = false;      // else a store in memory, which writes to the disk as much as it needs
  std::vector<int> layers;  // of base models that need several workers (models.h)
  // Workers between which only small messages pass, ever (StageNet::Narrow).
  std::vector<std::pair<std::string, std::string>> narrow;
  // All jobs are of one priority, nothing goes wrong, and nobody overtakes (turns.h).
  bool in_turn = false;
  server::CoreOptions core = OptionsForMachines();
};

class Site final : public server::Sinks, public CoordinatorSide {
 public:
  explicit Site(const SiteOptions& options);
  ~Site() override;

  // ---- clients ----

  // Answered once; UNAVAILABLE where the coordinator is not there, or dies before it answers.
  using OnReply = std::function<void(absl::StatusOr<server::ReplyValue>)>;
  void Ask(server::Request request, OnReply on_reply);
  // Asks until there is an answer, and runs meanwhile.
  server::ReplyValue Call(const std::function<server::Request()>& request);
  // The model "m" and those of several layers, and datasets of so many short rows.
  void AddModels();
  void AddDataset(const std::string& name, int64_t rows, int64_t longest_max = kShortRow);
  static constexpr int64_t kShortRow = 21, kLongRow = 60;  // tokens
  // The request for a dataset of so many rows of at most so many tokens; its upload is written now.
  absl::StatusOr<server::CreateDataset> DatasetRequest(const std::string& name, int64_t rows,
                                                       int64_t longest_max = kShortRow);
  // That its coordinator sent the job from a group to another, the last time.
  struct Move {
    int64_t decided_us = 0;
    std::string to, for_job;  // for which it makes room, if for one
    bool pending = false;     // it has not left yet, and the coordinator was not started since
  };
  std::optional<Move> LastMove(const std::string& job);
  int64_t LongestRowOf(const v1::Job& job) const;
  server::RegisterModel ModelRequest(const std::string& name);
  // Not kept by the coordinator's death: a service's own file, or directory of such.
  absl::StatusOr<std::string> WriteUpload(std::string_view bytes);
  absl::StatusOr<std::string> WriteUpload(const std::map<std::string, std::string>& files);
  // The coordinator is there, and its disk does what it is told.
  bool serves() const { return process_ && !disk_.stopped(); }
  // It was asked to stop: it begins nothing.
  bool stops() const { return stopped_life_ == life_; }
  bool paused() const { return paused_; }
  bool MayForget(const std::string& request_id) const {
    return promises_.MayBeForgotten(request_id);
  }
  // Requests that wait for their one answer.
  int64_t unanswered() const { return static_cast<int64_t>(replies_.size()); }

  // ---- time and calamity ----

  bool RunNext() { return clock_.RunNext(); }
  void RunUntil(const std::function<bool()>& done, int64_t events_max);
  void Sleep(int64_t us) { clock_.Sleep(us); }
  void At(int64_t at_us, std::function<void()> what) { clock_.At(at_us, std::move(what)); }
  // Everything stands still, as a machine that is suspended.
  void StandStill(int64_t us) {
    clock_.StandStill(us);
    if (frozen_since_us_ < 0) stood_still_us_ += us;
    groups_.WaitsStartOver(awake_us());
  }
  // The coordinator's process alone does, as by SIGSTOP.
  void PauseCoordinator(int64_t us);
  // A clock that stands still whenever the coordinator does for so long that it notices: more than
  // a quarter of a lease.
  int64_t awake_us() const {
    return (frozen_since_us_ < 0 ? now_us() : frozen_since_us_) - stood_still_us_;
  }
  // The wall's clock is so far ahead of now_us(); at first so:
  static constexpr int64_t kWallAheadUs = 1'600'000'000'000'000;
  void SetWallClock(int64_t ahead_us) { wall_ahead_us_ = ahead_us; }
  enum class Death { kKill, kPowerLoss };
  // After so many more steps of its loop; it is started again a little later.
  void EndCoordinator(Death death, int64_t steps);
  // After so many more effects on its disk.
  void EndCoordinatorAtEffect(Death death, int64_t effects);
  // As by SIGTERM: it is asked to stop, and ended where it has not by then.
  static constexpr int64_t kStopPatienceUs = 10'000'000;
  void StopCoordinator();
  // An end that was ordered at a step or an effect, and has not come, does not come any more.
  void SpareCoordinator();
  // Dies, falls silent, hangs, lies, and whatever else goes wrong with one.
  WorkerProcess& worker(int i) { return *workers_[i]; }
  int workers() const { return static_cast<int>(workers_.size()); }
  void CutStream(int worker);
  // Between the workers of a group.
  StageNet& net() { return net_; }
  // What goes wrong in all of them.
  WorkerScript& script() { return script_; }
  // On the disk from now on; with none set, a store that fails is a defect.
  void SetFaults(const FaultRates& rates);
  // So much may still be written from now on.
  void SetRoom(uint64_t bytes);
  void SetReadOnly(bool read_only);
  void SetFileLimit(uint64_t bytes);
  // What is to be done with files waits for so long, as on a share whose server hangs.
  void HangFiles(int64_t us) { files_hang_until_us_ = now_us() + us; }
  bool files_hang() const { return now_us() < files_hang_until_us_; }
  // A folder or file below the data directory is not there, or a file is half there, until
  // Unveil or the next start of the coordinator.
  void Hide(const std::string& path);
  void Halve(const std::string& path);
  // Likewise the model's directory; of it a file may be half there, or another.
  enum class ModelFault { kGone, kHalf, kOther };
  void SpoilModel(ModelFault fault);
  void Unveil();
  // Something was wrong with the disk at some time.
  bool disk_was_ill() const { return disk_was_ill_; }

  // ---- what must hold ----

  // Cheap: after each turn.
  void CheckTurn();
  // All of it, with the disk as it lies.
  void CheckAll();
  storage::JobStore& store();
  // REQUIRES, here and below: it serves.
  const server::RevisionLog& revisions() const;
  // Wherever they lie.
  absl::StatusOr<server::RevisionLog::Found> ReadRevisions(int64_t after, int64_t limit);
  SimDisk& disk() { return disk_; }
  SimFiles& files() { return files_; }
  std::mt19937_64& random() { return clock_.random(); }
  int64_t now_us() const { return clock_.now_us(); }
  // What watchers could see so far, by revision.
  struct Told {
    std::string job;
    bool progress = false;
    // What it comes of was posted then or later: all may have stood still between that and its
    // being told.
    int64_t at_us = 0;
  };
  const std::map<int64_t, Told>& told() const { return seen_; }
  // So much has followed that revision, or what did is so old, that it need not be kept.
  bool MayBeGone(int64_t revision) const;
  // Jobs that came after that moment, as far as that watcher knows, and have succeeded.
  int64_t SucceededOfThoseAfter(int64_t at_us) const {
    return std::ranges::count_if(succeeded_us_, [&](int64_t came_us) { return came_us > at_us; });
  }
  int64_t deaths() const { return deaths_; }
  int64_t failed_starts() const { return failed_starts_; }
  // Streams that the coordinator ended itself.
  int64_t closings() const { return closings_; }
  // Groups that a coordinator which was started again found with their workers.
  int64_t adoptions() const { return groups_.adoptions(); }
  // Groups that were given up because a window had not come to all of their stages.
  int64_t windows_sent_again() const { return windows_sent_again_; }

  // Sinks.
  void Answer(uint64_t request, absl::StatusOr<server::ReplyValue> value) override;
  void Send(uint64_t connection, worker::v1::CoordinatorMessage message) override;
  void Close(uint64_t connection, const absl::Status& reason) override;
  void Writable(const absl::Status&) override {}
  void Log(server::Note::Level level, const std::string& message) override;

 private:
  struct Process;  // the coordinator's
  // site.cc
  void StartCoordinator();
  absl::Status TryStart();
  void Die(Death death);
  void Ring();
  void Run();
  const server::Loop& loop() const;
  int64_t EndOfTask(server::Tasks::Queue queue, int64_t earliest_us);

  // site_checks.cc
  bool disk_is_ill() const {
    return faults_ || disk_.read_only() || disk_.capacity_bytes() != SimDisk::kUnbounded ||
           disk_.file_bytes_max() != SimDisk::kUnbounded;
  }
  void CheckEvaluations(const v1::Job& job);
  void CheckCheckpoint(const v1::Job& job, int64_t step);
  void CheckRemoved(const v1::Job& job, const google::protobuf::RepeatedPtrField<v1::Event>& events,
                    const google::protobuf::RepeatedPtrField<v1::Checkpoint>& kept);
  std::optional<double> LossAt(const v1::Job& job, int64_t step);
  void CheckSizes() const;
  void CheckCore();
  bool WatchOn();
  void CheckWatched();
  void CheckToldChange(const server::RevisionLog::Revision& revision);
  void CheckDeparture(const v1::Job& before, const v1::Job& job);
  void CheckRoomMade(const std::string& leaver, const std::string& why);
  std::pair<int32_t, int32_t> PrioritiesOf(const std::string& job, int64_t first,
                                           int64_t last) const;
  void CheckEviction(const v1::Job& victim, const v1::ListEventsResponse& events);
  void CheckTurns(const v1::Job& job);
  void CheckJob(const v1::Job& job);

  // CoordinatorSide.
  int64_t life() const override { return life_; }
  uint64_t NewConnection() override { return next_connection_++; }
  bool Post(decltype(server::Event::content) content) override;
  void TakeShard(const worker::v1::UploadShardRequest::Header& header, OnTaken on_taken) override;
  absl::StatusOr<int64_t> Fetch(const std::string& content) override;
  // As its record has it; of a job that is not there, of none.
  v1::Job JobOf(const std::string& job);
  double RateOf(const std::string& job, int64_t step);
  void Mistrust(uint64_t connection) override { groups_.Mistrust(connection); }

  const SiteOptions options_;
  Clockwork clock_;
  int64_t wall_ahead_us_ = kWallAheadUs;
  int64_t files_hang_until_us_ = 0;

  const server::feed::House house_;              // the model's directory, and rows
  const std::string config_json_, fingerprint_;  // of the model, as it is
  SimDisk disk_;
  SimFiles files_;
  SimVfs vfs_;
  std::unique_ptr<storage::JobStore> memory_store_;  // what of it was committed survives
  bool faults_ = false;
  bool disk_was_ill_ = false;

  std::unique_ptr<Process> process_;
  int64_t life_ = 0;
  int64_t stopped_life_ = -1;
  int64_t revision_of_start_ = 0;  // the newest when the coordinator was started
  bool wake_due_ = false;
  std::optional<Death> death_;  // how the process ends when it does
  int64_t steps_to_death_ = -1;
  int64_t steps_ = 0;  // of its loop
  int64_t deaths_ = 0;
  int64_t failed_starts_ = 0;
  int64_t closings_ = 0;
  int64_t streams_ended_ = 0;  // of workers
  int64_t windows_sent_again_ = 0;
  int64_t next_upload_ = 1;
  std::map<uint64_t, OnReply> replies_;
  uint64_t next_request_ = 1;
  uint64_t next_connection_ = 1;
  int64_t watched_ = 0;                      // the newest revision that a watcher has seen
  std::map<std::string, v1::Job> followed_;  // by that watcher, as it saw them last
  // By job, what its priority was and from which revision on.
  std::map<std::string, std::map<int64_t, int32_t>> priorities_;
  std::map<int64_t, Told> seen_;            // by that watcher
  std::map<std::string, int64_t> came_us_;  // jobs, likewise
  using Times = std::map<std::string, std::map<std::string, int64_t>>;
  Times room_made_;  // by a job that waits, and one that left its group for it: how often it did
  // Of a job that was evicted for another: revisions at which that was decided, and carried out.
  struct Evicted {
    std::string job, group;
    int64_t decided = 0, left = 0;
  };
  std::map<std::string, std::vector<Evicted>> evicted_;  // by that other
  Times turns_;  // by a job that waits, and an equal one for which others did: how often it began
  std::vector<int64_t> succeeded_us_;                 // when those came that have
  bool has_missed_ = false;                           // that watcher, and it was told so
  int64_t idle_us_ = 0;                               // the loop had done all that had come
  std::map<std::string, std::vector<int64_t>> rows_;  // of datasets: their lengths
  GroupPromises groups_;
  Promises promises_;
  StandingOrders orders_;
  int64_t stood_still_us_ = 0;
  bool paused_ = false;           // the coordinator
  int64_t frozen_since_us_ = -1;  // so has awake_us() been; -1: it is not

  WorkerScript script_;
  // Of jobs that were loaded; reading their records again may fail, as the disk does.
  std::map<std::string, planner::LearningRateOptions> schedules_;
  std::map<std::string, int64_t> ranks_;
  StageNet net_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

}  // namespace lorad::sim
