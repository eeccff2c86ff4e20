// The changes of jobs, for watchers: the newest in memory, older ones in the store, and of each job
// the newest progress. A watcher who has read up to a revision is given all that follows it, but
// for progress after which there is newer news of the same job.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/job_store.h"

namespace lorad::server {

// Threads: any.
class RevisionLog {
 public:
  // So many changes are kept in memory.
  explicit RevisionLog(int64_t memory_max) : memory_max_(memory_max) {}

  struct Revision {
    int64_t revision = 0;
    std::string job;
    std::string message;  // v1::WatchJobsResponse, serialized
    bool progress = false;
  };
  // Shared with the log, which may drop them while a slow watcher still holds them.
  using Revisions = std::vector<std::shared_ptr<const Revision>>;

  struct Found {
    Revisions revisions;    // oldest first
    int64_t up_to = 0;      // nothing else is told up to here: read on from it
    bool in_store = false;  // nothing is found: what follows is to be read by ReadStored
  };
  // The revisions that follow `after`, at most `limit` (> 0). OUT_OF_RANGE (REVISION_GONE) where it
  // is yet to come; CANCELLED (SHUTTING_DOWN) after Shutdown().
  absl::StatusOr<Found> Read(int64_t after, int64_t limit);
  // The same from the store, and no further than where memory begins. It waits for a commit that is
  // under way. OUT_OF_RANGE (REVISION_GONE) where a change after `after` is no longer kept, and the
  // store's errors.
  absl::StatusOr<Found> ReadStored(int64_t after, int64_t limit);

  // OUT_OF_RANGE (OTHER_STORE) where `store` is not the identity of ours. One that is not known, on
  // either side, is not compared.
  absl::Status CheckStore(const std::string& store) const;
  // Ours; empty: it has none yet.
  std::string store() const;
  // The newest that watchers may be told.
  int64_t newest() const;

  // `on_change` is called after every Append and Shutdown, on their thread: it must not block, nor
  // call the log. Null: nobody listens; after that it is not called any more. For the one that
  // serves all watchers who have no thread to wait on.
  void Listen(std::function<void()> on_change);

  // ---- the driver's side ----

  struct Beginning {
    std::string store;  // its identity
    int64_t gone = 0;   // changes up to this one are no longer kept
    int64_t newest = 0;
    storage::JobStore* changes = nullptr;  // which has those in between; outlives all reads
  };
  void Start(Beginning beginning);
  // REQUIRES: it is newer than all before. A change is in the store already.
  void Append(Revision revision);
  void Shutdown();

 private:
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of changes and progress what lies in between, oldest first, at most so many.
  void Merge(Revisions changes, int64_t after, int64_t limit, Found* found) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t memory_max_;
  mutable std::mutex mutex_;
  Beginning beginning_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const Revision>> changes_ ABSL_GUARDED_BY(mutex_);
  int64_t in_store_ ABSL_GUARDED_BY(mutex_) = 0;  // changes up to this one are there alone
  std::map<int64_t, std::shared_ptr<const Revision>> progress_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> progress_of_ ABSL_GUARDED_BY(mutex_);  // by job
  int64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_change_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server
