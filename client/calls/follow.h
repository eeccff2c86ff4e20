#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/calls/session.h"
#include "lorad/v1/jobs.pb.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace lorad::client {

// What is followed, and who hears of it.
struct Following {
  std::vector<std::string> jobs;  // ids; empty: all
  bool live_only = false;         // none that has ended when it begins
  // Each response of the watch, bookmarks too. False: enough.
  std::function<bool(const v1::WatchJobsResponse&)> told;
  // The present state comes again: what was told before is void.
  std::function<void()> anew = [] {};
  // The daemon is lost, and waited for.
  std::function<void()> lost = [] {};
};

// Watches jobs, and takes the watch up again where it broke: behind the newest revision that it was
// told of, and from the present state where that is no longer kept, or is of another store.
class Follower {
 public:
  Follower(Session& session, Following following)
      : session_(session), following_(std::move(following)) {}

  // Returns OK after `told` has said that it is enough, or Stop; an error where the watch is
  // refused, no daemon is there to begin with, or it stays away for a minute. Calls back on the
  // caller's thread.
  absl::Status Run();
  // Run ends soon. Any thread.
  void Stop();

 private:
  bool stopped();
  // The stream that Stop ends; null: none. False: it is stopped already.
  bool Open(grpc::ClientContext* context);
  // One stream to its end.
  grpc::Status Follow();
  // False: it has been away for too long.
  bool WaitForDaemon();

  Session& session_;
  const Following following_;
  std::string store_;  // of which the revision is
  std::int64_t revision_ = 0;
  std::int64_t lost_since_ms_ = 0;  // 0: it is there
  bool connected_ = false;
  bool enough_ = false;

  std::mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace lorad::client
