#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"

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

  // The revisions that follow `after`, oldest first, at most `limit`; empty where there is nothing
  // yet. OUT_OF_RANGE (REVISION_GONE) where something after `after` is no longer kept, or `after`
  // is yet to come. CANCELLED (SHUTTING_DOWN) after Shutdown(). The revisions are shared with the
  // log, which may drop them while a slow watcher still holds them.
  using Revisions = std::vector<std::shared_ptr<const Revision>>;
  absl::StatusOr<Revisions> Read(int64_t after, int64_t limit);

  // `on_change` is called after every Append and Shutdown, on their thread: it must not block, nor
  // call the log. Null: nobody listens; after that it is not called any more. For the one that
  // serves all watchers who have no thread to wait on.
  void Listen(std::function<void()> on_change);

  // The driver's side. `gone`: revisions up to this one are no longer kept; `newest` of all.
  void Start(int64_t gone, int64_t newest, std::vector<Revision> kept);
  void Append(Revision revision);
  void Shutdown();

 private:
  absl::StatusOr<Revisions> Following(int64_t after, int64_t limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t revisions_max_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<const Revision>> kept_ ABSL_GUARDED_BY(mutex_);
  int64_t gone_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_change_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server
