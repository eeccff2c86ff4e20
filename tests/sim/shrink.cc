#include "tests/sim/shrink.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

namespace lorad::sim {
namespace {

// What a child writes and its parent reads.
class SharedTally {
 public:
  SharedTally()
      : tally_(static_cast<Tally*>(mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    assert(tally_ != MAP_FAILED);
  }
  ~SharedTally() { munmap(tally_, sizeof(Tally)); }
  SharedTally(const SharedTally&) = delete;
  SharedTally& operator=(const SharedTally&) = delete;
  Tally& operator*() const { return *tally_; }

 private:
  Tally* const tally_;
};

[[noreturn]] void RunChild(const std::function<Tally()>& trial, bool quiet, int seconds,
                           Tally* tally) {
  if (quiet) {
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
  }
  alarm(static_cast<unsigned>(seconds));  // its signal ends the process
  bool well = true;
  try {
    *tally = trial();
  } catch (const std::exception& error) {  // not of an assertion
    std::cout << "thrown: " << error.what() << "\n";
    well = false;
  } catch (...) {  // a failed assertion, which has been printed
    well = false;
  }
  std::cout.flush();
  std::fflush(nullptr);
  _exit(well ? 0 : 1);
}

}  // namespace

bool GoesWell(const std::function<Tally()>& trial, bool quiet, Tally* tally, int seconds) {
  const SharedTally shared;
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t child = fork();
  assert(child >= 0);
  if (child == 0) RunChild(trial, quiet, seconds, &*shared);
  int status = 0;
  const pid_t ended = waitpid(child, &status, 0);
  assert(ended == child);
  *tally = *shared;
  if (WIFSIGNALED(status) && !quiet) {
    std::cout << "ended by signal " << WTERMSIG(status) << ": " << strsignal(WTERMSIG(status))
              << "\n";
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Leaves out halves, then quarters, and so on down to each alone; again until nothing goes.
std::vector<int> Shrink(std::vector<int> all,
                        const std::function<bool(const std::vector<int>&)>& fails, int tries_max) {
  int tries = 0;
  for (size_t chunk = std::max<size_t>(all.size() / 2, 1);;) {
    bool smaller = false;
    for (size_t begin = 0; begin < all.size();) {
      if (tries++ == tries_max) return all;
      const size_t end = std::min(begin + chunk, all.size());
      std::vector<int> rest(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(begin));
      rest.insert(rest.end(), all.begin() + static_cast<std::ptrdiff_t>(end), all.end());
      if (fails(rest)) {
        all = std::move(rest);
        smaller = true;
      } else {
        begin = end;
      }
    }
    if (chunk > 1) {
      chunk /= 2;
    } else if (!smaller) {
      return all;
    }
  }
}

}  // namespace lorad::sim
