// Which check of rows is next. Thread-safe.
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

// Small datasets go before large ones, but every fourth time the oldest goes, whatever its size;
// and large ones are never more than `large_max` at a time, so that a thread is left for small
// ones.
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
  static bool IsLarge(const Check& check);
  // The best that may be taken now, or the end.
  Place Best() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int large_max_;
  std::mutex mutex_;
  std::list<Check> waiting_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> taken_ ABSL_GUARDED_BY(mutex_);
  int large_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t takes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::server
