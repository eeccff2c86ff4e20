// Copies beside the operations of one GPU, by its copy engines, and memory shared by CUDA IPC.
#pragma once

#include <memory>

#include "kernels/cuda/device/context.h"
#include "kernels/device_copies.h"

namespace lorad::kernels::cuda {

// `context` must outlive it. A name (SharedMemory) holds the handle of CUDA IPC. CUDA opens no
// handle in the process that made it; there a name stands for the memory itself.
std::unique_ptr<DeviceCopies> MakeCudaCopies(const Context& context);

}  // namespace lorad::kernels::cuda
