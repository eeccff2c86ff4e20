#ifndef LORAD_WORKER_UPLOADER_H_
#define LORAD_WORKER_UPLOADER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "worker/bulk.h"
#include "worker/reports.h"
#include "worker/slot.h"

namespace lorad::worker {

// Sends staged shards to the coordinator while the executor goes on, one after the other, each
// until it is acknowledged (reported as Saved) or the group is given up. Slots that are freed pass
// through the same queue, so that none goes before its last save has.
// Threads: Save, Release and Cancel by the executor's; the work is done on one of its own.
class Uploader {
 public:
  // `bulk` and `reports` must outlive it.
  Uploader(Bulk* bulk, ReportLog* reports, int64_t epoch, std::string numerics_id);
  // Gives up what is not yet sent; waits for the call under way to end.
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // `slot` stays alive until it comes by in Release, or until the uploader is gone.
  void Save(Slot* slot, Slot::Shard shard);
  // Frees the slot behind its saves, calls `freed`, reports SlotFreed.
  void Release(std::unique_ptr<Slot> slot, std::function<void()> freed);

 private:
  struct Task {
    Slot* slot = nullptr;
    Slot::Shard shard;               // of a save
    std::unique_ptr<Slot> released;  // of a release
    std::function<void()> freed;
  };

  void Run();
  void DoSave(const Task& task);
  void DoRelease(Task* task);
  // False: given up.
  bool Pause(int64_t milliseconds);

  Bulk* const bulk_;
  ReportLog* const reports_;
  const int64_t epoch_;
  const std::string numerics_id_;

  std::mutex mutex_;
  std::condition_variable wake_;
  // GUARDED_BY(mutex_)
  std::deque<Task> tasks_;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace lorad::worker

#endif  // LORAD_WORKER_UPLOADER_H_
