// What a worker shows to a coordinator on another host: its bundle, and what that is renewed to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/credentials/credential_files.h"

namespace lorad::worker {

// Any thread.
class Credentials {
 public:
  // Reads the bundle at `path`; its errors are those of ReadBundle and CheckBundle. `files` must
  // outlive it.
  static absl::StatusOr<std::unique_ptr<Credentials>> Load(storage::Files& files,
                                                           const std::string& path, absl::Time now);

  const std::string& worker() const { return worker_; }
  storage::WorkerBundle bundle() const;
  // How often it was renewed: connections made before show what was before.
  int64_t renewals() const;

  // Shows `certificate`, for `key`, from here on, and writes the bundle anew. INVALID_ARGUMENT
  // (BUNDLE_DAMAGED): they are not this worker's, nothing changes. An error of the disk: the
  // renewed one is shown, but lost when the process ends.
  absl::Status Renew(const std::string& key, const std::string& certificate);

 private:
  Credentials(storage::Files& files, std::string path, storage::WorkerBundle bundle)
      : files_(files), path_(std::move(path)), worker_(bundle.worker), bundle_(std::move(bundle)) {}

  storage::Files& files_;
  const std::string path_;
  const std::string worker_;
  mutable std::mutex mutex_;
  storage::WorkerBundle bundle_ ABSL_GUARDED_BY(mutex_);
  int64_t renewals_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::worker
