#include "kernels/cuda/device/device.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/device/check.h"

namespace lorad::kernels {
namespace {

using cuda::RemedyOf;

constexpr int kCapabilityMin = 80;

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// NVML belongs to the driver and not to the toolkit: it is looked up when the program runs, and
// what it would say is left unknown where it is missing. The few declarations that are used, by
// its documentation.
class Management {
 public:
  Management() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    using Init = int (*)();
    const auto init = Find<Init>("nvmlInit_v2");
    ready_ = init != nullptr && init() == 0;
  }
  ~Management() {
    using Shutdown = int (*)();
    if (const auto shutdown = Find<Shutdown>("nvmlShutdown"); ready_ && shutdown != nullptr) {
      shutdown();
    }
    if (library_ != nullptr) dlclose(library_);
  }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  void Fill(DeviceFacts* facts) {
    if (!ready_) return;
    using GetDriver = int (*)(char*, unsigned int);
    char driver[96] = "";
    const auto get_driver = Find<GetDriver>("nvmlSystemGetDriverVersion");
    if (get_driver != nullptr && get_driver(driver, sizeof(driver)) == 0) facts->driver = driver;
    using GetHandle = int (*)(const char*, void**);
    void* device = nullptr;
    const auto get_handle = Find<GetHandle>("nvmlDeviceGetHandleByPciBusId_v2");
    if (get_handle == nullptr || get_handle(facts->bus_id.c_str(), &device) != 0) return;
    FillUse(device, facts);
    using GetErrors = int (*)(void*, int, int, unsigned long long*);
    unsigned long long errors = 0;
    const auto get_errors = Find<GetErrors>("nvmlDeviceGetTotalEccErrors");
    constexpr int kUncorrected = 1;
    constexpr int kVolatile = 0;
    if (get_errors != nullptr && get_errors(device, kUncorrected, kVolatile, &errors) == 0) {
      facts->ecc_uncorrected = static_cast<int64_t>(errors);
    }
  }

 private:
  template <typename Function>
  Function Find(const char* name) const {
    if (library_ == nullptr) return nullptr;
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  void FillUse(void* device, DeviceFacts* facts) {
    struct Memory {
      unsigned long long total, free, used;
    };
    using GetMemory = int (*)(void*, Memory*);
    Memory memory = {};
    const auto get_memory = Find<GetMemory>("nvmlDeviceGetMemoryInfo");
    if (get_memory != nullptr && get_memory(device, &memory) == 0) {
      facts->free_bytes = static_cast<int64_t>(memory.free);
    }
    struct Process {
      unsigned int pid;
      unsigned long long memory;
      unsigned int instance, compute_instance;
    };
    constexpr unsigned int kProcessesMax = 128;
    Process processes[kProcessesMax];
    unsigned int count = kProcessesMax;
    using GetProcesses = int (*)(void*, unsigned int*, Process*);
    const auto get_processes = Find<GetProcesses>("nvmlDeviceGetComputeRunningProcesses_v3");
    if (get_processes != nullptr && get_processes(device, &count, processes) == 0) {
      const auto own = static_cast<unsigned int>(getpid());
      facts->other_processes =
          static_cast<int>(std::count_if(processes, processes + count, [&](const Process& process) {
            return process.pid != own;
          }));
    }
  }

  void* const library_;
  bool ready_ = false;
};

absl::Status StatusOf(cudaError_t error, int index) {
  const std::string what =
      absl::StrCat("GPU ", index, " cannot be used: ", cudaGetErrorString(error), " (",
                   cudaGetErrorName(error), ")");
  const std::string text =
      *RemedyOf(error) == '\0' ? what : absl::StrCat(what, "; ", RemedyOf(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorDevicesUnavailable:
      return absl::UnavailableError(text);
    default:
      return absl::FailedPreconditionError(text);
  }
}

// That there is a driver new enough and a GPU of this index.
absl::Status CheckIndex(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    if (driver == 0) {
      return absl::NotFoundError(
          "there is no NVIDIA driver on this machine; install one (nvidia-smi must list the GPU)");
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver supports CUDA ", Version(driver), ", this lorad was built for CUDA ",
        Version(CUDART_VERSION), "; install a newer driver"));
  }
  if (error != cudaSuccess && error != cudaErrorNoDevice) return StatusOf(error, index);
  if (index >= 0 && index < count) return absl::OkStatus();
  return absl::NotFoundError(count == 0
                                 ? "this machine shows no GPU to this process; look at nvidia-smi"
                                 : absl::StrCat("there is no GPU ", index, ": this machine has ",
                                                count, ", counted from 0"));
}

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return error == cudaSuccess ? count : 0;
}

absl::StatusOr<DeviceFacts> ProbeCudaDevice(int index) {
  if (const absl::Status status = CheckIndex(index); !status.ok()) return status;
  cudaDeviceProp properties = {};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return StatusOf(error, index);
  }
  DeviceFacts facts = {.index = index,
                       .name = properties.name,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                       .multiprocessors = properties.multiProcessorCount,
                       .capability = 10 * properties.major + properties.minor,
                       .runtime_version = CUDART_VERSION,
                       .ecc = properties.ECCEnabled != 0};
  if (facts.capability < kCapabilityMin) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", index, " (", facts.name, ") has compute capability ", facts.capability / 10, ".",
        facts.capability % 10, "; lorad needs 8.0 (A100) or newer"));
  }
  facts.bus_id = absl::StrFormat("%08X:%02X:%02X.0", properties.pciDomainID, properties.pciBusID,
                                 properties.pciDeviceID);
  int driver = 0;
  LORAD_CUDA_CHECK(cudaDriverGetVersion(&driver));
  facts.driver = absl::StrCat("for CUDA ", Version(driver));
  Management().Fill(&facts);
  cudaError_t error = cudaSetDevice(index);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return StatusOf(error, index);
  }
  if (facts.free_bytes == 0) facts.free_bytes = static_cast<int64_t>(free_bytes);
  return facts;
}

std::string Describe(const DeviceFacts& facts) {
  const auto gibibytes = [](int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  std::string text =
      absl::StrFormat("GPU %d: %s, %.1f GiB (%.1f free), driver %s, CUDA %s, ECC %s", facts.index,
                      facts.name, gibibytes(facts.memory_bytes), gibibytes(facts.free_bytes),
                      facts.driver, Version(facts.runtime_version), facts.ecc ? "on" : "off");
  if (facts.ecc_uncorrected > 0) {
    absl::StrAppend(&text, " (", facts.ecc_uncorrected, " uncorrected errors)");
  }
  if (facts.other_processes > 0) {
    absl::StrAppend(&text, ", in use by ", facts.other_processes, " other processes");
  }
  return text;
}

}  // namespace lorad::kernels
