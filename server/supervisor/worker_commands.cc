#include "server/supervisor/worker_commands.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/errors/errors.h"
#include "worker/host/limits.h"

namespace lorad::server {
namespace {

constexpr int kCpuWorkersMax = 64;
constexpr int kGpusMax = 64;
constexpr char kCudaPrefix[] = "cuda:";

// Memory that can be had without swapping; 0 where the system does not say.
int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// Indices of a list "0,2": at least one, none twice.
bool ParseIndices(const std::string& text, std::vector<int>* indices) {
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    int index = 0;
    if (!absl::SimpleAtoi(word, &index) || index < 0 || index >= kGpusMax) return false;
    for (const int other : *indices) {
      if (other == index) return false;
    }
    indices->push_back(index);
  }
  return true;
}

// The output of `binary --list-devices`: a line a device, its name first.
absl::StatusOr<std::vector<std::string>> ListDevices(const std::string& binary) {
  const std::string quoted =
      absl::StrCat("'", absl::StrReplaceAll(binary, {{"'", "'\\''"}}), "' --list-devices");
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(quoted.c_str(), "re"), pclose);
  std::string output;
  std::array<char, 4096> piece;
  while (pipe != nullptr && std::fgets(piece.data(), piece.size(), pipe.get()) != nullptr) {
    output += piece.data();
  }
  const int status = pipe == nullptr ? -1 : pclose(pipe.release());
  if (status != 0) {
    constexpr int kNotLoaded = 127;  // of the loader, which has named the library on stderr
    const int exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : status;
    return Error(
        absl::StatusCode::kFailedPrecondition, "WORKER_BINARY_BROKEN",
        absl::StrCat("'", binary, " --list-devices' ended with status ", exit_status,
                     exit_status == kNotLoaded
                         ? ": a library that it needs is not here (said above); one that was built "
                           "with CUDA needs CUDA 13 and cuDNN 9, one that was built with "
                           "--config=no-cuda does not"
                         : "",
                     "; --worker-binary names another"));
  }
  std::vector<std::string> devices;
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    devices.emplace_back(line.substr(0, line.find(' ')));
  }
  return devices;
}

// The GPUs to use; empty for a choice of the CPU. A binary that cannot run is found here.
absl::StatusOr<std::vector<std::string>> Gpus(const WorkerChoice& choice,
                                              const std::string& binary) {
  std::vector<std::string> visible;
  absl::StatusOr<std::vector<std::string>> devices = ListDevices(binary);
  if (!devices.ok()) return devices.status();
  if (choice.kind == WorkerChoice::Kind::kCpu) return visible;
  for (std::string& device : *devices) {
    if (absl::StartsWith(device, kCudaPrefix)) visible.push_back(std::move(device));
  }
  const std::string found =
      visible.empty() ? "this machine has none that lorad-worker can use (see 'lorad-worker "
                        "--list-devices')"
                      : absl::StrCat("there are ", absl::StrJoin(visible, ", "));
  if (choice.kind == WorkerChoice::Kind::kCuda && visible.empty()) {
    return Error(absl::StatusCode::kNotFound, "NO_SUCH_DEVICE",
                 absl::StrCat("--workers asks for GPUs, and ", found));
  }
  if (choice.gpus.empty()) return visible;
  std::vector<std::string> wanted;
  for (const int index : choice.gpus) {
    wanted.push_back(absl::StrCat(kCudaPrefix, index));
    if (std::find(visible.begin(), visible.end(), wanted.back()) != visible.end()) continue;
    return Error(absl::StatusCode::kNotFound, "NO_SUCH_DEVICE",
                 absl::StrCat("--workers asks for ", wanted.back(), ", and ", found));
  }
  return wanted;
}

WorkerCommand Command(const std::string& binary, const std::string& device, const std::string& name,
                      const WorkerOptions& options) {
  WorkerCommand command = {.name = name,
                           .arguments = {binary, "--supervised", absl::StrCat("--device=", device),
                                         absl::StrCat("--name=", name)}};
  if (!options.transport.empty()) {
    command.arguments.push_back(absl::StrCat("--transport=", options.transport));
  }
  if (!options.stage_address.empty()) {
    command.arguments.push_back(absl::StrCat("--stage-address=", options.stage_address));
  }
  return command;
}

}  // namespace

absl::StatusOr<WorkerChoice> ParseWorkers(const std::string& text) {
  using Kind = WorkerChoice::Kind;
  if (text == "auto") return WorkerChoice{};
  if (text == "none") return WorkerChoice{.kind = Kind::kNone};
  if (text == "cuda") return WorkerChoice{.kind = Kind::kCuda};
  WorkerChoice choice{.kind = Kind::kCpu};
  if (absl::StartsWith(text, "cpu:") && absl::SimpleAtoi(text.substr(4), &choice.count) &&
      choice.count >= 1 && choice.count <= kCpuWorkersMax) {
    return choice;
  }
  choice = {.kind = Kind::kCuda};
  if (absl::StartsWith(text, kCudaPrefix) && ParseIndices(text.substr(5), &choice.gpus)) {
    return choice;
  }
  return Error(absl::StatusCode::kInvalidArgument, "INVALID_WORKERS",
               absl::StrCat("--workers must be auto, none, cpu:N with N from 1 to ", kCpuWorkersMax,
                            ", cuda, or cuda:I,J,.. with different I, J from 0 to ", kGpusMax - 1,
                            ", got '", text, "'"));
}

absl::StatusOr<std::vector<WorkerCommand>> WorkerCommands(const WorkerOptions& options) {
  std::vector<WorkerCommand> commands;
  if (options.choice.kind == WorkerChoice::Kind::kNone) return commands;
  if (options.memory_bytes > 0 && options.memory_bytes < worker::kMemoryBytesMin) {
    return Error(absl::StatusCode::kInvalidArgument, "WORKER_MEMORY_TOO_SMALL",
                 absl::StrCat("--worker-memory must be at least 1MiB, for no model and adapter do "
                              "with less, got ",
                              options.memory_bytes, " bytes"));
  }
  const absl::StatusOr<std::string> binary = FindWorkerBinary(options.binary, options.directories);
  if (!binary.ok()) return binary.status();
  const absl::StatusOr<std::vector<std::string>> gpus = Gpus(options.choice, *binary);
  if (!gpus.ok()) return gpus.status();
  for (const std::string& device : *gpus) {
    WorkerCommand command =
        Command(*binary, device, absl::StrReplaceAll(device, {{":", "-"}}), options);
    if (!options.precision.empty()) {
      command.arguments.push_back(absl::StrCat("--precision=", options.precision));
    }
    if (options.memory_bytes > 0) {
      command.arguments.push_back(absl::StrCat("--memory=", options.memory_bytes));
    }
    commands.push_back(std::move(command));
  }
  if (!commands.empty()) return commands;
  const int count = options.choice.count;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads =
      options.threads > 0 ? options.threads : std::clamp(cores / count, 1, worker::kThreadsMax);
  const int64_t memory =
      options.memory_bytes > 0 ? options.memory_bytes : AvailableBytes() / 5 * 4 / count;
  for (int i = 0; i < count; ++i) {
    WorkerCommand command = Command(*binary, "cpu", absl::StrCat("cpu-", i), options);
    command.arguments.push_back(absl::StrCat("--threads=", threads));
    if (memory > 0) command.arguments.push_back(absl::StrCat("--memory=", memory));
    commands.push_back(std::move(command));
  }
  return commands;
}

}  // namespace lorad::server
