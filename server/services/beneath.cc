#include "server/services/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr int kTries = 8;  // the kernel gives up when somebody renames on the way

// The part below the root, without the slashes in front.
std::string Below(const std::string& root, const std::string& path) {
  const std::string below = path.starts_with(root) ? path.substr(root.size()) : path;
  const size_t begin = below.find_first_not_of('/');
  return begin == std::string::npos ? "." : below.substr(begin);
}

// openat2: a descriptor of `below`, beneath the folder; -1 with errno.
int OpenBeneath(int folder, const std::string& below) {
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(syscall(SYS_openat2, folder, below.c_str(), &how, sizeof(how)));
}

}  // namespace

absl::Status CheckBeneath(const std::string& root, const std::string& path) {
  const absl::Status not_there =
      absl::NotFoundError("it is not there, or not to be read from here");
  const int folder = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return not_there;
  const std::string below = Below(root, path);
  int fd = -1;
  for (int i = 0; i < kTries; ++i) {
    fd = OpenBeneath(folder, below);
    if (fd >= 0 || errno != EAGAIN) break;
  }
  close(folder);
  if (fd < 0) return not_there;
  close(fd);
  return absl::OkStatus();
}

absl::Status CheckOpenat2() {
  const int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int fd = OpenBeneath(root, ".");
  const int error = errno;
  if (fd >= 0) close(fd);
  if (root >= 0) close(root);
  if (fd >= 0 || (error != ENOSYS && error != EPERM)) return absl::OkStatus();
  return Error(absl::StatusCode::kUnimplemented, "OPENAT2_UNAVAILABLE",
               absl::StrCat("the kernel does not answer openat2 here (", strerrorname_np(error),
                            "), by which paths are kept beneath --model-root: it takes Linux 5.6, "
                            "and a filter of system calls that lets it pass (systemd's "
                            "RestrictSUIDSGID does not)"));
}

}  // namespace lorad::server
