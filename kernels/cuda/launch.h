// Launches with much shared memory, and early.
#ifndef LORAD_KERNELS_CUDA_LAUNCH_H_
#define LORAD_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include "kernels/cuda/check.h"

namespace lorad::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  int shared_bytes = 0;
  bool early = false;  // may start before the kernel before it has ended, when that allows it
};

template <typename Arguments>
void LaunchKernel(void (*kernel)(Arguments), const LaunchShape& shape, const Arguments& arguments,
                  cudaStream_t stream) {
  LORAD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        shape.shared_bytes));
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = shape.early ? 1 : 0;
  LORAD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments));
}

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LAUNCH_H_
