// The GPUs of this machine, and what a worker must know before it takes one. Also for programs
// built without CUDA (then there are none): nothing of CUDA is included here.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lorad::kernels {

struct DeviceFacts {
  int index = 0;
  std::string name = {};    // "NVIDIA H100 80GB HBM3"
  std::string bus_id = {};  // "0000:1B:00.0"
  std::string driver = {};  // "580.65.06", or the CUDA version it supports where that is not known
  int64_t memory_bytes = 0;
  // Free before this process takes any; the difference is the driver's and other processes'.
  int64_t free_bytes = 0;
  int other_processes = -1;  // that use the device now; -1: not known
  int multiprocessors = 0;
  int capability = 0;            // 90 for sm_90
  int runtime_version = 0;       // of CUDA: 13000 for 13.0
  bool ecc = false;              // error correction is on
  int64_t ecc_uncorrected = -1;  // since the driver was loaded; -1: not known
};

// GPUs that this process sees; 0 without a GPU, without a driver, or in a build without CUDA.
int CudaDeviceCount();

// Opens GPU `index` and reads its facts; asked before this process has allocated on it.
// Errors, each with its remedy: UNIMPLEMENTED (built without CUDA), NOT_FOUND (no such index),
// FAILED_PRECONDITION (driver too old, GPU too old, memory failed), RESOURCE_EXHAUSTED (its memory
// is full), UNAVAILABLE (another process has it for itself).
absl::StatusOr<DeviceFacts> ProbeCudaDevice(int index);

// One line: name, memory, driver, ECC, other users.
std::string Describe(const DeviceFacts& facts);

}  // namespace lorad::kernels
