#include "worker/host/device.h"

#include <algorithm>
#include <string_view>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "worker/host/limits.h"
#include "worker/host/process.h"

namespace lorad::worker {
namespace {

// The part of a GPU's free memory that context and libraries take beyond what is planned.
constexpr int64_t kLibraryBytes = int64_t{1} << 30;

int CpuThreads(int wanted) {
  const int threads = wanted > 0 ? wanted : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(threads, 1, kThreadsMax);
}

// Devices of one description are taken to be of one speed.
std::string CpuDescription(int threads) {
  const std::string name = ProcessorName();
  return absl::StrCat("CPU", name.empty() ? "" : absl::StrCat(" (", name, ")"), ", ", threads,
                      threads == 1 ? " thread" : " threads");
}

OpenDevice OpenCpu(int wanted_threads) {
  const int threads = CpuThreads(wanted_threads);
  return {.backend = kernels::MakeCpuBackend(threads),
          .description = CpuDescription(threads),
          .memory_bytes = MachineMemoryBytes() / 4 * 3,
          .threads = threads};
}

absl::StatusOr<OpenDevice> OpenCuda(int index, const DeviceOptions& options) {
  const absl::StatusOr<kernels::DeviceFacts> facts = kernels::ProbeCudaDevice(index);
  if (!facts.ok()) return facts.status();
  const bool bf16 = options.precision == "bf16";
  auto backend =
      kernels::MakeCudaBackend(index, bf16 ? kernels::DType::kBfloat16 : kernels::DType::kFloat32);
  if (!backend.ok()) return backend.status();
  return OpenDevice{.backend = *std::move(backend),
                    .description = absl::StrCat(kernels::Describe(*facts), ", ", options.precision),
                    .memory_bytes = std::max<int64_t>(facts->free_bytes - kLibraryBytes, 1),
                    .threads = 1,
                    .multiprocessors = facts->multiprocessors};
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
  if (const int index = CudaIndex(options.name); index >= 0) return OpenCuda(index, options);
  return absl::InvalidArgumentError(
      absl::StrCat("device '", options.name,
                   "' is not one of this machine's; 'lorad-worker --list-devices' ", "lists them"));
}

std::vector<std::string> ListDevices() {
  std::vector<std::string> lines;
  for (int index = 0; index < kernels::CudaDeviceCount(); ++index) {
    const absl::StatusOr<kernels::DeviceFacts> facts = kernels::ProbeCudaDevice(index);
    if (facts.ok()) lines.push_back(absl::StrCat("cuda:", index, "  ", kernels::Describe(*facts)));
  }
  lines.push_back("cpu  " + CpuDescription(CpuThreads(0)));
  return lines;
}

}  // namespace lorad::worker
