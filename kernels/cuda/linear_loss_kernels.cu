#include <cooperative_groups.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/linear_loss_kernels.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 1024;  // of a softmax row
constexpr int kWarps = kThreads / 32;
constexpr int kCopyThreads = 256;
constexpr unsigned kAllLanes = 0xffffffff;

__device__ int64_t LossRowOf(const LossRange& range, int64_t place) {
  const int64_t at = range.first + place;
  return range.order == nullptr ? at : range.order[at];
}

// One block a row; moves 16 bytes at a time where all rows are aligned so.
template <typename Word>
__global__ void CopyRowsKernel(LossRange range, bool gather, const char* from, int64_t from_stride,
                               char* to, int64_t to_stride, int64_t words) {
  const int64_t place = blockIdx.x;
  const int64_t loss_row = LossRowOf(range, place);
  const int64_t from_row = gather ? range.rows[loss_row] : place;
  const int64_t to_row = gather ? place : loss_row;
  const Word* source = reinterpret_cast<const Word*>(from + from_row * from_stride);
  Word* target = reinterpret_cast<Word*>(to + to_row * to_stride);
  for (int64_t i = threadIdx.x; i < words; i += kCopyThreads) target[i] = source[i];
}

void CopyRows(const LossRange& range, bool gather, const TensorView& from, const TensorView& to,
              cudaStream_t stream) {
  assert(from.dtype == to.dtype && from.columns == to.columns);
  if (range.count == 0) return;
  const int64_t bytes = BytesOf(from.dtype);
  const auto aligned = [&](int64_t unit) {
    return (reinterpret_cast<uintptr_t>(from.data) | reinterpret_cast<uintptr_t>(to.data) |
            static_cast<uintptr_t>((from.row_stride | to.row_stride | from.columns) * bytes)) %
               static_cast<uintptr_t>(unit) ==
           0;
  };
  const auto launch = [&](auto* kernel, int64_t unit) {
    kernel<<<static_cast<unsigned>(range.count), kCopyThreads, 0, stream>>>(
        range, gather, static_cast<const char*>(from.data), from.row_stride * bytes,
        static_cast<char*>(to.data), to.row_stride * bytes, from.columns * bytes / unit);
  };
  if (aligned(16)) {
    launch(CopyRowsKernel<uint4>, 16);
  } else {
    launch(CopyRowsKernel<uint16_t>, 2);
  }
  LORAD_CUDA_LAUNCHED();
}

// A maximum and the sum of exponentials beneath it.
struct Partial {
  float max;
  float sum;
};

template <bool kAccurate>
__device__ float Exp(float x) {
  return kAccurate ? expf(x) : __expf(x);
}

template <bool kAccurate>
__device__ Partial Merge(Partial a, Partial b) {
  const float max = fmaxf(a.max, b.max);
  // Lanes beyond the vocabulary hold nothing: (-inf) - (-inf) must not make a NaN of them.
  const float left = a.sum == 0 ? 0 : a.sum * Exp<kAccurate>(a.max - max);
  const float right = b.sum == 0 ? 0 : b.sum * Exp<kAccurate>(b.max - max);
  return {max, left + right};
}

// Over the warp's lanes, the same in all of them.
template <bool kAccurate>
__device__ Partial WarpMerge(Partial value) {
  for (int step = 16; step > 0; step /= 2) {
    const Partial other = {__shfl_xor_sync(kAllLanes, value.max, step),
                           __shfl_xor_sync(kAllLanes, value.sum, step)};
    value = Merge<kAccurate>(value, other);
  }
  return value;
}

template <bool kAccurate>
__device__ Partial BlockMerge(Partial value, Partial* shared) {
  value = WarpMerge<kAccurate>(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  static_assert(kWarps == 32);
  value = WarpMerge<kAccurate>(shared[threadIdx.x % 32]);
  __syncthreads();
  return value;
}

// 8 values at a time: 16 bytes of bf16, 32 of float32.
constexpr int kVector = 8;

__device__ void LoadVector(const float* at, float* values) {
  const float4 low = *reinterpret_cast<const float4*>(at);
  const float4 high = *reinterpret_cast<const float4*>(at + 4);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}
__device__ void LoadVector(const __nv_bfloat16* at, float* values) {
  const uint4 bits = *reinterpret_cast<const uint4*>(at);
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
  }
}
__device__ void StoreVector(const float* values, float* at) {
  *reinterpret_cast<float4*>(at) = make_float4(values[0], values[1], values[2], values[3]);
  *reinterpret_cast<float4*>(at + 4) = make_float4(values[4], values[5], values[6], values[7]);
}
__device__ void StoreVector(const float* values, __nv_bfloat16* at) {
  __nv_bfloat162 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(pairs);
}
// part += the exponentials of a vector.
template <bool kAccurate>
__device__ void AddVector(const float* values, Partial& part) {
  float max = part.max;
#pragma unroll
  for (int i = 0; i < kVector; ++i) max = fmaxf(max, values[i]);
  float sum = part.sum == 0 ? 0 : part.sum * Exp<kAccurate>(part.max - max);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += Exp<kAccurate>(values[i] - max);
  part = {max, sum};
}

// Maximum and sum of exponentials of one row, the same in every thread.
template <bool kAccurate, typename Z>
__device__ Partial RowPartial(const Z* z, int64_t vocabulary, Partial* shared) {
  Partial part = {-INFINITY, 0};
  const int64_t whole = vocabulary / kVector * kVector;
  for (int64_t at = int64_t{threadIdx.x} * kVector; at < whole; at += kThreads * kVector) {
    float values[kVector];
    LoadVector(z + at, values);
    AddVector<kAccurate>(values, part);
  }
  if (whole + threadIdx.x < vocabulary) {
    part = Merge<kAccurate>(part, {ToFloat(z[whole + threadIdx.x]), 1});
  }
  return BlockMerge<kAccurate>(part, shared);
}

// gradient = -exp(z - lse), but where w is the target 1 - exp(log_p).
template <bool kAccurate, int kBlockThreads, typename Z, typename G>
__device__ void WriteGradient(const Z* z, int64_t vocabulary, float lse, int64_t target,
                              float at_target, G* gradient) {
  const int64_t whole = vocabulary / kVector * kVector;
  for (int64_t at = int64_t{threadIdx.x} * kVector; at < whole; at += kBlockThreads * kVector) {
    float values[kVector];
    LoadVector(z + at, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float p = Exp<kAccurate>(values[i] - lse);
      values[i] = at + i == target ? at_target : -p;
    }
    StoreVector(values, gradient + at);
  }
  const int64_t rest = whole + threadIdx.x;
  if (rest < vocabulary) {
    const float p = Exp<kAccurate>(ToFloat(z[rest]) - lse);
    gradient[rest] = FromFloat<G>(rest == target ? at_target : -p);
  }
}

template <bool kAccurate, typename Z, typename G>
__global__ void __launch_bounds__(kThreads)
    SoftmaxGradientKernel(LossRange range, const Z* logits, int64_t logits_stride,
                          int64_t vocabulary, float* log_p, G* gradient, int64_t gradient_stride) {
  __shared__ Partial shared[kWarps];
  for (int64_t place = blockIdx.x; place < range.count; place += gridDim.x) {
    const Z* z = logits + place * logits_stride;
    const int64_t loss_row = LossRowOf(range, place);
    const int64_t target = range.targets[loss_row];
    const float at_target = ToFloat(z[target]);
    const Partial part = RowPartial<kAccurate>(z, vocabulary, shared);
    const float log_sum = logf(part.sum);
    const float row_log_p = (at_target - part.max) - log_sum;
    if (threadIdx.x == 0) log_p[loss_row] = row_log_p;
    if (gradient == nullptr) continue;
    WriteGradient<kAccurate, kThreads>(z, vocabulary, part.max + log_sum, target,
                                       -expm1f(row_log_p), gradient + place * gradient_stride);
  }
}

// The same with a row's logits shared out to a cluster of blocks, each of which keeps its part in
// shared memory: they are read once.
constexpr int kPartThreads = 512;
constexpr int64_t kPartBytes = 80 << 10;  // of shared memory, so that two or more blocks share it
constexpr int64_t kPartBytesMax = 200 << 10;
constexpr int64_t kPartsMax = 8;  // blocks of a cluster

struct RowParts {
  int64_t columns = 0;  // of a part: a multiple of a vector, so that every part begins aligned
  int64_t count = 0;

  int64_t bytes() const { return columns * static_cast<int64_t>(sizeof(float)); }
};

RowParts PartsOf(int64_t vocabulary) {
  RowParts parts;
  for (parts.count = 1;; parts.count *= 2) {
    parts.columns =
        ((vocabulary + parts.count - 1) / parts.count + kVector - 1) / kVector * kVector;
    if (parts.bytes() <= kPartBytes || parts.count == kPartsMax) return parts;
  }
}

template <bool kAccurate>
__device__ Partial PartBlockMerge(Partial value, Partial* shared) {
  value = WarpMerge<kAccurate>(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < kPartThreads / 32; ++warp) {
    value = Merge<kAccurate>(value, shared[warp]);
  }
  return value;
}

// Copies `count` logits to shared memory (where `keep`) on the way to their maximum and sum of
// exponentials.
template <bool kAccurate>
__device__ Partial LoadPart(const float* z, int count, bool keep, float* kept) {
  Partial part = {-INFINITY, 0};
  const int whole = count / kVector * kVector;
  constexpr int kStep = kPartThreads * kVector;
  int at = static_cast<int>(threadIdx.x) * kVector;
  for (; at + kStep < whole; at += 2 * kStep) {
    float values[2][kVector];  // both on their way at once
    LoadVector(z + at, values[0]);
    LoadVector(z + at + kStep, values[1]);
    if (keep) {
      StoreVector(values[0], kept + at);
      StoreVector(values[1], kept + at + kStep);
    }
    AddVector<kAccurate>(values[0], part);
    AddVector<kAccurate>(values[1], part);
  }
  if (at < whole) {
    float values[kVector];
    LoadVector(z + at, values);
    if (keep) StoreVector(values, kept + at);
    AddVector<kAccurate>(values, part);
  }
  if (whole + static_cast<int>(threadIdx.x) < count) {
    const float value = z[whole + threadIdx.x];
    if (keep) kept[whole + threadIdx.x] = value;
    part = Merge<kAccurate>(part, {value, 1});
  }
  return part;
}

// Grid: a cluster a row, a block a part.
template <bool kAccurate, typename G>
__global__ void __launch_bounds__(kPartThreads)
    ClusterSoftmaxKernel(LossRange range, const float* logits, int64_t logits_stride,
                         int64_t vocabulary, RowParts parts, float* log_p, G* gradient,
                         int64_t gradient_stride) {
#if __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  extern __shared__ __align__(16) float kept[];  // [parts.columns], or nothing
  __shared__ Partial warps[kPartThreads / 32];
  __shared__ Partial mine;
  const cg::cluster_group cluster = cg::this_cluster();
  const auto blocks = static_cast<unsigned>(parts.count);
  const int64_t place = blockIdx.x / blocks;
  const int64_t begin = int64_t{blockIdx.x % blocks} * parts.columns;
  const int64_t count = max(int64_t{0}, min(parts.columns, vocabulary - begin));
  const float* z = logits + place * logits_stride;
  const int64_t loss_row = LossRowOf(range, place);
  const int64_t target = range.targets[loss_row];
  const float at_target = z[target];
  const Partial part = PartBlockMerge<kAccurate>(
      LoadPart<kAccurate>(z + begin, static_cast<int>(count), gradient != nullptr, kept), warps);
  if (threadIdx.x == 0) mine = part;
  cluster.sync();
  Partial all = *cluster.map_shared_rank(&mine, 0);
  for (unsigned other = 1; other < blocks; ++other) {
    all = Merge<kAccurate>(all, *cluster.map_shared_rank(&mine, other));
  }
  auto token = cluster.barrier_arrive();  // read; `mine` must stay until all others have
  const float log_sum = logf(all.sum);
  const float row_log_p = (at_target - all.max) - log_sum;
  if (begin == 0 && threadIdx.x == 0) log_p[loss_row] = row_log_p;
  if (gradient != nullptr) {
    WriteGradient<kAccurate, kPartThreads>(kept, count, all.max + log_sum, target - begin,
                                           -expm1f(row_log_p),
                                           gradient + place * gradient_stride + begin);
  }
  cluster.barrier_wait(std::move(token));
#endif
}

template <bool kAccurate, typename G>
void LaunchClusterSoftmax(const LossRange& range, const TensorView& logits, const TensorView& log_p,
                          const TensorView& gradient, cudaStream_t stream) {
  const RowParts parts = PartsOf(logits.columns);
  const auto kernel = ClusterSoftmaxKernel<kAccurate, G>;
  LORAD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(parts.bytes())));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts.count), 1, 1};
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(range.count * parts.count));
  launch.blockDim = dim3(kPartThreads);
  launch.dynamicSmemBytes = gradient.empty() ? 0 : static_cast<size_t>(parts.bytes());
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  LORAD_CUDA_CHECK(cudaLaunchKernelEx(
      &launch, kernel, range, static_cast<const float*>(logits.data), logits.row_stride,
      logits.columns, parts, log_p.f32(), static_cast<G*>(gradient.data), gradient.row_stride));
  LORAD_CUDA_LAUNCHED();
}

template <bool kAccurate, typename Z, typename G>
void LaunchSoftmax(const LossRange& range, const TensorView& logits, const TensorView& log_p,
                   const TensorView& gradient, unsigned blocks, cudaStream_t stream) {
  SoftmaxGradientKernel<kAccurate, Z, G><<<blocks, kThreads, 0, stream>>>(
      range, static_cast<const Z*>(logits.data), logits.row_stride, logits.columns, log_p.f32(),
      static_cast<G*>(gradient.data), gradient.row_stride);
  LORAD_CUDA_LAUNCHED();
}

}  // namespace

void LaunchGatherRows(const LossRange& range, const TensorView& x, const TensorView& to,
                      cudaStream_t stream) {
  CopyRows(range, true, x, to, stream);
}

void LaunchScatterRows(const LossRange& range, const TensorView& from, const TensorView& to,
                       cudaStream_t stream) {
  CopyRows(range, false, from, to, stream);
}

void LaunchSoftmaxGradient(const LossRange& range, const TensorView& logits,
                           const TensorView& log_p, const TensorView& gradient,
                           const SoftmaxOptions& options, cudaStream_t stream) {
  assert(logits.row_stride % kVector == 0 && gradient.row_stride % kVector == 0);
  if (range.count == 0) return;
  const unsigned blocks =
      static_cast<unsigned>(std::clamp(options.rows_at_once, int64_t{1}, range.count));
  const bool f32_logits = logits.dtype == DType::kFloat32;
  const bool f32_gradient = !gradient.empty() && gradient.dtype == DType::kFloat32;
  const bool cluster =
      f32_logits && options.cluster && PartsOf(logits.columns).bytes() <= kPartBytesMax;
  if (cluster && options.accurate) {
    LaunchClusterSoftmax<true, float>(range, logits, log_p, gradient, stream);
  } else if (cluster) {
    assert(!f32_gradient);
    LaunchClusterSoftmax<false, __nv_bfloat16>(range, logits, log_p, gradient, stream);
  } else if (f32_logits && options.accurate) {
    assert(gradient.empty() || f32_gradient);
    LaunchSoftmax<true, float, float>(range, logits, log_p, gradient, blocks, stream);
  } else if (f32_logits) {
    assert(!f32_gradient);
    LaunchSoftmax<false, float, __nv_bfloat16>(range, logits, log_p, gradient, blocks, stream);
  } else {
    assert(!f32_gradient && !options.accurate);
    LaunchSoftmax<false, __nv_bfloat16, __nv_bfloat16>(range, logits, log_p, gradient, blocks,
                                                       stream);
  }
}

}  // namespace lorad::kernels::cuda
