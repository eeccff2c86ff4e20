#include "worker/device.h"

#include <algorithm>
#include <string_view>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/process.h"

namespace lorad::worker {
namespace {

constexpr int kThreadsMax = 256;

int CpuThreads(int wanted) {
  const int threads = wanted > 0 ? wanted : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(threads, 1, kThreadsMax);
}

std::string CpuDescription(int threads) { return absl::StrCat("CPU, ", threads, " threads"); }

OpenDevice OpenCpu(int wanted_threads) {
  const int threads = CpuThreads(wanted_threads);
  return {.backend = kernels::MakeCpuBackend(threads),
          .description = CpuDescription(threads),
          .memory_bytes = MachineMemoryBytes() / 4 * 3,
          .threads = threads};
}

}  // namespace

int CudaIndex(const std::string& name) {
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  const bool parsed = name.starts_with(kPrefix) &&
                      absl::SimpleAtoi(name.substr(kPrefix.size()), &index) && index >= 0;
  return parsed ? index : -1;
}

absl::StatusOr<OpenDevice> Open(const DeviceOptions& options) {
  if (options.name == "cpu") return OpenCpu(options.threads);
  return absl::InvalidArgumentError(
      absl::StrCat("device '", options.name,
                   "' is not one of this machine's; 'lorad-worker --list-devices' ", "lists them"));
}

std::vector<std::string> ListDevices() { return {"cpu  " + CpuDescription(CpuThreads(0))}; }

}  // namespace lorad::worker
