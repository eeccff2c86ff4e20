// Threads that share out the items of one operation at a time. Which thread runs an item never
// changes its result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace lorad::kernels::cpu {

// One caller at a time.
class ThreadPool {
 public:
  // `threads` counts the calling one; threads - 1 are started and joined by the destructor.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls run(item, thread) for every item in 0..items-1, thread in 0..threads()-1; returns when
  // all are done. Items begin in ascending order, so long ones should come first.
  template <typename Function>
  void Run(int64_t items, Function&& run) {
    using Callable = std::remove_reference_t<Function>;
    Execute({.items = items,
             .context = const_cast<void*>(static_cast<const void*>(&run)),
             .call = [](void* context, int64_t item, int thread) {
               (*static_cast<Callable*>(context))(item, thread);
             }});
  }

 private:
  struct Job {
    int64_t items = 0;
    void* context = nullptr;
    void (*call)(void* context, int64_t item, int thread) = nullptr;
  };

  void Execute(const Job& job);
  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work(int thread);
  void TakeItems(const Job& job, int thread);

  // Of state_: how many workers are at job_, whether more may join them, and which job it is.
  static constexpr uint64_t kWorkers = 0xffff;
  static constexpr uint64_t kOpen = 0x10000;
  static constexpr int kJobShift = 17;

  std::vector<std::thread> workers_;
  Job job_;                            // written while no worker is at it and none may join
  std::atomic<int64_t> next_item_{0};  // of job_
  std::atomic<uint64_t> state_{0};     // a worker joins each job once at most
  std::mutex mutex_;              // held where state_ gets another job, too: none is slept over
  std::condition_variable wake_;  // another job, or stop_ changed
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lorad::kernels::cpu
