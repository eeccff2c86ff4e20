// The groups that the connected workers were ordered to form, or were welcomed back with, each
// worker its stage, and the contents to fetch: bulk calls come on connections of their own, and are
// good for these alone. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::server {

class WorkerEpochs {
 public:
  // An order is about to be sent on the control stream, whose address names it, of `worker`.
  void Ordered(const void* stream, const std::string& worker,
               const worker::v1::CoordinatorMessage& order);
  void Disconnected(const void* stream);

  // Whether these are what a connected worker was told to do. `caller`: the worker that calls, by
  // its certificate, whose group it must be; "" = somebody of this host. FAILED_PRECONDITION
  // (NOT_A_WORKERS_GROUP).
  absl::Status CheckUpload(const worker::v1::UploadShardRequest::Header& header,
                           const std::string& caller) const;
  absl::Status CheckFetch(const worker::v1::FetchSlotContentRequest& request,
                          const std::string& caller) const;
  // The order that formed the group of an epoch.
  absl::StatusOr<worker::v1::FormGroup> FormedBy(int64_t epoch, const std::string& caller) const;

 private:
  // What one worker was ordered.
  struct Group {
    std::string worker;
    worker::v1::FormGroup order;
    std::map<std::string, std::string> contents;  // of loaded slots, by job
    std::map<std::string, int64_t> saves;         // the last step that a job is to save
  };
  // One of the epoch that `caller` may speak for, and of which `asked` holds.
  const Group* Find(int64_t epoch, const std::string& caller,
                    const std::function<bool(const Group&)>& asked) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable std::mutex mutex_;
  // By epoch and stream: each stage of a model has one.
  std::map<std::pair<int64_t, const void*>, Group> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server
