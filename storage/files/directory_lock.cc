#include "storage/files/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {

absl::StatusOr<DirectoryLock> DirectoryLock::Take(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/lock");
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    return absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  DirectoryLock lock(file);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::InternalError(absl::StrCat(path, ": flock: ", std::strerror(errno)));
    }
    char text[32];
    ssize_t size = pread(file, text, sizeof text, 0);
    while (size > 0 && (text[size - 1] < '0' || text[size - 1] > '9')) --size;
    const std::string pid(text, size > 0 ? size : 0);
    absl::Status status = absl::FailedPreconditionError(
        absl::StrCat("the data directory ", directory, " is in use by the lorad with process id ",
                     pid.empty() ? "(not yet written)" : pid,
                     "; stop that one first, or name another --data-dir"));
    status.SetPayload(Absl(kReasonPayload), absl::Cord("DATA_DIR_IN_USE"));
    return status;
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace lorad::storage
