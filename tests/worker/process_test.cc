// lorad-worker as a process: flags, signals, its parent's end.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "tests/worker/fake_coordinator.h"

namespace lorad::worker {
namespace {

constexpr char kBinary[] = "worker/lorad-worker";

pid_t Start(const std::vector<std::string>& arguments) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid > 0) return pid;
  std::vector<char*> argv = {const_cast<char*>(kBinary)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(kBinary, argv.data());
  _exit(127);
}

int ExitStatus(pid_t pid) {
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Until the process catches SIGTERM: before that it would end of it all the same, but not tidily.
void AwaitSignalHandler(pid_t pid) {
  for (int i = 0; i < 1000; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string word;
    std::string name;
    status >> word >> name;  // before exec it is still ours, with this program's handlers
    while (status >> word && word != "SigCgt:") {
    }
    uint64_t caught = 0;
    if (name == "lorad-worker" && status >> std::hex >> caught &&
        (caught >> (SIGTERM - 1) & 1) != 0) {
      return;
    }
    std::this_thread::sleep_for(10ms);
  }
  FAIL("SIGTERM is not caught");
}

TEST_CASE("says hello and ends at SIGTERM with status 0") {
  FakeCoordinator coordinator;
  const pid_t pid = Start({"--coordinator", coordinator.address(), "--name", "w7", "--threads", "2",
                           "--memory", "3GiB"});
  const v1::Hello hello = coordinator.AwaitHello();
  CHECK(hello.protocol_version() == 1);
  CHECK(hello.worker() == "w7");
  CHECK(hello.device() == "cpu");
  CHECK(hello.threads() == 2);
  CHECK(hello.memory_bytes() == int64_t{3} << 30);
  CHECK(hello.pid() == pid);
  CHECK(hello.numerics_id().size() == 16);
  kill(pid, SIGTERM);
  CHECK(ExitStatus(pid) == 0);
}

TEST_CASE("ends at SIGTERM while nobody answers") {
  const pid_t pid = Start({"--coordinator", "127.0.0.1:1"});
  AwaitSignalHandler(pid);
  kill(pid, SIGTERM);
  CHECK(ExitStatus(pid) == 0);
}

TEST_CASE("a refusal is status 1, a wrong flag another") {
  FakeCoordinator coordinator;
  coordinator.Refuse({grpc::StatusCode::FAILED_PRECONDITION, "no"});
  CHECK(ExitStatus(Start({"--coordinator", coordinator.address()})) == 1);
  CHECK(ExitStatus(Start({})) > 1);
  CHECK(ExitStatus(Start({"--coordinator", "127.0.0.1:1", "--device", "abacus"})) > 1);
}

TEST_CASE("with --die-with-parent it ends with the process that started it") {
  FakeCoordinator coordinator;
  const pid_t parent = fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    Start({"--coordinator", coordinator.address(), "--die-with-parent"});
    pause();
    _exit(0);
  }
  const auto worker = static_cast<pid_t>(coordinator.AwaitHello().pid());
  REQUIRE(kill(worker, 0) == 0);
  kill(parent, SIGKILL);
  CHECK(ExitStatus(parent) == 128 + SIGKILL);
  // Nobody of ours reaps it, so look for its end from outside.
  bool gone = false;
  for (int i = 0; i < 500 && !gone; ++i) {
    std::ifstream status("/proc/" + std::to_string(worker) + "/stat");
    std::string word, state;
    status >> word >> word >> state;
    gone = !status || state == "Z";
    std::this_thread::sleep_for(10ms);
  }
  CHECK(gone);
}

}  // namespace
}  // namespace lorad::worker
