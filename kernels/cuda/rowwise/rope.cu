#include <algorithm>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/rowwise/rope.cuh"
#include "kernels/cuda/rowwise/rowwise.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void FillRopeKernel(const float* inverse_frequencies, float factor, float* table,
                               int64_t stride, int64_t positions, int half) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= positions * half) return;
  const int64_t position = index / half;
  const int i = static_cast<int>(index % half);
  // The angle is a float32 product, as in transformers; a more exact one would be another model.
  const float angle = static_cast<float>(position) * inverse_frequencies[i];
  table[position * stride + i] = cosf(angle) * factor;
  table[position * stride + half + i] = sinf(angle) * factor;
}

// One block a row. A thread turns the same unit of several heads' first halves, and its partners of
// the second.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RopeKernel(const int32_t* positions, Rows<const float> table, float sign, Rows<T> x, int heads,
               int head_size, int half) {
  ptx::TakeTurn();
  const int units = (half + kUnit - 1) / kUnit;  // divides the number of threads
  const int first = threadIdx.x % units * kUnit;
  const float* angles = table.row(positions[blockIdx.x]);
  const Unit c = LoadUnit(angles, first, half, table.aligned);
  const Unit s = LoadUnit(angles + half, first, half, table.aligned);
  for (int head = threadIdx.x / units; head < heads; head += blockDim.x / units) {
    T* low_half = x.row(blockIdx.x) + head * head_size;
    const Unit a = LoadUnit(low_half, first, half, x.aligned);
    const Unit b = LoadUnit(low_half + half, first, half, x.aligned);
    Unit low;
    Unit high;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const RopePair turned = Rotated({a.value[i], b.value[i]}, c.value[i], sign * s.value[i]);
      low.value[i] = turned.low;
      high.value[i] = turned.high;
    }
    StoreUnit(low, low_half, first, half, x.aligned);
    StoreUnit(high, low_half + half, first, half, x.aligned);
  }
}

}  // namespace

void FillRope(cudaStream_t stream, const float* inverse_frequencies, float factor,
              const TensorView& table) {
  assert(table.dtype == DType::kFloat32 && table.columns % 2 == 0);
  const int64_t half = table.columns / 2;
  const int64_t blocks = (table.rows * half + kThreads - 1) / kThreads;
  if (blocks == 0) return;
  LaunchKernel(FillRopeKernel, {.grid = static_cast<unsigned int>(blocks), .threads = kThreads},
               stream, inverse_frequencies, factor, table.f32(), table.row_stride, table.rows,
               static_cast<int>(half));
}

void Rope(cudaStream_t stream, const BatchTables& batch, const HeadAngles& angles, float sign,
          const TensorView& x) {
  const TensorView& table = angles.table;
  assert(x.rows == batch.tokens && x.columns % angles.head_size == 0);
  assert(table.columns <= angles.head_size);
  if (x.elements() == 0) return;
  const int half = static_cast<int>(table.columns / 2);
  const int heads = static_cast<int>(x.columns / angles.head_size);
  const int units = (half + kUnit - 1) / kUnit;
  assert(units <= kThreads);
  // Heads at once, so that all rounds have about as many.
  const int rounds = (heads * units + kThreads - 1) / kThreads;
  const int threads = std::min((heads + rounds - 1) / rounds, kThreads / units) * units;
  ForType(x.dtype, [&]<typename T>(T) {
    Rows<T> rows = RowsOf<T>(x);
    rows.aligned = rows.aligned && half % kUnit == 0 && angles.head_size % kUnit == 0;
    Rows<const float> from = RowsOf<const float>(table);
    from.aligned = from.aligned && half % kUnit == 0;
    LaunchKernel(RopeKernel<T>,
                 {.grid = static_cast<unsigned int>(x.rows), .threads = threads, .early = true},
                 stream, batch.positions, from, sign, rows, heads,
                 static_cast<int>(angles.head_size), half);
  });
}

}  // namespace lorad::kernels::cuda
