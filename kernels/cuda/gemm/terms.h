// The low-rank terms of gemm.h as a kernel of their own, after a product by a library.
#pragma once

#include "kernels/cuda/gemm/gemm.h"

namespace lorad::kernels::cuda {

// y += sum_t D_t o (S_t F_t), F_t the factors of arguments.terms: per element one fp32 sum over the
// terms in list order, each over its rank in ascending order, then one addition to y.
void AddTerms(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
