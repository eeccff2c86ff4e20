#include "server/services/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace lorad::server {
namespace {

constexpr int kTries = 8;  // the kernel gives up when somebody renames on the way

// The part below the root, without the slashes in front.
std::string Below(const std::string& root, const std::string& path) {
  const std::string below = path.starts_with(root) ? path.substr(root.size()) : path;
  const size_t begin = below.find_first_not_of('/');
  return begin == std::string::npos ? "." : below.substr(begin);
}

}  // namespace

absl::Status CheckBeneath(const std::string& root, const std::string& path) {
  const absl::Status not_there =
      absl::NotFoundError("it is not there, or not to be read from here");
  const int folder = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return not_there;
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const std::string below = Below(root, path);
  int64_t fd = -1;
  for (int i = 0; i < kTries; ++i) {
    fd = syscall(SYS_openat2, folder, below.c_str(), &how, sizeof(how));
    if (fd >= 0 || errno != EAGAIN) break;
  }
  close(folder);
  if (fd < 0) return not_there;
  close(static_cast<int>(fd));
  return absl::OkStatus();
}

}  // namespace lorad::server
