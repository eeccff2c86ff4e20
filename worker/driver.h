#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/core/core.h"
#include "worker/engine/group_engine.h"
#include "worker/host/clock.h"
#include "worker/link/bulk.h"
#include "worker/link/link.h"
#include "worker/transport/stage_way.h"

namespace lorad::worker {

// Runs the core: gives it what happens and carries out what it wants. One lock guards the core;
// a thread that has an event for it applies it itself, so that the engine's thread goes from one
// operation to the next without another one. Threads of its own: the engine's, one for timers, some
// for uploads.
class Driver : public Link::Listener {
 public:
  // Begins at once. `link` and `bulk` must outlive it; its end closes the link. `open_listener`:
  // for groups of several stages.
  Driver(CoreOptions options, std::unique_ptr<EngineMaker> maker, OpenListener open_listener,
         Link* link, Bulk* bulk, Clock clock);
  // Waits for the operation in progress.
  ~Driver() override;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Until the coordinator says Shutdown, or Stop has its way: OK. An error: the coordinator refuses
  // this worker for good, or the engine hangs.
  absl::Status AwaitEnd();

  // Asks for its end (WorkerCore); the second time, for that at once. Threads: any.
  void Stop();
  WorkerCore::Held held() const;
  int64_t reports_kept() const;
  // Until every window that came so far is done (WorkerCore::idle).
  void WaitIdle();

  void Said(int64_t stream, v1::CoordinatorMessage message) override;
  void Broke(int64_t stream, absl::Status status) override;

 private:
  using EngineOrder =
      std::variant<FormGroup, Connect, LeaveGroup, DropWeights, BeginWindow, Execute, EndWindow>;
  struct UploadTask {
    Upload upload;
    int64_t call = 0;
  };
  struct StagedShard {
    Shard shard;
    std::string sha256;  // once computed
  };

  void Apply(decltype(Event::content) content) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(Dial& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(HangUp& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(Say& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(FormGroup& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(Connect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(LeaveGroup& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(DropWeights& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(BeginWindow& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(Execute& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(EndWindow& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(GiveUpReceive& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(Upload& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(CancelCalls& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(ReadMemory& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(SetTimer& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(Note& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(End& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Give(EngineOrder order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RunEngine();
  // Without the lock, on the engine's thread.
  EngineDone Obey(const EngineOrder& order);
  absl::Status Form(const v1::FormGroup& order);
  absl::Status JoinStages(const Connect& connect);
  void Leave();
  EngineDone DoOperation(const v1::Operation& operation);
  EngineContext Context();
  // The number of the call that the engine's order under way may make.
  int64_t OrderCall();

  void RunUploads();
  UploadDone TryUpload(const UploadTask& task);
  void RunTimer();

  const std::unique_ptr<EngineMaker> maker_;  // the engine's thread
  Link* const link_;
  Bulk* const bulk_;
  const Clock clock_;
  const std::string numerics_id_;

  StageWay way_;  // the engine's thread, but for the ends of its waits

  // Only the engine's thread.
  StageIdentity identity_;
  std::unique_ptr<GroupEngine> engine_;
  std::shared_ptr<const v1::Window> window_;  // that the engine has begun

  mutable std::mutex mutex_;
  std::condition_variable engine_wake_;
  std::condition_variable upload_wake_;
  std::condition_variable timer_wake_;
  std::condition_variable idle_;
  WorkerCore core_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::optional<EngineOrder> order_ ABSL_GUARDED_BY(mutex_);  // not yet begun
  int64_t order_call_ ABSL_GUARDED_BY(mutex_) = 0;            // the number of what it may fetch
  int64_t last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<UploadTask> uploads_ ABSL_GUARDED_BY(mutex_);             // not yet begun
  std::map<std::string, StagedShard> staged_ ABSL_GUARDED_BY(mutex_);  // by job
  std::optional<double> timer_at_ms_ ABSL_GUARDED_BY(mutex_);
  bool memory_due_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> upload_threads_;
  std::thread timer_thread_;
  std::thread engine_thread_;  // joins the uploads', which read its slots
};

}  // namespace lorad::worker
