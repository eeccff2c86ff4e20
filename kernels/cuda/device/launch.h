// Launches with much shared memory, and early: before the kernel before them in the stream has
// ended, so that a launch's beginning passes under the end of another.
//
// Whoever is launched early calls ptx::AwaitPreviousKernel before it touches anything that the
// kernel before it reads or writes, and in every block ptx::AllowNextLaunch no sooner than that:
// then all that lies further back has ended, too, when a kernel starts.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <type_traits>

#include "absl/base/thread_annotations.h"
#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  int shared_bytes = 0;
  bool early = false;  // where the device can, and the kernel before it allows it
};

// Whether the current device knows early launches. All devices of a process are alike in this.
inline bool CanLaunchEarly() {
  static const bool can = [] {
    int device = 0;
    int major = 0;
    LORAD_CUDA_CHECK(cudaGetDevice(&device));
    LORAD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return can;
}

// How much shared memory a launch may ask for is a setting of the kernel, not of the launch. Stages
// that are threads of one process ask for unlike amounts, so a launch has the setting to itself.
inline std::mutex shared_memory_setting;

template <typename... Parameters>
void LaunchAsSet(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                 const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = shape.early && CanLaunchEarly() ? 1 : 0;
  LORAD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

template <typename... Parameters>
void SetAndLaunch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                  const std::type_identity_t<Parameters>&... arguments)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_memory_setting) {
  LORAD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        shape.shared_bytes));
  LaunchAsSet(kernel, shape, stream, arguments...);
}

template <typename... Parameters>
void LaunchKernel(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                  const std::type_identity_t<Parameters>&... arguments) {
  if (shape.shared_bytes == 0) return LaunchAsSet(kernel, shape, stream, arguments...);
  std::lock_guard lock(shared_memory_setting);
  SetAndLaunch(kernel, shape, stream, arguments...);
}

}  // namespace lorad::kernels::cuda
