#include <algorithm>
#include <cassert>
#include <type_traits>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/loss/kernels.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 1024;  // of a softmax row
constexpr int kWarps = kThreads / 32;
constexpr int kCopyThreads = 256;
constexpr unsigned kAllLanes = 0xffffffff;

// One block a row; moves 16 bytes at a time where all rows are aligned so.
template <typename Word>
__global__ void CopyRowsKernel(LossRange range, bool gather, const char* from, int64_t from_stride,
                               char* to, int64_t to_stride, int64_t words) {
  const int64_t place = blockIdx.x;
  const int64_t loss_row = range.RowAt(place);
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

// part += the exponentials of a unit.
template <bool kAccurate>
__device__ void AddUnit(const Unit& unit, Partial& part) {
  float max = part.max;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) max = fmaxf(max, unit.value[i]);
  float sum = part.sum == 0 ? 0 : part.sum * Exp<kAccurate>(part.max - max);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) sum += Exp<kAccurate>(unit.value[i] - max);
  part = {max, sum};
}

// Maximum and sum of exponentials of one row, the same in every thread.
template <bool kAccurate>
__device__ Partial RowPartial(const float* z, int64_t vocabulary, Partial* shared) {
  Partial part = {-INFINITY, 0};
  const int64_t whole = vocabulary / kUnit * kUnit;
  for (int64_t at = int64_t{threadIdx.x} * kUnit; at < whole; at += kThreads * kUnit) {
    AddUnit<kAccurate>(LoadUnit(z, at, vocabulary, true), part);
  }
  if (whole + threadIdx.x < vocabulary) {
    part = Merge<kAccurate>(part, {z[whole + threadIdx.x], 1});
  }
  return BlockMerge<kAccurate>(part, shared);
}

// z = cap tanh(z / cap), by the threads that read it again.
__device__ void CapRow(float* z, int64_t vocabulary, float cap) {
  for (int64_t at = threadIdx.x; at < vocabulary; at += kThreads) z[at] = cap * tanhf(z[at] / cap);
  __syncthreads();
}

// The slope of the cap at what it made; 1 where there is none.
template <bool kCapped>
__device__ float SlopeOf(float z, float cap) {
  if constexpr (!kCapped) return 1.0f;
  const float t = z / cap;
  return 1.0f - t * t;
}

// gradient = -exp(z - lse), but where w is the target 1 - exp(log_p); both times the cap's slope.
template <bool kAccurate, bool kCapped, typename G>
__device__ void WriteGradient(const float* z, int64_t vocabulary, float cap, float lse,
                              int64_t target, float at_target, G* gradient) {
  const int64_t whole = vocabulary / kUnit * kUnit;
  for (int64_t at = int64_t{threadIdx.x} * kUnit; at < whole; at += kThreads * kUnit) {
    Unit unit = LoadUnit(z, at, vocabulary, true);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const float slope = SlopeOf<kCapped>(unit.value[i], cap);
      const float p = Exp<kAccurate>(unit.value[i] - lse);
      unit.value[i] = (at + i == target ? at_target : -p) * slope;
    }
    StoreUnit(unit, gradient, at, vocabulary, true);
  }
  const int64_t rest = whole + threadIdx.x;
  if (rest < vocabulary) {
    const float p = Exp<kAccurate>(z[rest] - lse);
    const float slope = SlopeOf<kCapped>(z[rest], cap);
    gradient[rest] = FromFloat<G>((rest == target ? at_target : -p) * slope);
  }
}

__global__ void __launch_bounds__(kThreads)
    CapKernel(float* z, int64_t stride, int64_t vocabulary, float cap) {
  CapRow(z + blockIdx.x * stride, vocabulary, cap);
}

template <bool kAccurate, bool kCapped, typename G>
__global__ void __launch_bounds__(kThreads)
    SoftmaxGradientKernel(LossRange range, float* logits, int64_t logits_stride, int64_t vocabulary,
                          float cap, float* log_p, G* gradient, int64_t gradient_stride) {
  __shared__ Partial shared[kWarps];
  for (int64_t place = blockIdx.x; place < range.count; place += gridDim.x) {
    if constexpr (kCapped) CapRow(logits + place * logits_stride, vocabulary, cap);
    const float* z = logits + place * logits_stride;
    const int64_t loss_row = range.RowAt(place);
    const int64_t target = range.targets[loss_row];
    const float at_target = z[target];
    const Partial part = RowPartial<kAccurate>(z, vocabulary, shared);
    const float log_sum = logf(part.sum);
    const float row_log_p = (at_target - part.max) - log_sum;
    if (threadIdx.x == 0) log_p[loss_row] = row_log_p;
    if (gradient == nullptr) continue;
    WriteGradient<kAccurate, kCapped>(z, vocabulary, cap, part.max + log_sum, target,
                                      -expm1f(row_log_p), gradient + place * gradient_stride);
  }
}

// Logits in work at the same time are read twice: most of a large GPU's L2 cache.
constexpr int64_t kCachedBytes = int64_t{40} << 20;

template <bool kAccurate, bool kCapped, typename G>
void LaunchSoftmax(const LossRange& range, const TensorView& logits, float cap,
                   const TensorView& log_p, const TensorView& gradient, cudaStream_t stream) {
  assert(gradient.empty() || BytesOf(gradient.dtype) == sizeof(G));
  const int64_t row_bytes = logits.row_stride * static_cast<int64_t>(sizeof(float));
  const int64_t rows = std::clamp(kCachedBytes / row_bytes, int64_t{64}, int64_t{1024});
  const unsigned blocks = static_cast<unsigned>(std::min(rows, range.count));
  SoftmaxGradientKernel<kAccurate, kCapped, G><<<blocks, kThreads, 0, stream>>>(
      range, logits.f32(), logits.row_stride, logits.columns, cap, log_p.f32(),
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

void LaunchCap(const TensorView& z, float cap, cudaStream_t stream) {
  CapKernel<<<static_cast<unsigned>(z.rows), kThreads, 0, stream>>>(z.f32(), z.row_stride,
                                                                    z.columns, cap);
  LORAD_CUDA_LAUNCHED();
}

void LaunchSoftmaxGradient(const LossRange& range, const TensorView& logits, float cap,
                           const TensorView& log_p, const TensorView& gradient, bool accurate,
                           cudaStream_t stream) {
  assert(logits.row_stride % kUnit == 0 && gradient.row_stride % kUnit == 0);
  if (range.count == 0) return;
  const auto launch = [&](auto capped) {
    if (accurate) {
      LaunchSoftmax<true, capped.value, float>(range, logits, cap, log_p, gradient, stream);
    } else {
      LaunchSoftmax<false, capped.value, __nv_bfloat16>(range, logits, cap, log_p, gradient,
                                                        stream);
    }
  };
  cap == 0 ? launch(std::false_type()) : launch(std::true_type());
}

}  // namespace lorad::kernels::cuda
