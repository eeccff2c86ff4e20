#include "server/store/access.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {

namespace fs = std::filesystem;

absl::Status CheckOwner(const std::string& directory, uid_t user) {
  struct stat status;
  if (stat(directory.c_str(), &status) != 0 || status.st_uid == user) return absl::OkStatus();
  return Error(
      absl::StatusCode::kPermissionDenied, "DATA_DIR_NOT_OURS",
      absl::StrCat(directory, " belongs to user ", status.st_uid, ", and lorad runs as user ", user,
                   ": start it as that one, or name another --data-dir"));
}

absl::StatusOr<std::vector<std::string>> MakePrivate(const std::string& directory) {
  std::vector<fs::path> paths = {directory};
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_symlink()) continue;  // it leads to what is not ours to change
    if (entry->is_directory() || entry->is_regular_file()) paths.push_back(entry->path());
  }
  std::vector<std::string> changed;
  for (const fs::path& path : paths) {
    if (error) break;
    const fs::perms others =
        fs::status(path, error).permissions() & (fs::perms::group_all | fs::perms::others_all);
    if (error || others == fs::perms::none) continue;
    fs::permissions(path, others, fs::perm_options::remove, error);
    changed.push_back(path.string());
  }
  if (!error) return changed;
  return Error(absl::StatusCode::kPermissionDenied, "DATA_DIR_INVALID",
               absl::StrCat(directory, " cannot be made its owner's alone: ", error.message()));
}

}  // namespace lorad::server
