// Threads that run tasks in the order they came (with one thread, one after the other). A thread
// begins when a task finds all that have begun at work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace lorad::server {

class TaskPool {
 public:
  // REQUIRES: threads_max > 0.
  explicit TaskPool(int threads_max) : threads_max_(static_cast<size_t>(threads_max)) {
    threads_.emplace_back([this] { Run(); });
  }
  // Tasks that have not begun are dropped; the one under way is waited for.
  ~TaskPool() { Stop(); }

  void Stop() {
    std::vector<std::thread> threads;
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      tasks_.clear();
      threads.swap(threads_);
    }
    wake_.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void Add(std::function<void()> task) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      tasks_.push_back(std::move(task));
      if (tasks_.size() > idle_ && threads_.size() < threads_max_) Grow();
    }
    wake_.notify_one();
  }

 private:
  void Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    try {
      threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {
      // The process may have no more of them: the task waits for one that there is.
    }
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      idle_++;
      wake_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || !tasks_.empty();
      });
      idle_--;
      if (stop_) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  const size_t threads_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that wait for a task
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server
