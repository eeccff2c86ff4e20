#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/gemm/terms.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kColumns = 64;  // of y a block; one thread each
constexpr int kRows = 16;     // of y a block, kRowsAtOnce at a time
constexpr int kRowsAtOnce = 4;
static_assert(kTermTileRows % kRows == 0);

// s: one row of S at the term's columns. [rank] times column `output` of the term.
template <typename T>
__device__ float Dot(Product product, const LowRankTerm& term, const T* s, int64_t output) {
  const T* factor = static_cast<const T*>(term.factor);
  const bool forward = product == Product::kForward;
  const int64_t step = forward ? 1 : term.factor_stride;
  factor += forward ? output * term.factor_stride : output;
  float sum = 0;
  for (int r = 0; r < term.rank; ++r) sum += ToFloat(s[r]) * ToFloat(factor[r * step]);
  return sum;
}

__device__ bool Kept(const LowRankTerm& term, int64_t row, int64_t column) {
  if (term.mask_words == nullptr) return true;
  const uint32_t word = term.mask_words[row * term.mask_row_words + column / 32];
  return (word >> (column % 32)) & 1;
}

// s [M, C], y [M, columns].
template <typename T, typename Y>
__global__ void AddTermsKernel(Product product, LowRankTable table, const T* s, int64_t s_stride,
                               Y* y, int64_t y_stride, int64_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int64_t tile = first_row / kTermTileRows;
  const int begin = table.first[tile];
  const int end = table.first[tile + 1];
  if (column >= columns || begin == end) return;
  for (int64_t row = first_row + threadIdx.y; row < first_row + kRows; row += kRowsAtOnce) {
    if (row >= rows) return;
    float sum = 0;
    for (int i = begin; i < end; ++i) {
      const LowRankTerm& term = table.terms[table.list[i]];
      const int64_t output = column - term.first_output;
      if (output < 0 || output >= term.outputs) continue;
      const float dot = Dot(product, term, s + row * s_stride + term.first_column, output);
      sum += Kept(term, row, column) ? term.mask_scale * dot : 0.0f;
    }
    Y* element = y + row * y_stride + column;
    *element = FromFloat<Y>(ToFloat(*element) + sum);
  }
}

template <typename T, typename Y>
void Launch(const GemmArguments& arguments, cudaStream_t stream) {
  const TensorView& s = arguments.coefficients;
  const TensorView& y = arguments.y;
  const dim3 grid(static_cast<unsigned>((y.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>((y.rows + kRows - 1) / kRows));
  AddTermsKernel<T, Y><<<grid, dim3(kColumns, kRowsAtOnce), 0, stream>>>(
      arguments.product, arguments.terms, static_cast<const T*>(s.data), s.row_stride,
      static_cast<Y*>(y.data), y.row_stride, y.rows, y.columns);
  LORAD_CUDA_LAUNCHED();
}

}  // namespace

void AddTerms(const GemmArguments& arguments, cudaStream_t stream) {
  assert(arguments.coefficients.dtype == arguments.x.dtype);
  if (arguments.x.dtype == DType::kFloat32) return Launch<float, float>(arguments, stream);
  if (arguments.y.dtype == DType::kFloat32) return Launch<__nv_bfloat16, float>(arguments, stream);
  Launch<__nv_bfloat16, __nv_bfloat16>(arguments, stream);
}

}  // namespace lorad::kernels::cuda
