#include "kernels/cuda/device/tensor_map.h"

#include <cuda.h>

#include <array>
#include <cassert>
#include <cstring>
#include <string>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's function, asked of the runtime, so that we need not link the driver's library.
Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  constexpr unsigned kVersion = 12000;  // the first that has it
  LORAD_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion,
                                                    cudaEnableDefault, &found));
  assert(found == cudaDriverEntryPointSuccess);
  return reinterpret_cast<Encode>(function);
}

}  // namespace

TensorMap MapBoxes(const TensorView& matrix, int box_rows, int box_columns) {
  static const Encode encode = FindEncode();
  assert(matrix.dtype == DType::kBfloat16);
  const std::array<cuuint64_t, 2> sizes = {static_cast<cuuint64_t>(matrix.columns),
                                           static_cast<cuuint64_t>(matrix.rows)};
  const std::array<cuuint64_t, 1> strides = {
      static_cast<cuuint64_t>(matrix.row_stride * BytesOf(matrix.dtype))};
  assert(box_columns == 64 || box_columns == 32);
  const CUtensorMapSwizzle swizzle =
      box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  const std::array<cuuint32_t, 2> box = {static_cast<cuuint32_t>(box_columns),
                                         static_cast<cuuint32_t>(box_rows)};
  const std::array<cuuint32_t, 2> steps = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.data, sizes.data(), strides.data(),
             box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    Fail(__FILE__, __LINE__, "cuTensorMapEncodeTiled", std::to_string(result).c_str(),
         "a view that the copy engine cannot take");
  }
  TensorMap bytes;
  std::memcpy(&bytes, &map, sizeof(bytes));
  return bytes;
}

}  // namespace lorad::kernels::cuda
