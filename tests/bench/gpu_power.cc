#include "tests/bench/gpu_power.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>

#include "kernels/cuda/check.h"

namespace lorad::bench {
namespace {

constexpr std::chrono::milliseconds kInterval{20};
// Of NVML's interface (nvml.h).
constexpr int kSuccess = 0;
constexpr int kClockSm = 1;

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

PowerMeter::PowerMeter() {
  const std::string problem = Open();
  if (!problem.empty()) {
    std::printf("power and clock are not known: %s\n", problem.c_str());
    return;
  }
  sampler_ = std::jthread([this](const std::stop_token& stop) { Sample(stop); });
}

PowerMeter::~PowerMeter() {
  if (sampler_.joinable()) {
    sampler_.request_stop();
    sampler_.join();
  }
  if (library_ != nullptr) dlclose(library_);
}

std::string PowerMeter::Open() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return std::string("libnvidia-ml.so.1 does not load: ") + dlerror();
  int (*init)() = nullptr;
  int (*by_bus)(const char* bus, void** device) = nullptr;
  if (!Find(library_, "nvmlInit_v2", init) ||
      !Find(library_, "nvmlDeviceGetHandleByPciBusId_v2", by_bus) ||
      !Find(library_, "nvmlDeviceGetPowerUsage", power_) ||
      !Find(library_, "nvmlDeviceGetClockInfo", clock_)) {
    return "libnvidia-ml.so.1 lacks a function";
  }
  int device = 0;
  char bus[32] = {};
  LORAD_CUDA_CHECK(cudaGetDevice(&device));
  LORAD_CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof(bus), device));
  if (init() != kSuccess || by_bus(bus, &device_) != kSuccess) {
    return std::string("NVML does not know the device ") + bus;
  }
  return "";
}

void PowerMeter::Sample(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    unsigned int milliwatts = 0;
    unsigned int mhz = 0;
    if (power_(device_, &milliwatts) == kSuccess && clock_(device_, kClockSm, &mhz) == kSuccess) {
      const std::lock_guard lock(mutex_);
      sums_.watts += milliwatts * 1e-3;
      sums_.sm_mhz += mhz;
      ++sums_.samples;
    }
    std::this_thread::sleep_for(kInterval);
  }
}

void PowerMeter::Restart() {
  const std::lock_guard lock(mutex_);
  sums_ = {};
}

PowerReading PowerMeter::Read() const {
  const std::lock_guard lock(mutex_);
  if (sums_.samples == 0) return {};
  return {sums_.watts / sums_.samples, sums_.sm_mhz / sums_.samples, sums_.samples};
}

}  // namespace lorad::bench
