// The operations on the CPU, float32: a library's matrix products inside fixed work items, plain
// vectorized loops for the rest. The embedded default and the reference for other devices.
// docs/kernels.md tells how each operation is cut.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lorad::kernels {

// `threads` includes the calling one and lies in 1..256; it changes speed alone, never bits.
std::unique_ptr<Backend> MakeCpuBackend(int threads);

}  // namespace lorad::kernels
