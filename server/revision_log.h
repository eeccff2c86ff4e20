#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lorad::server {

// The newest revisions of jobs, for watchers. Any thread.
class RevisionLog {
 public:
  explicit RevisionLog(int64_t revisions_max) : revisions_max_(revisions_max) {}

  struct Revision {
    int64_t revision = 0;
    std::string job;
    std::string message;  // v1::WatchJobsResponse, serialized
  };

  // What follows `after`, oldest first, at most `limit`; waits for one until `deadline` and is
  // empty then. OUT_OF_RANGE (REVISION_GONE) where something after `after` is no longer kept, or
  // `after` is yet to come. CANCELLED (SHUTTING_DOWN) after Shutdown(). The revisions are shared
  // with the log, which may drop them while a slow watcher still holds them.
  absl::StatusOr<std::vector<std::shared_ptr<const Revision>>> Wait(int64_t after, int64_t limit,
                                                                    absl::Time deadline);

  // The driver's side. `gone`: revisions up to this one are no longer kept; `newest` of all.
  void Start(int64_t gone, int64_t newest, std::vector<Revision> kept);
  void Append(Revision revision);
  void Shutdown();

 private:
  const int64_t revisions_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<std::shared_ptr<const Revision>> kept_;
  int64_t gone_ = 0;
  int64_t newest_ = 0;
  bool shutdown_ = false;
};

}  // namespace lorad::server
