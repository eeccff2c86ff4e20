#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lorad::storage {

// One daemon a directory. Held until destroyed; the kernel lets go when the process dies.
class DirectoryLock {
 public:
  // FAILED_PRECONDITION (DATA_DIR_IN_USE) naming the process that holds it.
  static absl::StatusOr<DirectoryLock> Take(const std::string& directory);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int file) : file_(file) {}
  int file_;
};

}  // namespace lorad::storage
