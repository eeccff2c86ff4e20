// The log's lines about workers that are refused. One that tries again says the same for as long as
// it is let, so each is written once a minute.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lorad::server {

// Any thread.
class Refusals {
 public:
  // `who`: "worker 'b' at 10.0.0.2", "10.0.0.2".
  void Note(const std::string& who, const absl::Status& why);

 private:
  std::mutex mutex_;
  // When each was last written; emptied when it is full.
  std::map<std::string, absl::Time> written_ ABSL_GUARDED_BY(mutex_);
};

// "10.0.0.2" of "10.0.0.2:40000".
std::string HostOf(const std::string& address);

}  // namespace lorad::server
