// lorad-worker as a process: flags, signals, its parent's end.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "tests/worker/fake_coordinator.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

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

// One training step of `job` with a save, as a window.
v1::CoordinatorMessage OneStep(const TestJob& job) {
  v1::CoordinatorMessage message;
  v1::Window& window = *message.mutable_window();
  window.set_epoch(1);
  window.set_number(1);
  v1::Operation& load = *window.add_operations();
  load = Op(v1::Operation::LOAD_SLOT, job.name(), 0);
  *load.mutable_slot() = job.spec;
  v1::Microbatch& microbatch = *window.add_microbatches();
  microbatch.set_number(1);
  *microbatch.add_segments() = SegmentOf(job, job.rows[0], 0, 1, v1::Segment::TRAIN);
  v1::Batch& batch = *window.add_batches();
  batch.set_job(job.name());
  batch.set_step(1);
  batch.set_sequences(1);
  batch.set_tokens(static_cast<int64_t>(job.rows[0].ids.size()));
  for (size_t t = 1; t < job.rows[0].labels.size(); ++t) {
    if (job.rows[0].labels[t] != -100) batch.set_trained_tokens(batch.trained_tokens() + 1);
  }
  *window.add_operations() = Op(v1::Operation::FORWARD, int64_t{1});
  *window.add_operations() = Op(v1::Operation::BACKWARD, int64_t{1});
  for (const auto kind : {v1::Operation::NORM_UP, v1::Operation::CLIP_DOWN, v1::Operation::STEP,
                          v1::Operation::SAVE}) {
    *window.add_operations() = Op(kind, job.name(), 1);
  }
  return message;
}

TEST_CASE("its peak is what was planned") {
  FakeCoordinator coordinator;
  const pid_t pid = Start({"--coordinator", coordinator.address(), "--threads", "2"});
  coordinator.AwaitHello();
  v1::CoordinatorMessage form;
  v1::FormGroup& order = *form.mutable_form_group();
  order.set_epoch(1);
  order.set_model_path(MakeSmolLm2Model(std::filesystem::temp_directory_path() / "peak_model"));
  order.set_stages(1);
  order.set_capacity_tokens(256);
  order.set_longest_sequence(256);
  coordinator.Send(form);
  const v1::GroupFormed formed = coordinator.AwaitReport(v1::Report::kGroupFormed).group_formed();
  coordinator.Send(OneStep(MakeJob(
      "a", 16, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
      RandomRows(1, 256, 256, 1), 1)));
  const int64_t slot_bytes = coordinator.AwaitReport(v1::Report::kSlotLoaded).slot_loaded().bytes();
  coordinator.AwaitReport(v1::Report::kSaved);
  const int64_t peak_bytes = coordinator
                                 .Await([](const v1::WorkerMessage& m) {
                                   return m.has_heartbeat() && m.heartbeat().epoch() == 1;
                                 })
                                 .heartbeat()
                                 .peak_resident_bytes();
  const double ratio = static_cast<double>(peak_bytes - formed.baseline_resident_bytes()) /
                       static_cast<double>(formed.reserved_bytes() + slot_bytes);
  std::cout << "peak over plan: " << ratio << ", of "
            << (formed.reserved_bytes() + slot_bytes) / (1 << 20) << " MiB" << std::endl;
  CHECK(ratio == Approx(1).margin(0.02));
  kill(pid, SIGTERM);
  CHECK(ExitStatus(pid) == 0);
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
