// A thread sleeps until it rings. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace lorad::server {

class Bell {
 public:
  void Ring() {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    wake_.notify_one();
  }
  // Until it rings, or did since the last wait.
  void Wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rung_; });
    rung_ = false;
  }
  void WaitFor(std::chrono::microseconds patience) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, patience,
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool rung_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lorad::server
