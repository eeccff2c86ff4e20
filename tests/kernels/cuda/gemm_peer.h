// Products by cuBLASLt with any of its algorithms: what ours are measured beside.
#pragma once

#include <cublasLt.h>

#include <vector>

#include "kernels/cuda/gemm/gemm.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::kernels::cuda {

// y = x op(W), all bfloat16, on the default stream.
class LibraryPeer {
 public:
  LibraryPeer();
  ~LibraryPeer();
  LibraryPeer(const LibraryPeer&) = delete;
  LibraryPeer& operator=(const LibraryPeer&) = delete;

  // The first eight of the library's heuristics, best first by its own opinion.
  std::vector<cublasLtMatmulAlgo_t> Algorithms(const GemmArguments& arguments);
  void Run(const GemmArguments& arguments, const cublasLtMatmulAlgo_t& algorithm);

 private:
  void Describe(const GemmArguments& arguments);

  DeviceMemory workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

}  // namespace lorad::kernels::cuda
