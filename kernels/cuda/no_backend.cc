// cuda_backend.h in a build without CUDA.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"

namespace lorad::kernels {

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int device_index, DType) {
  return ProbeCudaDevice(device_index).status();
}

}  // namespace lorad::kernels
