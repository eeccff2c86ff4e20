// The device that a worker trains on, by its name on the command line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lorad::worker {

// I of "cuda:I"; -1 for any other name.
int CudaIndex(const std::string& name);

struct DeviceOptions {
  std::string name = "cpu";        // "cpu", "cuda:I"
  int threads = 0;                 // cpu: 0 = all cores
  std::string precision = "bf16";  // cuda: "bf16", "fp32"
};

struct OpenDevice {
  std::unique_ptr<kernels::Backend> backend;
  std::string description;   // "CPU, 2 threads", "NVIDIA H100 80GB HBM3, bf16"
  int64_t memory_bytes = 0;  // what it offers by default: on the CPU three quarters of the
                             // machine's memory, on a GPU what is free
  int threads = 1;
  int multiprocessors = 0;
};

// INVALID_ARGUMENT for another name; errors of the device say what is wrong and the remedy.
absl::StatusOr<OpenDevice> Open(const DeviceOptions& options);

// Every device of this machine that Open would take, a line each: its name, two spaces, what it is.
std::vector<std::string> ListDevices();

}  // namespace lorad::worker
