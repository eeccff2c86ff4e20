// What the CUDA backend takes of an arena. It needs no device, so that what a group would take
// there can be counted anywhere.
#pragma once

#include <cstdint>

#include "kernels/arena.h"
#include "kernels/batch.h"
#include "kernels/tensor.h"
#include "sizes/cuda_workspace.h"

namespace lorad::kernels::cuda {

struct LinearMemory {
  TensorView weight;  // [O, K]
  TensorView bias;    // [1, O]; or empty
};
// Backend::MakeLinear, in activations of `dtype`.
LinearMemory TakeLinear(int64_t outputs, int64_t inputs, bool has_bias, DType dtype, Arena& arena);

struct WorkspaceMemory {
  sizes::CudaWorkspaceLayout layout;
  char* base = nullptr;  // null when counting
};
// Backend::ReserveWorkspace, likewise.
WorkspaceMemory TakeWorkspace(const Limits& limits, DType dtype, int multiprocessors, Arena& arena);

}  // namespace lorad::kernels::cuda
