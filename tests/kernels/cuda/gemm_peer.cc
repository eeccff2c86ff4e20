#include "tests/kernels/cuda/gemm_peer.h"

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr int kAlgorithms = 8;

void CheckLibrary(cublasStatus_t status, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    Fail(__FILE__, line, "cublasLt", cublasLtGetStatusName(status), "");
  }
}

cublasLtMatrixLayoutOpaque_t Layout(const TensorView& view) {
  cublasLtMatrixLayoutOpaque_t layout;
  CheckLibrary(cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, static_cast<uint64_t>(view.columns),
                                        static_cast<uint64_t>(view.rows), view.row_stride),
               __LINE__);
  return layout;
}

}  // namespace

LibraryPeer::LibraryPeer() : workspace_(kWorkspaceBytes) {
  CheckLibrary(cublasLtCreate(&handle_), __LINE__);
}

LibraryPeer::~LibraryPeer() { cublasLtDestroy(handle_); }

std::vector<cublasLtMatmulAlgo_t> LibraryPeer::Algorithms(const GemmArguments& arguments) {
  Describe(arguments);
  cublasLtMatmulPreferenceOpaque_t preference;
  CheckLibrary(cublasLtMatmulPreferenceInit(&preference), __LINE__);
  const uint64_t bytes = kWorkspaceBytes;
  CheckLibrary(cublasLtMatmulPreferenceSetAttribute(
                   &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
               __LINE__);
  cublasLtMatmulHeuristicResult_t results[kAlgorithms];
  int count = 0;
  CheckLibrary(cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &a_, &b_, &d_, &d_, &preference,
                                              kAlgorithms, results, &count),
               __LINE__);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) algorithms.push_back(results[i].algo);
  return algorithms;
}

void LibraryPeer::Run(const GemmArguments& arguments, const cublasLtMatmulAlgo_t& algorithm) {
  Describe(arguments);
  const float one = 1;
  const float zero = 0;
  CheckLibrary(cublasLtMatmul(handle_, &operation_, &one, arguments.weight.data, &a_,
                              arguments.x.data, &b_, &zero, arguments.y.data, &d_, arguments.y.data,
                              &d_, &algorithm, workspace_.data(), kWorkspaceBytes, nullptr),
               __LINE__);
}

void LibraryPeer::Describe(const GemmArguments& arguments) {
  CheckLibrary(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), __LINE__);
  const cublasOperation_t transposed =
      arguments.product == Product::kForward ? CUBLAS_OP_T : CUBLAS_OP_N;
  CheckLibrary(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof(transposed)),
               __LINE__);
  a_ = Layout(arguments.weight);
  b_ = Layout(arguments.x);
  d_ = Layout(arguments.y);
}

}  // namespace lorad::kernels::cuda
