#ifndef LORAD_WORKER_EXECUTOR_H_
#define LORAD_WORKER_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"
#include "worker/bulk.h"
#include "worker/clock.h"
#include "worker/engine.h"
#include "worker/reports.h"

namespace lorad::kernels {
class Backend;
}

namespace lorad::worker {

// Executes windows in the order they came, on a thread of its own, for one group at a time
// (ENGINE.md, Windows). Everything it has to say goes into the ReportLog.
//
// Cutting: Cut() answers the smallest microbatch number k whose Forward (or Evaluate) is not yet
// enqueued and holds everything from k on until CutAt() says what is dropped; then each window at
// hand runs what follows from the microbatches before it, and a job in mid-batch loses its
// accumulated gradient. Windows submitted after CutAt() are not touched by it.
//
// Threads: every method may be called from any thread and returns without waiting for arithmetic,
// except the destructor, which waits for the operation in progress.
class Executor {
 public:
  // `backend`, `bulk` and `reports` must outlive the executor.
  Executor(kernels::Backend* backend, Bulk* bulk, ReportLog* reports, EngineOptions options,
           Clock clock);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Leaves the group it has, if any, then forms this one: GroupFormed or GroupFailed follows.
  void FormGroup(v1::FormGroup order);

  // Queues a window. One of another epoch is dropped. A window that cannot be executed (unknown
  // job, microbatch or stage) is a defect of the sender: GroupFailed{BAD_WINDOW} follows and
  // nothing of this epoch is executed any more.
  void Submit(v1::Window window);

  v1::CutAnswer Cut(const v1::Cut& cut);
  void CutAt(const v1::CutAt& order);

  // Drops group, slots and windows of the epoch; 0 = of whatever it holds.
  void Dissolve(int64_t epoch);

  struct Held {
    std::string group;
    int64_t epoch = 0;  // 0 = nothing
  };
  Held held() const;

  // For tests: waits until every window submitted so far is done.
  void WaitIdle();

 private:
  struct PendingWindow {
    v1::Window window;
    int next = 0;            // index of the operation not yet begun
    std::vector<bool> kept;  // one entry per operation once a cut has touched it; else empty
  };

  void Run();
  void Form(const v1::FormGroup& order);
  void Execute(std::unique_lock<std::mutex>* lock, PendingWindow* pending);
  // For the operation at pending->next: waits where a cut asks for it; false = dropped, or the
  // group is being left.
  bool MayBegin(std::unique_lock<std::mutex>* lock, PendingWindow* pending);
  void Fail(int64_t epoch, const absl::Status& status, std::string_view otherwise);
  void Forget();  // REQUIRES: mutex_ held

  const Engine::Environment environment_;

  // Only the executor's thread.
  std::unique_ptr<Engine> engine_;
  double idle_since_ms_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  // GUARDED_BY(mutex_)
  bool stop_ = false;
  bool leave_ = false;  // the group in engine_ is not wanted any more
  bool busy_ = false;
  bool failed_ = false;  // nothing of held_.epoch is executed any more
  std::optional<v1::FormGroup> form_;
  Held held_;
  // The front may be in execution. Shared: it outlives windows_.clear() until its operation ends.
  std::deque<std::shared_ptr<PendingWindow>> windows_;
  int64_t first_not_enqueued_ = 0;
  std::optional<int64_t> hold_from_;  // between Cut and CutAt
  std::set<std::string> cut_jobs_;    // who lost something to the cut of the windows at hand

  std::thread thread_;
};

}  // namespace lorad::worker

#endif  // LORAD_WORKER_EXECUTOR_H_
