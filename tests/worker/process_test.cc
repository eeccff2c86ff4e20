// lorad-worker as a process: flags, signals, its parent's end.
#include "worker/host/process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/fake_coordinator.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "tests/worker/stages.h"

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

// Until the process waits for SIGTERM: before that it would end of it all the same, but not tidily.
// It must not be caught: a thread that computes has no stack for a handler (worker/main.cc).
void AwaitSignalsBlocked(pid_t pid) {
  const auto has = [](uint64_t signals) { return (signals >> (SIGTERM - 1) & 1) != 0; };
  for (int i = 0; i < 1000; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::map<std::string, std::string> fields;
    for (std::string word, value; status >> word && std::getline(status, value);) {
      fields[word] = value;
    }
    // Before exec it is still ours, with this program's handlers.
    if (fields["Name:"] == "\tlorad-worker" && has(std::stoull(fields["SigBlk:"], nullptr, 16))) {
      CHECK_FALSE(has(std::stoull(fields["SigCgt:"], nullptr, 16)));
      return;
    }
    std::this_thread::sleep_for(1ms);
  }
  FAIL("SIGTERM is not blocked");
}

TEST_CASE("a name is claimed by one process at a time, and free again when that has ended") {
  const std::string name = absl::StrCat("claimed-", getpid());
  int ready[2], done[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(done) == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  char byte = 0;
  if (pid == 0) {
    byte = ClaimName(name) == name ? 1 : 0;
    (void)!write(ready[1], &byte, 1);
    (void)!read(done[0], &byte, 1);
    _exit(0);
  }
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(byte == 1);
  CHECK(ClaimName(name) == name + "-2");
  CHECK(ClaimName(name) == name + "-3");
  kill(pid, SIGKILL);
  ExitStatus(pid);
  CHECK(ClaimName(name) == name);
  CHECK(ClaimName(name) == name + "-4");
}

// At SIGTERM, which it tells of, once it is let go.
void EndInOrder(FakeCoordinator* coordinator, pid_t pid) {
  kill(pid, SIGTERM);
  coordinator->Await([](const v1::WorkerMessage& m) { return m.has_leaving(); });
  v1::CoordinatorMessage message;
  message.mutable_shutdown()->set_reason("it has no jobs");
  coordinator->Send(message);
  CHECK(ExitStatus(pid) == 0);
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
  EndInOrder(&coordinator, pid);
}

TEST_CASE("ends at SIGTERM when its grace period is over, at a second one at once") {
  using std::chrono::steady_clock;
  for (const bool again : {true, false}) {
    FakeCoordinator coordinator;
    const pid_t pid =
        Start({"--coordinator", coordinator.address(), "--grace-period", again ? "60" : "1"});
    coordinator.AwaitHello();
    const auto told = steady_clock::now();
    kill(pid, SIGTERM);
    coordinator.Await([](const v1::WorkerMessage& m) { return m.has_leaving(); });
    if (again) {
      std::this_thread::sleep_for(1100ms);
      kill(pid, SIGTERM);
    }
    CHECK(ExitStatus(pid) == 0);
    const std::chrono::duration<double> took = steady_clock::now() - told;
    CHECK(took.count() < 20);
    if (!again) CHECK(took.count() >= 1);
  }
}

TEST_CASE("ends at SIGTERM while nobody answers") {
  const pid_t pid = Start({"--coordinator", "127.0.0.1:1"});
  AwaitSignalsBlocked(pid);
  kill(pid, SIGTERM);
  CHECK(ExitStatus(pid) == 0);
}

TEST_CASE("ends at SIGTERM whatever it does as it starts") {
  for (int ms = 0; ms < 200; ms += 10) {
    INFO(ms << " ms after it waits for signals");
    const pid_t pid = Start({"--coordinator", "127.0.0.1:1", "--memory", "1GiB"});
    AwaitSignalsBlocked(pid);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    kill(pid, SIGTERM);
    CHECK(ExitStatus(pid) == 0);
  }
}

TEST_CASE("a refusal is status 1, a wrong flag another") {
  FakeCoordinator coordinator;
  coordinator.Refuse({grpc::StatusCode::FAILED_PRECONDITION, "no"});
  CHECK(ExitStatus(Start({"--coordinator", coordinator.address()})) == 1);
  CHECK(ExitStatus(Start({})) > 1);
  CHECK(ExitStatus(Start({"--coordinator", "127.0.0.1:1", "--device", "abacus"})) > 1);
  CHECK(ExitStatus(Start({"--coordinator", "127.0.0.1:1", "--transport", "carrier"})) > 1);
  CHECK(ExitStatus(Start({"--coordinator", "127.0.0.1:1", "--grace-period", "-1"})) > 1);
  // Whose memory is the host's has nothing that a neighbour could write into by peer.
  CHECK(ExitStatus(Start({"--coordinator", "127.0.0.1:1", "--transport", "peer"})) == 1);
  CHECK(ExitStatus(Start({"--coordinator", "127.0.0.1:1", "--transport", "nccl"})) == 1);
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
  EndInOrder(&coordinator, pid);
}

// Stage `stage` of two of a model of six blocks.
v1::CoordinatorMessage FormStage(int32_t stage) {
  v1::CoordinatorMessage message;
  v1::FormGroup& order = *message.mutable_form_group();
  order.set_epoch(1);
  order.set_model_path(MakeRandomModel(std::filesystem::temp_directory_path() / "process_model"));
  order.set_stage(stage);
  order.set_stages(2);
  order.set_first_block(stage == 0 ? 0 : 3);
  order.set_end_block(stage == 0 ? 3 : 6);
  order.set_microbatches_in_flight(2);
  order.set_capacity_tokens(128);
  order.set_longest_sequence(100);
  return message;
}

TEST_CASE("two processes train as two stages; of the one that is killed the other tells") {
  FakeCoordinator coordinators[2];  // one's stream is one worker's
  pid_t pids[2];
  v1::CoordinatorMessage connect;
  connect.mutable_connect()->set_epoch(1);
  for (int32_t stage = 0; stage < 2; ++stage) {
    pids[stage] = Start({"--coordinator", coordinators[stage].address(), "--threads", "1"});
    CHECK_FALSE(coordinators[stage].AwaitHello().host().empty());
    coordinators[stage].Send(FormStage(stage));
    const v1::Report formed = coordinators[stage].AwaitReport(v1::Report::kGroupFormed);
    connect.mutable_connect()->add_endpoints(formed.group_formed().endpoint());
    CHECK_THAT(formed.group_formed().endpoint(), Catch::StartsWith("127.0.0.1:"));
  }
  const auto begun = std::chrono::steady_clock::now();
  for (FakeCoordinator& coordinator : coordinators) coordinator.Send(connect);
  for (FakeCoordinator& coordinator : coordinators) {
    const double seconds =
        coordinator.AwaitReport(v1::Report::kConnected).connected().connect_seconds();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun;
    CHECK(seconds > 0);
    CHECK(seconds < passed.count());
  }
  const TestJob job = MakeJob("a", 4, {"q_proj"}, RandomRows(2, 20, 90, 1), 1);
  std::vector<v1::Window> windows = WindowsOfStages(OneStep(job).window(), 2, 2);
  for (int32_t stage = 0; stage < 2; ++stage) {
    v1::CoordinatorMessage message;
    *message.mutable_window() = windows[static_cast<size_t>(stage)];
    coordinators[stage].Send(message);
  }
  CHECK(coordinators[1].AwaitReport(v1::Report::kStepDone).step_done().loss() > 0);
  coordinators[0].AwaitReport(v1::Report::kSaved);
  coordinators[1].AwaitReport(v1::Report::kSaved);
  CHECK(coordinators[1].header.stage() == 1);
  CHECK(coordinators[1].header.stages() == 2);

  // The next window reaches the last stage alone, which waits for the first one.
  v1::CoordinatorMessage next;
  next.mutable_window()->set_epoch(1);
  next.mutable_window()->set_number(2);
  *next.mutable_window()->add_microbatches() = windows[1].microbatches(0);
  next.mutable_window()->mutable_microbatches(0)->set_number(2);
  next.mutable_window()->mutable_microbatches(0)->mutable_segments(0)->set_step(2);
  *next.mutable_window()->add_batches() = windows[1].batches(0);
  next.mutable_window()->mutable_batches(0)->set_step(2);
  *next.mutable_window()->add_operations() = Op(v1::Operation::RECV, int64_t{2});
  coordinators[1].Send(next);
  kill(pids[0], SIGKILL);
  CHECK(ExitStatus(pids[0]) == 128 + SIGKILL);
  const v1::GroupFailed failed =
      coordinators[1].AwaitReport(v1::Report::kGroupFailed).group_failed();
  CHECK(failed.reason() == "STAGE_LOST");
  CHECK_THAT(failed.message(), Catch::Contains("stage 0"));
  EndInOrder(&coordinators[1], pids[1]);
}

TEST_CASE("of a stage that is killed while another joins it, that one tells, or is let go") {
  for (const size_t victim : {0, 1}) {
    INFO("stage " << victim);
    const size_t other = 1 - victim;
    FakeCoordinator coordinators[2];
    pid_t pids[2];
    v1::CoordinatorMessage connect;
    connect.mutable_connect()->set_epoch(1);
    for (int32_t stage = 0; stage < 2; ++stage) {
      pids[stage] = Start({"--coordinator", coordinators[stage].address(), "--threads", "1"});
      coordinators[stage].AwaitHello();
      coordinators[stage].Send(FormStage(stage));
      const v1::Report formed = coordinators[stage].AwaitReport(v1::Report::kGroupFormed);
      connect.mutable_connect()->add_endpoints(formed.group_formed().endpoint());
    }
    // The victim hears of it too late: the other one is at it alone.
    coordinators[other].Send(connect);
    std::this_thread::sleep_for(200ms);
    const auto begun = std::chrono::steady_clock::now();
    kill(pids[victim], SIGKILL);
    CHECK(ExitStatus(pids[victim]) == 128 + SIGKILL);
    if (victim == 0) {  // stage 1 has dialled it
      const v1::GroupFailed failed =
          coordinators[1].AwaitReport(v1::Report::kGroupFailed).group_failed();
      CHECK(failed.reason() == "STAGE_LOST");
      CHECK_THAT(failed.message(), Catch::Contains("stage 0"));
    }
    // Its coordinator has seen the stream end. What waits for a stage that never dials is free.
    v1::CoordinatorMessage dissolve;
    dissolve.mutable_dissolve_group()->set_epoch(1);
    coordinators[other].Send(dissolve);
    v1::CoordinatorMessage again = FormStage(static_cast<int32_t>(other));
    again.mutable_form_group()->set_epoch(2);
    coordinators[other].Send(again);
    CHECK(coordinators[other].AwaitReport(v1::Report::kGroupFormed).epoch() == 2);
    CHECK(std::chrono::steady_clock::now() - begun < 5s);
    EndInOrder(&coordinators[other], pids[other]);
  }
}

TEST_CASE("an address of another machine is none to listen at for stages") {
  FakeCoordinator coordinator;
  CHECK(ExitStatus(
            Start({"--coordinator", coordinator.address(), "--stage-address", "192.0.2.1"})) == 1);
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
