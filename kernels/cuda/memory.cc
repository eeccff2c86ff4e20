#include "kernels/cuda/memory.h"

namespace lorad::kernels::cuda {

LinearMemory TakeLinear(int64_t outputs, int64_t inputs, bool has_bias, DType dtype, Arena& arena) {
  LinearMemory memory;
  memory.weight = arena.Matrix(outputs, inputs, dtype);
  if (has_bias) memory.bias = arena.Matrix(1, outputs, dtype);
  return memory;
}

WorkspaceMemory TakeWorkspace(const Limits& limits, DType dtype, int multiprocessors,
                              Arena& arena) {
  const auto layout = sizes::LayCudaWorkspace(limits, BytesOf(dtype), multiprocessors);
  return {.layout = layout, .base = arena.Allocate<char>(layout.bytes)};
}

}  // namespace lorad::kernels::cuda
