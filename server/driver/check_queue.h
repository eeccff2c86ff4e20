// Which check of rows is next: small ones first, and fairly among those who ask. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "server/core/events/effects.h"

namespace lorad::server {

// Among the shares (CheckRows::share), that one goes whose check would end first if all of them
// were served side by side, byte by byte: self-clocked fair queueing (Golestani, "A self-clocked
// fair queueing scheme for broadband applications", 1994), with bytes of rows as the service. So a
// small dataset goes before a large one, and a crowd of one share before nobody else's for long.
//
// Within a share small datasets go before large ones, but every fourth time the oldest goes,
// whatever its size. Large ones are never more than `large_max` at a time, so that a thread is left
// for small ones, and of one share one less, so that a place is left for another's.
class CheckQueue {
 public:
  static constexpr int64_t kLargeBytes = 1 << 20;

  // To be given back to Done.
  struct Check {
    CheckRows order;
    std::shared_ptr<std::atomic<bool>> cancelled;
  };

  explicit CheckQueue(int large_max) : large_max_(large_max) {}

  void Add(CheckRows order);
  // The check with that key, waiting or taken, goes first, and ends at once.
  void Cancel(const std::string& key);
  void CancelAll();
  // Nothing: none waits, or only large ones do; whoever takes until then finds those after Done.
  std::optional<Check> Take();
  void Done(const Check& check);

 private:
  using Place = std::list<Check>::iterator;
  struct Share {
    std::list<Check> waiting;  // oldest first
    int64_t begin_bytes = 0;   // when its next check begins, on the queue's clock
    int64_t takes = 0;
    int large_taken = 0;
  };
  using Shares = std::map<std::string, Share>;

  // The best of a share that may be taken now, or the end.
  Place Best(Share& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets a share that has nothing waiting and nothing that counts.
  void Leave(Shares::iterator share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int large_max_;
  std::mutex mutex_;
  Shares shares_ ABSL_GUARDED_BY(mutex_);
  int64_t clock_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the end of the check that was taken last
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> taken_ ABSL_GUARDED_BY(mutex_);
  int large_taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::server
