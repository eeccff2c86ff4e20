// Power and clock of the current CUDA device, by NVML, which comes with the driver.
#pragma once

#include <mutex>
#include <string>
#include <thread>

namespace lorad::bench {

struct PowerReading {
  double watts = 0;  // of the device's energy counter
  double sm_mhz = 0;
  int samples = 0;  // 0: nothing is known
};

// Samples on a thread of its own. Without NVML says so once, and readings have no samples.
class PowerMeter {
 public:
  PowerMeter();
  ~PowerMeter();
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;

  // Forgets what was sampled so far.
  void Restart();
  // Means since the last Restart.
  PowerReading Read() const;

 private:
  struct Change {
    double seconds = 0;
    unsigned long long millijoules = 0;
  };

  // "", or why not.
  std::string Open();
  void Sample(const std::stop_token& stop);

  void* library_ = nullptr;
  void* device_ = nullptr;
  int (*energy_)(void* device, unsigned long long* millijoules) = nullptr;
  int (*clock_)(void* device, int type, unsigned int* mhz) = nullptr;
  mutable std::mutex mutex_;
  // GUARDED_BY(mutex_), since the last Restart:
  double mhz_sum_ = 0;
  int samples_ = 0;
  // The counter moves some ten times a second: where it was first and last seen to have moved.
  Change first_, last_;
  int changes_ = 0;
  unsigned long long latest_millijoules_ = 0;
  std::jthread sampler_;
};

}  // namespace lorad::bench
