#include "server/process_limits.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr rlim_t kFilesMin = 64;
constexpr int kThreadsMin = 64;

absl::Status TooFew(const char* reason, const std::string& what) {
  return Error(absl::StatusCode::kResourceExhausted, reason, what);
}

}  // namespace

void SetUpProcess() {
  umask(077);
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the user's limit is an error of its write
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // else the soft limit stays
}

absl::Status CheckProcessLimits() {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < kFilesMin) {
    return TooFew("TOO_FEW_FILES", absl::StrCat("this process may open ", files.rlim_cur,
                                                " files and needs at least ", kFilesMin,
                                                ": raise ulimit -n (LimitNOFILE)"));
  }
  // The limit on threads (of the user, of a container, of memory) is known to the kernel alone.
  std::promise<void> tried;
  const std::shared_future<void> end = tried.get_future().share();
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    while (threads.size() < kThreadsMin) threads.emplace_back([end] { end.wait(); });
  } catch (const std::system_error& error) {
    status = TooFew(
        "TOO_FEW_THREADS",
        absl::StrCat("this process may have ", threads.size(), " threads more and needs at least ",
                     kThreadsMin, " (", error.code().message(),
                     "): raise ulimit -u (TasksMax), the container's pids limit or "
                     "ulimit -v"));
  }
  tried.set_value();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace lorad::server
