#include "tests/bench/gpu_power.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>

#include "kernels/cuda/device/check.h"

namespace lorad::bench {
namespace {

constexpr std::chrono::milliseconds kInterval{2};
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
      !Find(library_, "nvmlDeviceGetTotalEnergyConsumption", energy_) ||
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
    unsigned long long millijoules = 0;
    unsigned int mhz = 0;
    if (energy_(device_, &millijoules) == kSuccess && clock_(device_, kClockSm, &mhz) == kSuccess) {
      const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
      const std::lock_guard lock(mutex_);
      mhz_sum_ += mhz;
      ++samples_;
      if (millijoules != latest_millijoules_) {
        latest_millijoules_ = millijoules;
        last_ = {now.count(), millijoules};
        if (changes_++ == 0) first_ = last_;
      }
    }
    std::this_thread::sleep_for(kInterval);
  }
}

void PowerMeter::Restart() {
  const std::lock_guard lock(mutex_);
  mhz_sum_ = 0;
  samples_ = 0;
  changes_ = 0;
}

PowerReading PowerMeter::Read() const {
  const std::lock_guard lock(mutex_);
  if (changes_ < 2) return {};
  const double joules = 1e-3 * static_cast<double>(last_.millijoules - first_.millijoules);
  return {joules / (last_.seconds - first_.seconds), mhz_sum_ / samples_, samples_};
}

}  // namespace lorad::bench
