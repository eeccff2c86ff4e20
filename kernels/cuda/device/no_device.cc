// device.h in a build without CUDA: there are no GPUs.
#include "kernels/cuda/device/device.h"

namespace lorad::kernels {

int CudaDeviceCount() { return 0; }

absl::StatusOr<DeviceFacts> ProbeCudaDevice(int) {
  return absl::UnimplementedError(
      "this lorad was built without CUDA; install the CUDA toolkit (nvcc) and build again");
}

std::string Describe(const DeviceFacts&) { return ""; }

}  // namespace lorad::kernels
