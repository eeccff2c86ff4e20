// Which workers `lorad serve` starts, with programs in a lorad-worker's place that name devices.
#include "server/supervisor/worker_commands.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "tests/storage/temp_directory.h"

namespace lorad::server {
namespace {

using Kind = WorkerChoice::Kind;

// A program that answers --list-devices with `lines` and `status`.
std::string FakeWorker(const storage::TempDirectory& directory, const std::string& lines,
                       int status = 0) {
  const std::string path = directory.Write(
      "it's a worker", absl::StrCat("#!/bin/sh\n[ \"$1\" = --list-devices ] || exit 9\nprintf '",
                                    lines, "'\nexit ", status, "\n"));
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

constexpr char kTwoGpus[] = "cuda:0  NVIDIA H100\\ncuda:1  NVIDIA H100\\ncpu  CPU, 2 threads\\n";

std::vector<std::string> Names(const std::vector<WorkerCommand>& commands) {
  std::vector<std::string> names;
  for (const WorkerCommand& command : commands) names.push_back(command.name);
  return names;
}

bool Has(const WorkerCommand& command, const std::string& argument) {
  return std::find(command.arguments.begin(), command.arguments.end(), argument) !=
         command.arguments.end();
}

TEST_CASE("what the command line says of workers") {
  CHECK(ParseWorkers("auto").value() == WorkerChoice{});
  CHECK(ParseWorkers("none").value() == WorkerChoice{.kind = Kind::kNone});
  CHECK(ParseWorkers("cpu:3").value() == WorkerChoice{.kind = Kind::kCpu, .count = 3});
  CHECK(ParseWorkers("cuda").value() == WorkerChoice{.kind = Kind::kCuda});
  CHECK(ParseWorkers("cuda:2,0").value() == WorkerChoice{.kind = Kind::kCuda, .gpus = {2, 0}});
  for (const char* wrong : {"", "cpu", "cpu:", "cpu:0", "cpu:65", "gpu:1", "3", "cuda:", "cuda:x",
                            "cuda:0,0", "cuda:-1", "cuda:64", "cuda:0,"}) {
    INFO(wrong);
    CHECK(Reason(ParseWorkers(wrong).status()) == "INVALID_WORKERS");
  }
}

TEST_CASE("auto takes every GPU that the worker can use, else the CPU") {
  storage::TempDirectory directory;
  auto commands = WorkerCommands({.memory_bytes = 2000000,
                                  .precision = "fp32",
                                  .transport = "mpi",
                                  .stage_address = "10.0.0.7",
                                  .binary = FakeWorker(directory, kTwoGpus)});
  REQUIRE(commands.ok());
  REQUIRE(Names(*commands) == std::vector<std::string>{"cuda-0", "cuda-1"});
  CHECK(Has((*commands)[1], "--supervised"));
  CHECK(Has((*commands)[1], "--device=cuda:1"));
  CHECK(Has((*commands)[1], "--name=cuda-1"));
  CHECK(Has((*commands)[1], "--memory=2000000"));
  CHECK(Has((*commands)[1], "--precision=fp32"));
  CHECK(Has((*commands)[1], "--transport=mpi"));
  CHECK(Has((*commands)[1], "--stage-address=10.0.0.7"));

  commands = WorkerCommands({.threads = 2, .binary = FakeWorker(directory, "cpu  CPU\\n")});
  REQUIRE(commands.ok());
  REQUIRE(Names(*commands) == std::vector<std::string>{"cpu-0"});
  CHECK(Has((*commands)[0], "--device=cpu"));
  CHECK(Has((*commands)[0], "--threads=2"));
  CHECK(std::ranges::none_of((*commands)[0].arguments, [](const std::string& argument) {
    return argument.starts_with("--transport");  // the worker's own default
  }));
}

TEST_CASE("the workers that were asked for, or why not") {
  storage::TempDirectory directory;
  const std::string binary = FakeWorker(directory, kTwoGpus);
  const auto names = [&](const std::string& workers) {
    return Names(
        WorkerCommands({.choice = ParseWorkers(workers).value(), .binary = binary}).value());
  };
  CHECK(names("none").empty());
  CHECK(names("cpu:2") == std::vector<std::string>{"cpu-0", "cpu-1"});
  CHECK(names("cuda:1") == std::vector<std::string>{"cuda-1"});

  const auto missing =
      WorkerCommands({.choice = ParseWorkers("cuda:1,5").value(), .binary = binary});
  CHECK(Reason(missing.status()) == "NO_SUCH_DEVICE");
  CHECK(std::string(missing.status().message()) ==
        "--workers asks for cuda:5, and there are cuda:0, cuda:1");
  const auto no_gpu = WorkerCommands(
      {.choice = ParseWorkers("cuda").value(), .binary = FakeWorker(directory, "cpu  CPU\\n")});
  CHECK(Reason(no_gpu.status()) == "NO_SUCH_DEVICE");
  for (const char* workers : {"auto", "cuda", "cpu:1"}) {
    INFO(workers);
    const auto broken = WorkerCommands(
        {.choice = ParseWorkers(workers).value(), .binary = FakeWorker(directory, "", 3)});
    CHECK(Reason(broken.status()) == "WORKER_BINARY_BROKEN");
    CHECK(std::string(broken.status().message()).find("CUDA") == std::string::npos);
  }
  const auto not_loaded = WorkerCommands({.binary = FakeWorker(directory, "", 127)});
  CHECK(std::string(not_loaded.status().message()).find("needs CUDA 13 and cuDNN 9") !=
        std::string::npos);
  CHECK(Reason(WorkerCommands({.binary = directory / "nothing"}).status()) ==
        "WORKER_BINARY_MISSING");
}

}  // namespace
}  // namespace lorad::server
