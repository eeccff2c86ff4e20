// From the views of gemm.h to what the kernel of hopper.h is launched with.
#pragma once

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/hopper.h"

namespace lorad::kernels::cuda {

// Boxes of a term's factor.
TensorMap MapFactor(Product product, const TensorView& factor);

// REQUIRES: all views bf16.
HopperArguments PlanHopper(const GemmArguments& arguments, HopperTile tile);

// The fastest tile for a product [rows, columns] over `inner` features, by a model of its time.
// turns: among those in turns too.
HopperTile ChooseTile(int64_t rows, int64_t columns, int64_t inner, int clusters, bool turns);

}  // namespace lorad::kernels::cuda
