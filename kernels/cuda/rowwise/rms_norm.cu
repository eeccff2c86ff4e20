#include <algorithm>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/rowwise/rowwise.h"

// One block a row. Up to 8192 columns a thread keeps its units in registers between the sum and the
// result, so each tensor crosses memory once; wider rows are read again.
namespace lorad::kernels::cuda {
namespace {

constexpr int kThreadsMax = 256;
constexpr int kUnitsMax = 4;  // of a thread in registers

// The sums of both values over the block's threads, in all of them: by warps, then the warps in
// order.
__device__ float2 BlockSums(float2 value) {
  __shared__ float2 warps[kThreadsMax / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value.x += __shfl_xor_sync(0xFFFFFFFFu, value.x, step);
    value.y += __shfl_xor_sync(0xFFFFFFFFu, value.y, step);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float2 sums = {0, 0};
  for (unsigned int warp = 0; warp < blockDim.x / 32; ++warp) {
    sums.x += warps[warp].x;
    sums.y += warps[warp].y;
  }
  return sums;
}

// kUnits of a thread in registers, or 0: read again. kAdd: the residual is added to the result,
// which may be it or x, for a thread has read what it writes.
template <typename T, int kUnits, bool kAdd>
__global__ void __launch_bounds__(kThreadsMax)
    RmsNormKernel(Rows<const T> x, Rows<const float> weight, float eps, Rows<const T> residual,
                  Rows<T> y, int columns) {
  ptx::TakeTurn();
  const T* from = x.row(blockIdx.x);
  T* to = y.row(blockIdx.x);
  const int step = blockDim.x * kUnit;
  Packed<T> kept[kUnits > 0 ? kUnits : 1];
  float squares = 0;
  const auto add = [&](const Unit& unit) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) squares += unit.value[i] * unit.value[i];
  };
  const auto finish = [&](const Unit& unit, int first, float r) {
    const Unit w = LoadUnit(weight.data, first, columns, weight.aligned);
    Unit result;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) result.value[i] = unit.value[i] * r * w.value[i];
    if constexpr (kAdd) {
      const Unit old = LoadUnit(residual.row(blockIdx.x), first, columns, residual.aligned);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) result.value[i] += old.value[i];
    }
    StoreUnit(result, to, first, columns, y.aligned);
  };
  if constexpr (kUnits > 0) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int first = threadIdx.x * kUnit + k * step;
      if (first < columns) kept[k] = LoadPacked(from, first, columns, x.aligned);
    }
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (threadIdx.x * kUnit + k * step < columns) add(Unpack(kept[k]));
    }
  } else {
    for (int first = threadIdx.x * kUnit; first < columns; first += step) {
      add(LoadUnit(from, first, columns, x.aligned));
    }
  }
  const float r = rsqrtf(BlockSums({squares, 0}).x / static_cast<float>(columns) + eps);
  if constexpr (kUnits > 0) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int first = threadIdx.x * kUnit + k * step;
      if (first < columns) finish(Unpack(kept[k]), first, r);
    }
  } else {
    for (int first = threadIdx.x * kUnit; first < columns; first += step) {
      finish(LoadUnit(from, first, columns, x.aligned), first, r);
    }
  }
}

// What a thread keeps of a unit of a row: everything it reads, so that no load waits for the sums.
template <typename T>
struct KeptUnit {
  Packed<T> x;
  Packed<T> dy;
  Packed<T> dx;
};

// kAdd: dx is added to; else it is written and may be dy or x, for a thread has read what it writes.
template <typename T, int kUnits, bool kAdd>
__global__ void __launch_bounds__(kThreadsMax)
    RmsNormBackwardKernel(Rows<const T> x, Rows<const float> weight, float eps, Rows<const T> dy,
                          Rows<T> dx, int columns) {
  ptx::TakeTurn();
  const T* input = x.row(blockIdx.x);
  const T* output_gradient = dy.row(blockIdx.x);
  T* gradient = dx.row(blockIdx.x);
  const int step = blockDim.x * kUnit;
  KeptUnit<T> kept[kUnits > 0 ? kUnits : 1];
  float2 sums = {0, 0};  // of x^2 and of w dy x
  const auto load = [&](int first) {
    return KeptUnit<T>{LoadPacked(input, first, columns, x.aligned),
                       LoadPacked(output_gradient, first, columns, dy.aligned),
                       kAdd ? LoadPacked<T>(gradient, first, columns, dx.aligned) : Packed<T>()};
  };
  const auto add = [&](const KeptUnit<T>& unit, int first) {
    const Unit value = Unpack(unit.x);
    const Unit g = Unpack(unit.dy);
    const Unit w = LoadUnit(weight.data, first, columns, weight.aligned);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      sums.x += value.value[i] * value.value[i];
      sums.y += g.value[i] * w.value[i] * value.value[i];
    }
  };
  const auto finish = [&](const KeptUnit<T>& unit, int first, float r, float c) {
    const Unit value = Unpack(unit.x);
    const Unit g = Unpack(unit.dy);
    const Unit w = LoadUnit(weight.data, first, columns, weight.aligned);
    Unit result;
    if constexpr (kAdd) result = Unpack(unit.dx);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if constexpr (kAdd) {
        result.value[i] += r * (g.value[i] * w.value[i] - value.value[i] * c);
      } else {
        result.value[i] = r * (g.value[i] * w.value[i] - value.value[i] * c);
      }
    }
    StoreUnit(result, gradient, first, columns, dx.aligned);
  };
  if constexpr (kUnits > 0) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int first = threadIdx.x * kUnit + k * step;
      if (first < columns) kept[k] = load(first);
    }
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int first = threadIdx.x * kUnit + k * step;
      if (first < columns) add(kept[k], first);
    }
  } else {
    for (int first = threadIdx.x * kUnit; first < columns; first += step) add(load(first), first);
  }
  const float size = static_cast<float>(columns);
  const float2 total = BlockSums(sums);
  const float r = rsqrtf(total.x / size + eps);
  const float c = total.y / size * r * r;
  if constexpr (kUnits > 0) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int first = threadIdx.x * kUnit + k * step;
      if (first < columns) finish(kept[k], first, r, c);
    }
  } else {
    for (int first = threadIdx.x * kUnit; first < columns; first += step) {
      finish(load(first), first, r, c);
    }
  }
}

// Threads and units of a thread for a width: functions of the width alone, for they fix the order
// of the sums.
struct Cut {
  int threads;
  int units;  // 1, 2, 4 or 0: too many to keep
};

Cut CutOf(int64_t columns) {
  const int64_t units = (columns + kUnit - 1) / kUnit;
  const int threads = static_cast<int>(std::min<int64_t>(kThreadsMax, (units + 31) / 32 * 32));
  const int64_t each = (units + threads - 1) / threads;
  if (each > kUnitsMax) return {threads, 0};
  return {threads, each <= 2 ? static_cast<int>(each) : 4};
}

template <typename Launch>
void ForUnits(int units, Launch&& launch) {
  switch (units) {
    case 1:
      return launch(std::integral_constant<int, 1>());
    case 2:
      return launch(std::integral_constant<int, 2>());
    case 4:
      return launch(std::integral_constant<int, 4>());
    default:
      return launch(std::integral_constant<int, 0>());
  }
}

}  // namespace

namespace {

// Empty: no residual.
void LaunchForward(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                   const TensorView& residual, const TensorView& y) {
  assert(x.dtype == y.dtype && x.rows == y.rows && x.columns == y.columns);
  assert(weight.columns == x.columns && weight.dtype == DType::kFloat32);
  if (x.elements() == 0) return;
  const Cut cut = CutOf(x.columns);
  const auto rows = static_cast<unsigned int>(x.rows);
  ForType(x.dtype, [&]<typename T>(T) {
    ForUnits(cut.units, [&](auto units) {
      const auto launch = [&](auto* kernel, const Rows<const T>& add) {
        LaunchKernel(kernel, {.grid = rows, .threads = cut.threads, .early = true}, stream,
                     RowsOf<const T>(x), RowsOf<const float>(weight), eps, add, RowsOf<T>(y),
                     static_cast<int>(x.columns));
      };
      residual.empty() ? launch(RmsNormKernel<T, units.value, false>, {})
                       : launch(RmsNormKernel<T, units.value, true>, RowsOf<const T>(residual));
    });
  });
}

template <bool kAdd>
void LaunchBackward(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                    const TensorView& dy, const TensorView& dx) {
  assert(x.dtype == dy.dtype && x.dtype == dx.dtype && weight.dtype == DType::kFloat32);
  assert(x.rows == dy.rows && x.columns == dy.columns && weight.columns == x.columns);
  assert(x.rows == dx.rows && x.columns == dx.columns);
  if (x.elements() == 0) return;
  const Cut cut = CutOf(x.columns);
  const auto rows = static_cast<unsigned int>(x.rows);
  ForType(x.dtype, [&]<typename T>(T) {
    ForUnits(cut.units, [&](auto units) {
      LaunchKernel(RmsNormBackwardKernel<T, units.value, kAdd>,
                   {.grid = rows, .threads = cut.threads, .early = true}, stream,
                   RowsOf<const T>(x), RowsOf<const float>(weight), eps, RowsOf<const T>(dy),
                   RowsOf<T>(dx), static_cast<int>(x.columns));
    });
  });
}

}  // namespace

void RmsNorm(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
             const TensorView& y) {
  LaunchForward(stream, x, weight, eps, {}, y);
}

void RmsNormAdd(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                const TensorView& residual, const TensorView& y) {
  assert(residual.dtype == x.dtype && residual.rows == x.rows && residual.columns == x.columns);
  LaunchForward(stream, x, weight, eps, residual, y);
}

void RmsNormBackward(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                     const TensorView& dy, const TensorView& dx) {
  LaunchBackward<true>(stream, x, weight, eps, dy, dx);
}

void RmsNormGradient(cudaStream_t stream, const TensorView& x, const TensorView& weight, float eps,
                     const TensorView& dy, const TensorView& dx) {
  LaunchBackward<false>(stream, x, weight, eps, dy, dx);
}

}  // namespace lorad::kernels::cuda
