// How long streams are waited for: one thread looks after all of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace lorad::server {

class Patience {
 private:
  struct Entry;

 public:
  // Looks at its timers every `tick`.
  explicit Patience(absl::Duration tick);
  ~Patience();

  class Timer {
   public:
    // `on_due` is called on the patience's thread each time that the timer is found due; it must
    // not block. Not after the timer is destroyed.
    Timer(Patience& patience, std::function<void()> on_due);
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    // Any thread. Due once, unless it is started again or stopped before.
    void Start(absl::Duration wait);
    void Stop();
    // on_due is not called after it returns, for good: to be called before what on_due uses goes.
    void Close();
    // It was found due and was neither started again nor stopped since: what on_due handed on to
    // another thread may be stale.
    bool due() const;

   private:
    Patience& patience_;
    const std::shared_ptr<Entry> entry_;
  };

 private:
  static int64_t NowUs();  // monotonic
  void Run();
  // Those of the timers that are due at now_us.
  std::vector<std::shared_ptr<Entry>> Due(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookFrom(int64_t at_us);  // any thread

  const absl::Duration tick_;
  std::atomic<int64_t> look_from_us_;  // no timer is due before
  std::mutex mutex_;
  std::condition_variable wake_;
  std::set<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lorad::server
