#include "server/supervisor/supervisor.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr char kFakeWorker[] = "tests/server/services/fake_worker.sh";

// What a supervisor said, and waiting for it.
class Talk {
 public:
  SupervisorSinks sinks() {
    return {
        [this](const std::string& worker, const std::string& line) { Add(worker + ": " + line); },
        [this](const std::string& worker, const std::string& what, bool wanted) {
          Add(worker + " " + what + (wanted ? " (wanted)" : ""));
        }};
  }

  // The index after the first text at or after `from` that contains `part`.
  size_t Await(const std::string& part, size_t from = 0) {
    std::unique_lock lock(mutex_);
    size_t found = 0;
    const bool came = changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      for (size_t i = from; i < said_.size(); ++i) {
        if (said_[i].find(part) != std::string::npos) {
          found = i + 1;
          return true;
        }
      }
      return false;
    });
    INFO("awaited: " << part);
    REQUIRE(came);
    return found;
  }

  std::string at(size_t index) {
    std::lock_guard lock(mutex_);
    return said_[index];
  }

 private:
  void Add(std::string text) {
    std::lock_guard lock(mutex_);
    said_.push_back(std::move(text));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> said_;
};

SupervisorOptions Quick() {
  SupervisorOptions options;
  options.backoff_first = absl::Milliseconds(20);
  options.backoff_max = absl::Milliseconds(100);
  return options;
}

WorkerCommand Fake(const std::string& what) { return {"w-" + what, {kFakeWorker, what}}; }

bool Alive(int64_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0; }

TEST_CASE("what is killed is started again, though it stands still") {
  Talk talk;
  Supervisor supervisor({Fake("stay")}, Quick(), talk.sinks());
  const size_t here = talk.Await("w-stay: here");
  const int64_t stopped = supervisor.pids()[0];
  kill(static_cast<pid_t>(stopped), SIGSTOP);
  supervisor.KillAll();
  talk.Await("w-stay: here", talk.Await("ended by signal 9", here));
  CHECK_FALSE(Alive(stopped));
  CHECK(supervisor.pids()[0] != stopped);
}

TEST_CASE("where descriptors are short, a worker is tried again later") {
  Talk talk;
  rlimit limit;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  Supervisor supervisor({Fake("talk")}, Quick(), talk.sinks());
  const size_t at =
      talk.Await("w-talk cannot be started: Too many open files; tried again in 20ms");
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  talk.Await("w-talk started as process ", at);
  talk.Await("w-talk: hello", at);
}

TEST_CASE("a worker's lines are forwarded, and it is started again with back-off") {
  Talk talk;
  Supervisor supervisor({Fake("talk")}, Quick(), talk.sinks());
  size_t at = talk.Await("w-talk started as process ");
  at = talk.Await("w-talk: hello", at);
  talk.Await("w-talk: to stderr");
  talk.Await("w-talk: no end of line");
  at = talk.Await("ended with exit code 3; starts again in 20ms", at);
  at = talk.Await("started as process", at);
  at = talk.Await("starts again in 40ms", at);
  at = talk.Await("starts again in 80ms", at);
  at = talk.Await("starts again in 100ms", at);
  CHECK(supervisor.restarts()[0] >= 3);
}

TEST_CASE("a killed worker comes back as another process") {
  Talk talk;
  Supervisor supervisor({Fake("stay"), {"second", {kFakeWorker, "stay"}}}, Quick(), talk.sinks());
  talk.Await("w-stay: here");
  talk.Await("second: here");
  const std::vector<int64_t> before = supervisor.pids();
  REQUIRE(Alive(before[0]));
  kill(static_cast<pid_t>(before[0]), SIGKILL);
  const size_t at = talk.Await("was ended by signal 9 (Killed)");
  talk.Await("w-stay: here", at);
  CHECK(supervisor.pids()[0] != before[0]);
  CHECK(supervisor.pids()[1] == before[1]);
  CHECK(supervisor.restarts() == std::vector<int>{1, 0});
}

TEST_CASE("stopping ends workers, stubborn ones too, and starts none again") {
  Talk talk;
  Supervisor supervisor({Fake("stay"), Fake("stubborn")}, Quick(), talk.sinks());
  talk.Await("w-stay: here");
  talk.Await("w-stubborn: here");
  const std::vector<int64_t> pids = supervisor.pids();
  supervisor.Stop(absl::Seconds(5));  // what a signal may take to end one that obeys it
  talk.Await("w-stay was ended by signal 15");
  talk.Await("w-stubborn was ended by signal 9");
  CHECK(!Alive(pids[0]));
  CHECK(!Alive(pids[1]));
  CHECK(supervisor.pids() == std::vector<int64_t>{0, 0});
}

TEST_CASE("a line without end is cut") {
  Talk talk;
  Supervisor supervisor({Fake("long")}, Quick(), talk.sinks());
  const size_t at = talk.Await(std::string(8192, 'x'));
  talk.Await(std::string(20000 - 2 * 8192, 'x'), at + 1);
}

TEST_CASE("a worker begins with a clear mask and no descriptors of its parent") {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const int open_here = dup(2);
  Talk talk;
  {
    Supervisor supervisor({Fake("state")}, Quick(), talk.sinks());
    talk.Await("SigBlk:\t0000000000000000");
    talk.Await("w-state: 4");  // 0, 1, 2 and ls's own
  }
  close(open_here);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("workers die with their coordinator, however it dies") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t coordinator = fork();
  if (coordinator == 0) {
    int64_t started = 0;  // its thread runs before `supervisor` is made
    Supervisor supervisor({Fake("stubborn")}, Quick(),
                          {[&](const std::string&, const std::string&) {
                             (void)!write(ends[1], &started, sizeof(started));
                           },
                           [&](const std::string&, const std::string& what, bool) {
                             sscanf(what.c_str(), "started as process %" SCNd64, &started);
                           }});
    pause();
  }
  close(ends[1]);  // so that the coordinator's end is one of the pipe
  int64_t worker = 0;
  REQUIRE(read(ends[0], &worker, sizeof(worker)) == sizeof(worker));
  REQUIRE(worker > 0);
  CHECK(Alive(worker));
  kill(coordinator, SIGKILL);
  waitpid(coordinator, nullptr, 0);
  for (int i = 0; i < 500 && Alive(worker); ++i) usleep(10'000);
  // Adopted by init, it may stay a zombie for want of a parent that waits.
  const std::string status = "/proc/" + std::to_string(worker) + "/stat";
  char line[256] = {};
  if (FILE* file = fopen(status.c_str(), "r")) {
    (void)!fgets(line, sizeof(line), file);
    fclose(file);
  }
  CHECK((line[0] == 0 || std::string(line).find(") Z") != std::string::npos));
  close(ends[0]);
}

TEST_CASE("a binary that cannot be executed says so") {
  Talk talk;
  Supervisor supervisor({{"w", {"/dev/null"}}}, Quick(), talk.sinks());
  talk.Await("w: cannot be executed: Permission denied");
  talk.Await("ended with exit code 127");
}

TEST_CASE("the worker's binary is found, or every place is named") {
  CHECK(FindWorkerBinary(kFakeWorker, {}).value() == kFakeWorker);
  const absl::StatusOr<std::string> missing = FindWorkerBinary("", {"/no/bin", "/else"});
  REQUIRE(!missing.ok());
  CHECK(Reason(missing.status()) == "WORKER_BINARY_MISSING");
  CHECK(missing.status().message() ==
        "lorad-worker is not at /no/bin/lorad-worker, nor at /no/bin/../worker/lorad-worker, nor "
        "at /else/lorad-worker, nor at /else/../worker/lorad-worker: build //worker:lorad-worker, "
        "name it with --worker-binary, or start without embedded workers (--workers none)");
  CHECK(!FindWorkerBinary("/no/such", {"/usr/bin"}).ok());
  CHECK(!FindWorkerBinary("/usr/bin", {}).ok());  // a directory
}

}  // namespace
}  // namespace lorad::server
