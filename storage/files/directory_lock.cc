#include "storage/files/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

absl::Status Cannot(const char* what_for, const std::string& path, int error) {
  const std::string what = absl::StrCat(path, ": cannot ", what_for, " it: ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return WithReason(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                        absl::StrCat(what, "; make room on its disk"));
    case EROFS:
      return WithReason(absl::StatusCode::kUnavailable, "STORE_READ_ONLY",
                        absl::StrCat(what, "; make its file system writable again"));
    case EISDIR:
    case ELOOP:
    case ENXIO:
      return WithReason(absl::StatusCode::kFailedPrecondition, "DATA_DIR_INVALID",
                        absl::StrCat(path,
                                     " is not a file, as lorad's lock is: remove it, or name "
                                     "another --data-dir"));
    default:
      return absl::InternalError(what);
  }
}

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Take(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/lock");
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return Cannot("open", path, errno);
  DirectoryLock lock(file);
  struct stat about;
  if (fstat(file, &about) != 0) return Cannot("open", path, errno);
  if (!S_ISREG(about.st_mode)) return Cannot("open", path, EISDIR);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::InternalError(absl::StrCat(path, ": flock: ", std::strerror(errno)));
    }
    char text[32];
    ssize_t size = pread(file, text, sizeof text, 0);
    while (size > 0 && (text[size - 1] < '0' || text[size - 1] > '9')) --size;
    const std::string pid(text, size > 0 ? size : 0);
    return WithReason(
        absl::StatusCode::kFailedPrecondition, "DATA_DIR_IN_USE",
        absl::StrCat("the data directory ", directory, " is in use by the lorad with process id ",
                     pid.empty() ? "(not yet written)" : pid,
                     "; stop that one first, or name another --data-dir"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  errno = ENOSPC;  // of a write that ends early
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return Cannot("write", path, errno);
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
