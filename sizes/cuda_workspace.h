// All scratch memory of kernels/cuda (CudaBackend::ReserveWorkspace).
#pragma once

#include <cstdint>

#include "sizes/batch.h"
#include "sizes/cuda_products.h"

namespace lorad::sizes {

// In bytes from the workspace's first one.
struct CudaWorkspaceLayout {
  CudaLoraLayout lora;  // from the first byte on
  // What attention, head and loss, and products share, one after the other in the stream: the
  // largest of them. It begins at a multiple of 256, which is found where the memory lies.
  int64_t scratch_at = 0;
  int64_t scratch_bytes = 0;
  int64_t bytes = 0;
};

inline constexpr int64_t kCudaScratchAlignment = 256;

CudaWorkspaceLayout LayCudaWorkspace(const Limits& limits, int64_t value_bytes,
                                     int64_t multiprocessors);

}  // namespace lorad::sizes
