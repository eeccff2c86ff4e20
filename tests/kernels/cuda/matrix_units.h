// What the matrix units of compute capability 9.0 do alone: products of operands that lie in shared
// memory, of which nothing is loaded and nothing stored. At the power limit no product takes less
// time or energy for as many operations on such numbers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lorad::kernels::cuda {

// Of bf16 that a block copies to its shared memory: four stages of x [128, 64] and W [256, 64].
inline constexpr int64_t kMatrixUnitsBytes = 4 * (128 + 256) * 64 * 2;

// Whether the current device has them.
bool HasMatrixUnits();

// About `operations` (two a product and sum), on all multiprocessors. `operands`:
// kMatrixUnitsBytes; the accumulators only grow, so they should be of mixed sign. `sink`: one
// float, written only so that the compiler keeps the products.
void RunMatrixUnits(const void* operands, double operations, float* sink, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
