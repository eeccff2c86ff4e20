// Reads a stream of messages on a thread of its own, so that the next ones come while the caller
// works on one: gRPC takes a message off the wire only while somebody reads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"

namespace lorad::client {

// `Stream` has `bool Read(Message*)`, false at its end. One thread calls Next.
template <class Message, class Stream>
class ReadAhead {
 public:
  // `stream` must outlive this object, which alone may read from it.
  explicit ReadAhead(Stream& stream) : stream_(stream), thread_([this] { Run(); }) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  // Waits for the stream's end: cancel the call before, or read all.
  ~ReadAhead() {
    Message ignored;
    while (Next(&ignored)) {
    }
    thread_.join();
  }

  // The next message in order; false: there is none any more.
  bool Next(Message* out) {
    std::unique_lock lock(mutex_);
    changed_.wait(
        lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || !read_.empty(); });
    if (read_.empty()) return false;
    *out = std::move(read_.front());
    read_.pop_front();
    changed_.notify_all();
    return true;
  }

 private:
  static constexpr std::size_t kAheadMax = 4;  // messages that wait for Next

  void Run() {
    for (;;) {
      Message message;
      const bool more = stream_.Read(&message);
      std::unique_lock lock(mutex_);
      ended_ = !more;
      if (more) read_.push_back(std::move(message));
      changed_.notify_all();
      if (!more) return;
      changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return read_.size() < kAheadMax;
      });
    }
  }

  Stream& stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> read_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all others
};

}  // namespace lorad::client
