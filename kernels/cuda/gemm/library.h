// The product of gemm.h without its terms by cuBLASLt, for devices and types without a kernel of
// our own. Algorithms come from the library's heuristics, asked once for each (operation, types,
// features) at a fixed number of rows and never timed, without split sums: so they, and the bits,
// do not depend on M.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <string>

#include "kernels/cuda/gemm/gemm.h"

namespace lorad::kernels::cuda {

class LibraryGemm {
 public:
  LibraryGemm();
  ~LibraryGemm();
  LibraryGemm(const LibraryGemm&) = delete;
  LibraryGemm& operator=(const LibraryGemm&) = delete;

  static std::string Id();
  // y = residual + x op(W) + bias.
  void Run(const GemmArguments& arguments, void* workspace, cudaStream_t stream);

 private:
  // What an algorithm is chosen by.
  struct Key {
    Product product;
    DType x_type;
    DType y_type;
    bool bias;
    bool residual;
    int64_t inner;
    int64_t outer;
    int64_t x_stride;
    int64_t weight_stride;
    int64_t y_stride;
    auto operator<=>(const Key&) const = default;
  };
  const cublasLtMatmulAlgo_t& Algorithm(const GemmArguments& arguments,
                                        cublasLtMatmulDesc_t operation);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace lorad::kernels::cuda
