// Every call of CUDA goes through a check. What can fail in normal operation (memory that is not
// there, a device that is not there) is handled before it comes here and is an absl::Status
// (device.h); what fails here is a bug of ours or a lost device, and either way the context is
// beyond repair: the process says what happened and ends, and whoever started it starts another.
//
// Also for .cu files: nothing here but the C++ library and the CUDA runtime.
#ifndef LORAD_KERNELS_CUDA_CHECK_H_
#define LORAD_KERNELS_CUDA_CHECK_H_

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace lorad::kernels::cuda {

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
  Fail(file, line, call, cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace lorad::kernels::cuda

// LORAD_CUDA_CHECK(cudaMemcpyAsync(...));
#define LORAD_CUDA_CHECK(call) ::lorad::kernels::cuda::Check((call), __FILE__, __LINE__, #call)

// After every launch: a configuration that the device refuses shows here.
#define LORAD_CUDA_LAUNCHED() LORAD_CUDA_CHECK(cudaGetLastError())

#endif  // LORAD_KERNELS_CUDA_CHECK_H_
