#include "kernels/cuda/gemm/library.h"

#include <cassert>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

void CheckLibrary(cublasStatus_t status, int line, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  Fail(__FILE__, line, call, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}
#define LORAD_LIBRARY_CHECK(call) CheckLibrary((call), __LINE__, #call)

// Rows that the heuristics are told of: a full microbatch.
constexpr int64_t kRowsOfChoice = 4096;

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

// Our row-major matrices are the library's column-major ones transposed: y^T = op(W) x^T.
cublasLtMatrixLayoutOpaque_t Layout(DType dtype, int64_t columns, int64_t rows, int64_t stride) {
  cublasLtMatrixLayoutOpaque_t layout;
  LORAD_LIBRARY_CHECK(cublasLtMatrixLayoutInit(
      &layout, TypeOf(dtype), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), stride));
  return layout;
}

template <typename T>
void Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  LORAD_LIBRARY_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

template <typename T>
void Prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
            T value) {
  LORAD_LIBRARY_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

cublasLtMatmulDescOpaque_t Operation(const GemmArguments& arguments) {
  cublasLtMatmulDescOpaque_t operation;
  LORAD_LIBRARY_CHECK(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Set(&operation, CUBLASLT_MATMUL_DESC_TRANSA,
      arguments.product == Product::kForward ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (!arguments.bias.empty()) {
    Set(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    Set(&operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(arguments.y.dtype));
    Set(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
        static_cast<const void*>(arguments.bias.data));
  }
  return operation;
}

}  // namespace

LibraryGemm::LibraryGemm() { LORAD_LIBRARY_CHECK(cublasLtCreate(&handle_)); }

LibraryGemm::~LibraryGemm() { cublasLtDestroy(handle_); }

std::string LibraryGemm::Id() { return "cublaslt-" + std::to_string(cublasLtGetVersion()); }

const cublasLtMatmulAlgo_t& LibraryGemm::Algorithm(const GemmArguments& arguments,
                                                   cublasLtMatmulDesc_t operation) {
  const TensorView& x = arguments.x;
  const TensorView& y = arguments.y;
  const TensorView& weight = arguments.weight;
  const Key key = {.product = arguments.product,
                   .x_type = x.dtype,
                   .y_type = y.dtype,
                   .bias = !arguments.bias.empty(),
                   .residual = !arguments.residual.empty(),
                   .inner = x.columns,
                   .outer = y.columns,
                   .x_stride = x.row_stride,
                   .weight_stride = weight.row_stride,
                   .y_stride = y.row_stride};
  const auto found = algorithms_.find(key);
  if (found != algorithms_.end()) return found->second;

  auto a = Layout(weight.dtype, weight.columns, weight.rows, weight.row_stride);
  auto b = Layout(x.dtype, x.columns, kRowsOfChoice, x.row_stride);
  auto d = Layout(y.dtype, y.columns, kRowsOfChoice, y.row_stride);
  cublasLtMatmulPreferenceOpaque_t preference;
  LORAD_LIBRARY_CHECK(cublasLtMatmulPreferenceInit(&preference));
  Prefer(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<uint64_t>(sizes::kProductBytes));
  Prefer(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    Prefer(&preference, alignment, uint32_t{16});
  }
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  LORAD_LIBRARY_CHECK(cublasLtMatmulAlgoGetHeuristic(handle_, operation, &a, &b, &d, &d,
                                                     &preference, 1, &result, &count));
  assert(count == 1);
  return algorithms_.emplace(key, result.algo).first->second;
}

void LibraryGemm::Run(const GemmArguments& arguments, void* workspace, cudaStream_t stream) {
  const TensorView& x = arguments.x;
  const TensorView& y = arguments.y;
  const TensorView& weight = arguments.weight;
  const bool residual = !arguments.residual.empty();
  auto operation = Operation(arguments);
  const cublasLtMatmulAlgo_t& algorithm = Algorithm(arguments, &operation);
  auto a = Layout(weight.dtype, weight.columns, weight.rows, weight.row_stride);
  auto b = Layout(x.dtype, x.columns, x.rows, x.row_stride);
  auto c =
      Layout(y.dtype, y.columns, y.rows, residual ? arguments.residual.row_stride : y.row_stride);
  auto d = Layout(y.dtype, y.columns, y.rows, y.row_stride);
  const float alpha = 1;
  const float beta = residual ? 1 : 0;
  LORAD_LIBRARY_CHECK(cublasLtMatmul(handle_, &operation, &alpha, weight.data, &a, x.data, &b,
                                     &beta, residual ? arguments.residual.data : y.data, &c, y.data,
                                     &d, &algorithm, workspace, sizes::kProductBytes, stream));
}

}  // namespace lorad::kernels::cuda
