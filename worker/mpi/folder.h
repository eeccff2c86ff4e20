// Temporary folders that do not outlive who has made them for long, even where that was killed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/transport/socket.h"

namespace lorad::worker {

// A folder of a helper's own, beneath the system's temporary one. Its maker holds a lock on it, and
// who makes the next one removes those of its user that nobody holds. At the end it is removed with
// all that is in it.
class HelperFolder {
 public:
  static absl::StatusOr<HelperFolder> Make();
  ~HelperFolder();
  HelperFolder(HelperFolder&&) = default;
  HelperFolder& operator=(HelperFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  HelperFolder(std::string path, FileDescriptor lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  FileDescriptor lock_;
};

}  // namespace lorad::worker
