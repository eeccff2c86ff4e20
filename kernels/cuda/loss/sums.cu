#include <cassert>
#include <cmath>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/loss/sums.h"

namespace lorad::kernels::cuda {
namespace {

// ---- rows and references ----

constexpr int kGatherThreads = 256;

// A block a row.
__global__ void __launch_bounds__(kGatherThreads)
    GatherTargetsKernel(LossRange range, Rows<const __nv_bfloat16> x,
                        Rows<const __nv_bfloat16> weight, Rows<__nv_bfloat16> to, int64_t columns,
                        LossChunk chunk) {
  __shared__ float warps[kGatherThreads / 32];
  const int64_t place = blockIdx.x;
  const int64_t loss_row = range.RowAt(place);
  const int32_t target = range.targets[loss_row];
  const __nv_bfloat16* x_row = x.row(range.rows[loss_row]);
  const __nv_bfloat16* weight_row = weight.row(target);
  float sum = 0;
  for (int64_t first = int64_t{threadIdx.x} * kUnit; first < columns;
       first += kGatherThreads * kUnit) {
    const Unit a = LoadUnit(x_row, first, columns, x.aligned);
    const Unit b = LoadUnit(weight_row, first, columns, weight.aligned);
    StoreUnit(a, to.row(place), first, columns, to.aligned);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum = fmaf(a.value[i], b.value[i], sum);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kGatherThreads / 32; ++warp) sum += warps[warp];
  chunk.targets[place] = target;
  chunk.references[place] = sum;
  if (place == 0) *chunk.again = 0;
}

// ---- sums ----

constexpr int kFoldRows = 32;
constexpr int kFoldParts = 32;  // threads a row

__device__ void FinishRow(const LossChunk& chunk, int64_t place, double sum, float* log_p) {
  const double t = static_cast<double>(chunk.target_logits[place]) -
                   static_cast<double>(chunk.references[place]);
  const double all = sum + exp(t);
  *log_p = static_cast<float>(t - log1p(sum + expm1(t)));
  chunk.factors[place] = {static_cast<float>(sum / all), static_cast<float>(1 / all)};
}

// Threads: rows, then parts of each.
__global__ void __launch_bounds__(kFoldRows* kFoldParts)
    FoldPartsKernel(LossRange range, int64_t part_count, LossChunk chunk, bool again,
                    float* log_p) {
  if (again && *chunk.again == 0) return;
  __shared__ double sums[kFoldParts][kFoldRows];
  __shared__ float maxima[kFoldParts][kFoldRows];
  const unsigned lane = threadIdx.x;
  const unsigned group = threadIdx.y;
  const int64_t place = int64_t{blockIdx.x} * kFoldRows + lane;
  const bool inside = place < range.count;
  double sum = 0;
  float max = -INFINITY;
  for (int64_t i = group; inside && i < part_count; i += kFoldParts) {
    const LossPart part = chunk.parts[i * range.count + place];
    sum += static_cast<double>(part.sum);
    max = fmaxf(max, part.max);
  }
  sums[group][lane] = sum;
  maxima[group][lane] = max;
  for (unsigned half = kFoldParts / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group >= half) continue;
    sums[group][lane] += sums[group + half][lane];
    maxima[group][lane] = fmaxf(maxima[group][lane], maxima[group + half][lane]);
  }
  if (group != 0 || !inside) return;
  if (!again && maxima[0][lane] > kExcessMax) {
    chunk.references[place] += maxima[0][lane];
    *chunk.again = 1;
  } else {
    FinishRow(chunk, place, sums[0][lane], log_p + range.RowAt(place));
  }
}

}  // namespace

void LaunchGatherTargets(const LossRange& range, const TensorView& x, const TensorView& weight,
                         const TensorView& to, const LossChunk& chunk, cudaStream_t stream) {
  assert(to.rows == range.count && to.columns == x.columns && weight.columns == x.columns);
  GatherTargetsKernel<<<static_cast<unsigned>(range.count), kGatherThreads, 0, stream>>>(
      range, RowsOf<const __nv_bfloat16>(x), RowsOf<const __nv_bfloat16>(weight),
      RowsOf<__nv_bfloat16>(to), x.columns, chunk);
  LORAD_CUDA_LAUNCHED();
}

void LaunchFoldParts(const LossRange& range, int64_t vocabulary, const LossChunk& chunk, bool again,
                     const TensorView& log_p, cudaStream_t stream) {
  const int64_t blocks = (range.count + kFoldRows - 1) / kFoldRows;
  const int64_t part_count = (vocabulary + kPartColumns - 1) / kPartColumns;
  FoldPartsKernel<<<static_cast<unsigned>(blocks), dim3(kFoldRows, kFoldParts), 0, stream>>>(
      range, part_count, chunk, again, log_p.f32());
  LORAD_CUDA_LAUNCHED();
}

}  // namespace lorad::kernels::cuda
