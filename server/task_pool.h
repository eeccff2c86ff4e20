// Threads that run tasks in the order they came (with one thread, one after the other). Any thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lorad::server {

class TaskPool {
 public:
  explicit TaskPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(kAnySize); });
  }
  // One thread more takes tasks up to `small_max` alone.
  TaskPool(int threads, int64_t small_max) : TaskPool(threads) {
    threads_.emplace_back([this, small_max] { Run(small_max); });
  }
  // Tasks that have not begun are dropped; the one under way is waited for.
  ~TaskPool() { Stop(); }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      tasks_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  void Add(std::function<void()> task, int64_t size = 0) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      tasks_.push_back({size, std::move(task)});
    }
    wake_.notify_all();  // not each thread takes each task
  }

 private:
  static constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();
  struct Task {
    int64_t size = 0;
    std::function<void()> run;
  };

  void Run(int64_t size_max) {
    std::unique_lock lock(mutex_);
    for (;;) {
      auto next = tasks_.end();
      wake_.wait(lock, [&] {
        next = std::ranges::find_if(tasks_,
                                    [size_max](const Task& task) { return task.size <= size_max; });
        return stop_ || next != tasks_.end();
      });
      if (stop_) return;
      std::function<void()> task = std::move(next->run);
      tasks_.erase(next);
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  std::list<Task> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace lorad::server
