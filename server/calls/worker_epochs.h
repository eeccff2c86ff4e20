// The groups that the connected workers were ordered to form, and the contents to fetch: bulk calls
// come on connections of their own, and are good for these alone. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::server {

class WorkerEpochs {
 public:
  // An order is about to be sent on a control stream, whose address names it.
  void Ordered(const void* stream, const worker::v1::CoordinatorMessage& order);
  void Disconnected(const void* stream);

  // FAILED_PRECONDITION (NOT_A_WORKERS_GROUP).
  absl::Status CheckUpload(const worker::v1::UploadShardRequest::Header& header) const;
  absl::Status CheckFetch(const worker::v1::FetchSlotContentRequest& request) const;

 private:
  struct Group {
    const void* stream = nullptr;
    std::map<std::string, std::string> contents;  // of loaded slots, by job
  };

  mutable std::mutex mutex_;
  std::map<int64_t, Group> groups_ ABSL_GUARDED_BY(mutex_);  // by epoch
};

}  // namespace lorad::server
