#include "worker/mpi/folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lorad::worker {
namespace {

constexpr char kPrefix[] = "lorad-mpi-helper-";
constexpr char kDigits[] = "XXXXXX";  // mkdtemp's
// Of the folders that are made, those that are taken for left over before they are locked.
constexpr int kTries = 8;

FileDescriptor OpenFolder(const std::string& path) {
  return FileDescriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool IsAName(const std::string& name) {
  return absl::StartsWith(name, kPrefix) &&
         name.size() == std::strlen(kPrefix) + std::strlen(kDigits);
}

bool IsOurs(const FileDescriptor& folder) {
  struct stat held = {};
  return folder.open() && fstat(folder.get(), &held) == 0 && held.st_uid == geteuid();
}

bool IsThere(const std::string& path, const FileDescriptor& folder) {
  struct stat named = {}, held = {};
  return lstat(path.c_str(), &named) == 0 && fstat(folder.get(), &held) == 0 &&
         named.st_dev == held.st_dev && named.st_ino == held.st_ino;
}

// Those of this user's workers that were killed.
void RemoveLeftOver(const std::filesystem::path& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (!IsAName(entry.path().filename())) continue;
    const FileDescriptor folder = OpenFolder(entry.path());
    if (!IsOurs(folder) || flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

absl::StatusOr<HelperFolder> HelperFolder::Make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (!error) RemoveLeftOver(parent);
  for (int i = 0; i < kTries && !error; ++i) {
    std::string path = parent / absl::StrCat(kPrefix, kDigits);
    if (mkdtemp(path.data()) == nullptr) break;
    FileDescriptor lock = OpenFolder(path);
    if (lock.open() && flock(lock.get(), LOCK_EX) == 0 && IsThere(path, lock)) {
      return HelperFolder(std::move(path), std::move(lock));
    }
  }
  return absl::UnavailableError(
      absl::StrCat("cannot make a temporary folder for lorad-mpi: ",
                   error ? error.message() : std::string(strerrordesc_np(errno)),
                   "; TMPDIR names where they lie"));
}

HelperFolder::~HelperFolder() {
  if (!lock_.open()) return;  // moved from
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lorad::worker
