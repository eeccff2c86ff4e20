// What goes wrong around stages over MPI: every wait ends within its bound, and nothing is left.
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/worker/mpi/site.h"
#include "worker/mpi/folder.h"
#include "worker/mpi/helper.h"

namespace lorad::worker {
namespace {

using std::chrono::milliseconds;
using Transports = std::vector<std::unique_ptr<Transport>>;

constexpr int64_t kSilenceMs = 1'500;
constexpr int64_t kTimeoutMs = 4'000;
// Until a helper gives up a server that stands still.
constexpr int64_t kBeginsAtMostMs = 8'000;
// What a helper has to tell the others that its stage ends, and then Open MPI's daemon to notice that
// the helper has ended: a Join that fails waits for both.
constexpr int64_t kFarewellMs = 2'000;
constexpr int64_t kDaemonMs = 5'000;
// Until helpers that find each other have connected.
constexpr int64_t kConnectMs = 3'000;
// Beyond a bound: other work on the machine.
constexpr int64_t kSlackMs = 2'000;

int64_t MsOf(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun).count();
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Processes whose environment has the site's folder (helpers, their daemons), by stage.
struct Process {
  pid_t pid = 0;
  std::string arguments;  // NULs between
};
std::vector<Process> ProcessesOf(const MpiSite& site, const std::string& program) {
  std::vector<Process> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    const std::string arguments = TextOf(entry.path() / "cmdline");
    const std::string environment = TextOf(entry.path() / "environ");
    if (arguments.find(program) == std::string::npos) continue;
    if (environment.find("TMPDIR=" + site.folder() + "/lorad-mpi-") == std::string::npos) continue;
    found.push_back({pid, arguments});
  }
  return found;
}

pid_t HelperOf(const MpiSite& site, int stage) {
  const std::string part = std::string("lorad-mpi") + '\0' + std::to_string(stage) + '\0';
  for (const Process& process : ProcessesOf(site, "lorad-mpi")) {
    if (process.arguments.find(part) != std::string::npos) return process.pid;
  }
  FAIL("stage " << stage << " has no helper");
  return 0;
}

std::vector<std::string> FoldersOf(const MpiSite& site) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(site.folder())) {
    if (entry.path().filename() != "server") folders.push_back(entry.path().filename());
  }
  return folders;
}

// So many helpers are at work, and nothing else has a folder.
void CheckNothingIsLeftBut(const MpiSite& site, size_t helpers) {
  CHECK(FoldersOf(site).size() == helpers);
}

void CheckNothingIsLeft(const MpiSite& site) {
  const auto limit = std::chrono::steady_clock::now() + milliseconds(2'000);
  while (!ProcessesOf(site, "").empty() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (const Process& process : ProcessesOf(site, "")) {
    FAIL_CHECK("process " << process.pid << " is left: " << process.arguments);
  }
  CheckNothingIsLeftBut(site, 0);
}

// Waits of each kind on each stage that speaks with stage 1 of three, all at once, and what they
// gave: the first error of each stage.
std::vector<absl::Status> WaitOnAll(const Transports& stages) {
  std::vector<absl::Status> errors(stages.size());
  std::vector<std::thread> threads;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    threads.emplace_back(
        [&, stage] { errors[stage] = stages[stage]->WaitNote(stage == 0 ? 1 : 0).status(); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Something each way between all that speak, so that the helpers have had signs of life, too.
void HearOneAnother(const Transports& stages) {
  float value = 0;
  const auto tensor = kernels::HostMatrix(&value, 1, 1);
  const auto pass = [&](size_t from, size_t to, Lane lane) {
    REQUIRE(stages[to]->PostReceive(lane, tensor).ok());
    REQUIRE(stages[from]->Send(lane, {1, 1}, tensor).ok());
    REQUIRE(stages[from]->WaitSent(lane).ok());
    REQUIRE(stages[to]->WaitReceived(lane).ok());
  };
  for (size_t stage = 1; stage < stages.size(); ++stage) {
    REQUIRE(stages[stage]->SendNote(0, "here").ok());
    REQUIRE(stages[0]->WaitNote(static_cast<int>(stage)).ok());
    REQUIRE(stages[0]->SendNote(static_cast<int>(stage), "there").ok());
    REQUIRE(stages[stage]->WaitNote(0).ok());
    pass(stage - 1, stage, Lane::kActivations);
    pass(stage, stage - 1, Lane::kGradients);
  }
}

TEST_CASE("a helper that is killed is known at once by its worker") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  const Transports stages = AllOf(site->TryJoin(2));
  kill(HelperOf(*site, 1), SIGKILL);
  absl::Status error;
  CHECK(MsOf([&] { error = stages[1]->WaitNote(0).status(); }) < kSlackMs);
  CHECK(absl::IsUnavailable(error));
}

TEST_CASE("a helper that is killed is known by the other stages in time") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  for (const int victim : {0, 1, 2}) {
    INFO("stage " << victim << " of 3");
    const Transports stages = AllOf(site->TryJoin(3, {.silence_ms = kSilenceMs}));
    kill(HelperOf(*site, victim), SIGKILL);
    std::vector<absl::Status> errors;
    CHECK(MsOf([&] { errors = WaitOnAll(stages); }) < kSilenceMs + kSlackMs);
    for (const absl::Status& error : errors) CHECK(absl::IsUnavailable(error));
  }
  CheckNothingIsLeft(*site);
}

TEST_CASE("a helper that is killed in the middle of a tensor ends both ways of it") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  for (const int victim : {0, 1}) {
    INFO("stage " << victim << " of 2");
    const Transports stages = AllOf(site->TryJoin(2, {.silence_ms = kSilenceMs}));
    std::vector<float> values(50'000'000);
    const auto tensor = kernels::HostMatrix(values.data(), 50'000, 1'000);
    REQUIRE(stages[0]->Send(Lane::kActivations, {1, 50'000}, tensor).ok());
    std::this_thread::sleep_for(milliseconds(200));  // nobody has posted memory: it is stuck
    kill(HelperOf(*site, victim), SIGKILL);
    absl::Status sent, received;
    std::thread sender([&] { sent = stages[0]->WaitSent(Lane::kActivations); });
    const int64_t ms = MsOf([&] {
      received = stages[1]->PostReceive(Lane::kActivations, tensor);
      if (received.ok()) received = stages[1]->WaitReceived(Lane::kActivations).status();
      sender.join();
    });
    CHECK(ms < kSilenceMs + kSlackMs);
    CHECK(absl::IsUnavailable(sent));
    CHECK(absl::IsUnavailable(received));
  }
  CheckNothingIsLeft(*site);
}

TEST_CASE("a helper that stands still is killed with its transport") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  {
    const Transports stages =
        AllOf(site->TryJoin(3, {.silence_ms = kSilenceMs, .wait_ms = kTimeoutMs}));
    HearOneAnother(stages);
    kill(HelperOf(*site, 1), SIGSTOP);
    std::vector<absl::Status> errors;
    CHECK(MsOf([&] { errors = WaitOnAll(stages); }) < kTimeoutMs + kSlackMs);
    CHECK(absl::IsUnavailable(errors[0]));  // its helper misses the other one's beats
    CHECK(absl::IsUnavailable(errors[2]));
    CHECK_FALSE(errors[1].ok());
  }
  CheckNothingIsLeft(*site);
}

TEST_CASE("stages that have joined need no server; those that join are told of a new one") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  const Transports before = AllOf(site->TryJoin(2));
  const std::string killed = site->AwaitServer();
  kill(static_cast<pid_t>(site->server_pid()), SIGKILL);
  site->AwaitServer(killed);
  const Transports after = AllOf(site->TryJoin(2));
  for (const Transports* stages : {&before, &after}) {
    REQUIRE((*stages)[0]->SendNote(1, "here").ok());
    CHECK(*(*stages)[1]->WaitNote(0) == "here");
  }
}

TEST_CASE("a server that stands still is replaced, and then stages join") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  site->AwaitServer();
  const int64_t stopped = site->server_pid();
  kill(static_cast<pid_t>(stopped), SIGSTOP);
  Joined joined;
  CHECK(MsOf([&] { joined = site->TryJoin(2); }) < kBeginsAtMostMs + kDaemonMs + kSlackMs);
  for (const auto& stage : joined) {
    CHECK(absl::IsDeadlineExceeded(stage.status()));
    CHECK_THAT(std::string(stage.status().message()), Catch::Contains("ompi-server"));
  }
  const Transports after = AllOf(site->TryJoin(2));
  CHECK(site->server_pid() != stopped);
  REQUIRE(after[0]->SendNote(1, "again").ok());
  CHECK(*after[1]->WaitNote(0) == "again");
  CheckNothingIsLeftBut(*site, 2);
}

TEST_CASE("stages do not join without a server") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  MpiOptions options = site->options();
  options.connections.join_ms = 1'000;
  for (const bool starts : {false, true}) {
    options.find_server = [starts](int64_t, const std::string&) -> absl::StatusOr<std::string> {
      if (starts) return absl::UnavailableError("starts");
      return absl::FailedPreconditionError("there is none");
    };
    auto listener = MpiListener::Open(options);
    REQUIRE(listener.ok());
    absl::Status status;
    const auto join = [&] {
      const StageIdentity me{.epoch = 1, .stage = 0, .stages = 2, .numerics_id = "n"};
      status = (*listener)->Join(me, {(*listener)->endpoint(), "lorad-nobody"}).status();
    };
    CHECK(MsOf(join) < 1'000 + kSlackMs);
    CHECK(status.code() ==
          (starts ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition));
  }
}

TEST_CASE("a stage that is reached otherwise than over MPI is not joined") {
  MpiOptions options;
  options.find_server = [](int64_t, const std::string&) -> absl::StatusOr<std::string> {
    return "uri";
  };
  auto listener = MpiListener::Open(options);
  REQUIRE(listener.ok());
  const StageIdentity me{.epoch = 1, .stage = 0, .stages = 2, .numerics_id = "n"};
  const absl::Status status =
      (*listener)->Join(me, {(*listener)->endpoint(), "127.0.0.1:4711"}).status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("stage 1") && Catch::Contains("the same --transport"));
}

TEST_CASE("stages of another epoch or numerics do not join, and both sides know") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  const auto other_epoch = [](StageIdentity* me) { me->epoch += me->stage; };
  Joined joined;
  CHECK(MsOf([&] { joined = site->TryJoin(2, {}, other_epoch); }) <
        kConnectMs + kFarewellMs + kDaemonMs + kSlackMs);
  CHECK(absl::IsFailedPrecondition(joined[1].status()));
  CHECK_THAT(std::string(joined[1].status().message()), Catch::Contains("epoch 8"));
  CHECK(absl::IsUnavailable(joined[0].status()));
  CheckNothingIsLeft(*site);
}

TEST_CASE("a stage that never comes, and an interruption, end a Join") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  for (const bool interrupted : {false, true}) {
    MpiOptions options = site->options();
    options.connections.join_ms = interrupted ? 60'000 : 1'000;
    auto listener = MpiListener::Open(options);
    REQUIRE(listener.ok());
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(500));
      if (interrupted) (*listener)->Interrupt();
    });
    const StageIdentity me{.epoch = 1, .stage = 1, .stages = 2, .numerics_id = "n"};
    absl::Status status;
    const auto join = [&] {
      status = (*listener)->Join(me, {"lorad-nobody", (*listener)->endpoint()}).status();
    };
    CHECK(MsOf(join) < 1'000 + kFarewellMs + kDaemonMs + kSlackMs);
    CHECK(status.code() ==
          (interrupted ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded));
    other.join();
  }
  CheckNothingIsLeft(*site);
}

TEST_CASE("a Join that was interrupted before it began says so") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  site->AwaitServer();
  auto listener = site->Listen();
  REQUIRE(listener.ok());
  (*listener)->Interrupt();
  const StageIdentity me{.epoch = 1, .stage = 1, .stages = 2, .numerics_id = "n"};
  CHECK(
      absl::IsCancelled((*listener)->Join(me, {"lorad-nobody", (*listener)->endpoint()}).status()));
  CheckNothingIsLeft(*site);
}

TEST_CASE("a helper that is missing says where it should be and how to mend that") {
  const absl::Status broken = CheckHelper("/nowhere/lorad-mpi");
  CHECK(absl::IsFailedPrecondition(broken));
  CHECK_THAT(std::string(broken.message()),
             Catch::Contains("No such file") && Catch::Contains("--transport sockets"));
  const absl::Status missing = FindHelper({"/nowhere", "/elsewhere"}).status();
  CHECK(absl::IsFailedPrecondition(missing));
  CHECK_THAT(std::string(missing.message()),
             Catch::Contains("/nowhere/lorad-mpi") && Catch::Contains("/elsewhere/mpi/lorad-mpi"));
  if (MpiSite::Here() != nullptr)
    CHECK(*FindHelper({"/nowhere", "worker"}) == "worker/mpi/lorad-mpi");
}

TEST_CASE("the folder of a helper whose worker was killed goes with the next helper") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  const std::string left = site->folder() + "/lorad-mpi-helper-Killed";
  std::filesystem::create_directories(left + "/ompi.here.0/1");
  const auto held = HelperFolder::Make();
  REQUIRE(held.ok());
  CHECK_FALSE(std::filesystem::exists(left));
  const std::string path = held->path();
  {
    const auto other = HelperFolder::Make();
    REQUIRE(other.ok());
    CHECK(std::filesystem::exists(path));  // its maker lives
  }
  CheckNothingIsLeftBut(*site, 1);
}

TEST_CASE("a helper hears nothing of what launched its worker") {
  const std::vector<std::string> environment = {
      "PATH=/bin",          "OMPI_COMM_WORLD_RANK=1",
      "PMIX_RANK=1",        "PMI_SIZE=2",
      "SLURM_PROCID=0",     "TMPDIR=/scratch",
      "HOME=/root",         "OMPI_MCA_pmix_server_uri=old",
      "MY_SLURM_NOTE=kept", "PMIXER=kept"};
  CHECK(HelperEnvironment(environment, "uri") ==
        std::vector<std::string>{"PATH=/bin", "HOME=/root", "MY_SLURM_NOTE=kept", "PMIXER=kept",
                                 "OMPI_MCA_pmix_server_uri=uri"});
}

}  // namespace
}  // namespace lorad::worker
