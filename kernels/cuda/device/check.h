// Every call of CUDA goes through a check. What can fail in normal operation (memory that is not
// there, a device that is not there) is handled before it comes here and is an absl::Status
// (device.h); what fails here is a bug of ours or a lost device, and either way the context is
// beyond repair: the process says what happened and ends, and whoever started it starts another.
//
// Also for .cu files: nothing here but the C++ library and the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace lorad::kernels::cuda {

// What an operator can do about an error of the device, or "".
inline const char* RemedyOf(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "install a newer NVIDIA driver";
    case cudaErrorMemoryAllocation:
      return "another process has taken GPU memory meanwhile (nvidia-smi lists them): end it, or "
             "lower the worker's memory budget";
    case cudaErrorECCUncorrectable:
      return "the GPU's memory failed: reset or replace it before a worker uses it again";
    case cudaErrorDevicesUnavailable:
      return "another process has the GPU for itself (compute mode exclusive): end it";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "the context is lost: start the worker again; if it repeats, report the lines above";
    default:
      return "";
  }
}

// Prints "FILE:LINE: CALL: NAME (WHAT)" to standard error and aborts. Libraries beside the runtime
// (cuBLASLt, cuDNN) report through it as well.
[[noreturn]] inline void Fail(const char* file, int line, const char* call, const char* name,
                              const char* what) {
  std::fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, call, name, what);
  std::fflush(stderr);
  std::abort();
}

inline void Check(cudaError_t error, const char* file, int line, const char* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  const char* remedy = RemedyOf(error);
  if (*remedy != '\0') std::fprintf(stderr, "GPU error: %s\n", remedy);
  Fail(file, line, call, cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace lorad::kernels::cuda

// LORAD_CUDA_CHECK(cudaMemcpyAsync(...));
#define LORAD_CUDA_CHECK(call) ::lorad::kernels::cuda::Check((call), __FILE__, __LINE__, #call)

// After every launch: a configuration that the device refuses shows here.
#define LORAD_CUDA_LAUNCHED() LORAD_CUDA_CHECK(cudaGetLastError())
