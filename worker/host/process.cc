#include "worker/host/process.h"

#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "storage/files/sha256.h"

namespace lorad::worker {
namespace {

// Counts up when the engine's own arithmetic (order of operations, scaling) changes results.
constexpr int kEngineVersion = 1;

// What stands behind `key` in the first line that begins with it, of a file in /proc.
std::string Behind(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return "";
}

// A line "Key:   123 kB".
int64_t KilobytesOf(const char* path, const std::string& key) {
  std::istringstream rest(Behind(path, key));
  int64_t kilobytes = 0;
  rest >> kilobytes;
  return kilobytes * 1024;
}

}  // namespace

int64_t ResidentBytes() { return KilobytesOf("/proc/self/status", "VmRSS:"); }
int64_t PeakResidentBytes() { return KilobytesOf("/proc/self/status", "VmHWM:"); }

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string ClaimName(const std::string& name) {
  for (int number = 1;; ++number) {
    const std::string tried = number == 1 ? name : absl::StrCat(name, "-", number);
    // A socket without a file: its name is free again when the process has ended, however it did.
    const std::string path = absl::StrCat(std::string(1, '\0'), "lorad-worker/", tried);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    assert(path.size() <= sizeof(address.sun_path));
    path.copy(address.sun_path, path.size());
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    const int held = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (held >= 0 && bind(held, reinterpret_cast<sockaddr*>(&address), bytes) == 0) return tried;
    const bool is_taken = held >= 0 && errno == EADDRINUSE;
    if (held >= 0) close(held);
    if (!is_taken) return absl::StrCat(name, "-", getpid());
  }
}

// "model name\t: AMD EPYC 9B14"
std::string ProcessorName() {
  const std::string name = Behind("/proc/cpuinfo", "model name");
  const size_t begin = name.find_first_not_of("\t :");
  return begin == std::string::npos ? "" : name.substr(begin);
}

int64_t MachineMemoryBytes() { return KilobytesOf("/proc/meminfo", "MemTotal:"); }

std::string NumericsId(const kernels::Backend& backend) {
  return storage::Sha256::Of(absl::StrCat(backend.NumericsId(), "; engine ", kEngineVersion))
      .substr(0, 16);
}

absl::Status DieWithParent() {
  const pid_t parent = getppid();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot ask for a signal at the parent's end: ", std::strerror(errno)));
  }
  // It may have ended in between: then another process is the parent by now.
  if (getppid() != parent || parent == 1) {
    return absl::FailedPreconditionError("the process that started this worker has ended");
  }
  return absl::OkStatus();
}

void EndProcessAfter(std::chrono::seconds patience) {
  std::thread([patience] {
    std::this_thread::sleep_for(patience);
    _exit(1);
  }).detach();
}

}  // namespace lorad::worker
