// For tools/locks alone: the C++ library's mutex and locks with clang's annotations, which gcc's
// library lacks. Derived from the real ones, so condition variables take them.
#pragma once

#define mutex plain_mutex
#define lock_guard plain_lock_guard
#define unique_lock plain_unique_lock
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#undef mutex
#undef lock_guard
#undef unique_lock

#include "absl/base/thread_annotations.h"

namespace std {

class ABSL_LOCKABLE mutex : public plain_mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { plain_mutex::lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { plain_mutex::unlock(); }
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return plain_mutex::try_lock(); }
};

template <typename Mutex>
class ABSL_SCOPED_LOCKABLE lock_guard {
 public:
  explicit lock_guard(Mutex& m) ABSL_EXCLUSIVE_LOCK_FUNCTION(m) : mutex_(m) { mutex_.lock(); }
  ~lock_guard() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

template <typename Mutex>
class ABSL_SCOPED_LOCKABLE unique_lock : public plain_unique_lock<std::plain_mutex> {
 public:
  explicit unique_lock(Mutex& m) ABSL_EXCLUSIVE_LOCK_FUNCTION(m)
      : plain_unique_lock<std::plain_mutex>(m) {}
  ~unique_lock() ABSL_UNLOCK_FUNCTION() {}
  unique_lock(unique_lock&&) = default;
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { plain_unique_lock<std::plain_mutex>::lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { plain_unique_lock<std::plain_mutex>::unlock(); }
};

template <typename Mutex>
unique_lock(Mutex&) -> unique_lock<Mutex>;

}  // namespace std
