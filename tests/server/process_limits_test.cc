#include "server/process_limits.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// The reason that a process of its own gets under this limit; empty: none.
std::string ReasonUnder(int resource, rlim_t value) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit = {value, value};
    if (setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) _exit(1);
    const absl::Status status = CheckProcessLimits();
    const std::string reason = status.ok() ? "" : Reason(status);
    _exit(write(ends[1], reason.data(), reason.size()) == static_cast<ssize_t>(reason.size()) ? 0
                                                                                              : 1);
  }
  close(ends[1]);
  char text[64];
  const ssize_t length = read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return std::string(text, static_cast<size_t>(length));
}

TEST_CASE("a process that may have too little is told so at its start") {
  CHECK(CheckProcessLimits().ok());
  CHECK(ReasonUnder(RLIMIT_NOFILE, 20) == "TOO_FEW_FILES");
  CHECK(ReasonUnder(RLIMIT_NOFILE, 64) == "");
  // Stacks are of the address space: no user is above this limit.
  CHECK(ReasonUnder(RLIMIT_AS, rlim_t{200} << 20) == "TOO_FEW_THREADS");
}

}  // namespace
}  // namespace lorad::server
