// The coordinator's mail, in the sequence in which it came. Bounded, and nobody who posts waits:
// mail that finds no place is handed back. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/core/events/events.h"
#include "server/driver/clock.h"

namespace lorad::server {

struct MailboxOptions {
  int64_t requests_max = 4096;  // of clients
  // There is room for workers' mail beside the clients' share: shards that came, and so many
  // messages of each control stream. Heartbeats take one place, the newest stands for all.
  int64_t shards_max = 1024;
  int64_t messages_max = 4096;
};

class Mailbox {
 public:
  using Content = decltype(Event::content);
  struct Mail {
    uint64_t number = 0;  // counted from 1
    Moment posted;
    Content content;
  };

  // `on_mail` is called after each post, on the poster's thread, and must not block.
  Mailbox(Clock& clock, const MailboxOptions& options, std::function<void()> on_mail)
      : clock_(clock), options_(options), on_mail_(std::move(on_mail)) {}

  // False: its share is full; `content` is left as it was. A worker's connecting and leaving and
  // the ends of effects always find a place. After Close() all is taken, and dropped.
  bool Post(Content&& content);

  // The oldest, at most `max`.
  std::vector<Mail> Take(size_t max);
  // Clients' requests alone, all of them; what else there is stays in its order.
  std::vector<Mail> TakeRequests();
  // The number of the newest mail ever posted; 0 = none yet.
  uint64_t newest() const;
  // Something up to that number has not been taken.
  bool HasUpTo(uint64_t number) const;
  void Close();

 private:
  using Queue = std::list<Mail>;
  // The count that bounds mail of its kind; null where nothing does.
  int64_t* CountOf(const Content& content) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t LimitOf(const Content& content) const;
  Queue::iterator Unlink(Queue::iterator mail, std::vector<Mail>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock& clock_;
  const MailboxOptions options_;
  const std::function<void()> on_mail_;
  mutable std::mutex mutex_;
  Queue queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t shards_ ABSL_GUARDED_BY(mutex_) = 0;
  // By connection, those that have any.
  std::map<uint64_t, int64_t> messages_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Queue::iterator> heartbeats_ ABSL_GUARDED_BY(mutex_);  // by connection
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// The request is a client's, not a worker's that brings a shard.
bool IsOfClient(const Mailbox::Content& content);

}  // namespace lorad::server
