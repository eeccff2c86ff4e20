// Power and clock of the current CUDA device, by NVML, which comes with the driver.
#ifndef LORAD_TESTS_BENCH_GPU_POWER_H_
#define LORAD_TESTS_BENCH_GPU_POWER_H_

#include <mutex>
#include <string>
#include <thread>

namespace lorad::bench {

struct PowerReading {
  double watts = 0;
  double sm_mhz = 0;
  int samples = 0;
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
  // "", or why not.
  std::string Open();
  void Sample(const std::stop_token& stop);

  void* library_ = nullptr;
  void* device_ = nullptr;
  int (*power_)(void* device, unsigned int* milliwatts) = nullptr;
  int (*clock_)(void* device, int type, unsigned int* mhz) = nullptr;
  mutable std::mutex mutex_;
  PowerReading sums_;  // GUARDED_BY(mutex_)
  std::jthread sampler_;
};

}  // namespace lorad::bench

#endif  // LORAD_TESTS_BENCH_GPU_POWER_H_
