// How the copy engine of Hopper is told where a matrix lies.
#pragma once

#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

// As the driver's CUtensorMap.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// Describes boxes [box_rows, 64 or 32] of a bf16 matrix to the copy engine: a swizzle as wide as a
// box's row, zeros outside. Rows must begin at multiples of 16 bytes.
TensorMap MapBoxes(const TensorView& matrix, int box_rows, int box_columns = 64);

}  // namespace lorad::kernels::cuda
