// One thread for all watches: it looks for them whether there is something new.
#pragma once

#include <atomic>
#include <functional>
#include <set>

#include "server/driver/task_pool.h"
#include "server/store/revision_log.h"

namespace lorad::server {

class WatchHub {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    // Something may be there. On the hub's thread; the watcher waits no longer.
    virtual void Look() = 0;
  };

  // `log` must outlive it.
  explicit WatchHub(RevisionLog& log);
  ~WatchHub();

  RevisionLog& log() { return log_; }
  // A pool of one thread: the watchers' strand. Any thread may add to it.
  TaskPool& thread() { return thread_; }

  // On the hub's thread. A watcher that has read all that there is waits to Look() again.
  void Wait(Watcher* watcher) { waiting_.insert(watcher); }
  // True: it waited, and does no longer.
  bool Leave(Watcher* watcher) { return waiting_.erase(watcher) > 0; }

 private:
  void LookForAll();

  RevisionLog& log_;
  std::atomic<bool> scheduled_{false};
  std::set<Watcher*> waiting_;  // the hub's thread alone
  TaskPool thread_{1};          // last: its tasks use all of the above
};

}  // namespace lorad::server
