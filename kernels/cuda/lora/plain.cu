// The skinny products of kernels.h for every type and shape: float32, and bf16 where a feature
// count is no multiple of 8. One warp a row, or one thread an element of a gradient.
#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/lora/device.cuh"
#include "kernels/cuda/lora/kernels.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;

template <typename T>
struct Matrix {
  T* data;
  int64_t stride;

  explicit Matrix(const TensorView& view)
      : data(static_cast<T*>(view.data)), stride(view.row_stride) {}
  __device__ T* At(int64_t row, int64_t column) const { return data + row * stride + column; }
};

__device__ bool Kept(const PhiloxCounter& lanes, int feature, uint32_t threshold) {
  const uint32_t word = lanes.word[feature % 8 / 2];
  return (feature % 2 == 0 ? word & 0xFFFF : word >> 16) >= threshold;
}

// Zeros in [0, columns) of a row but [begin, end).
template <typename T>
__device__ void ZeroOthers(T* row, int columns, int begin, int end) {
  for (int c = threadIdx.x % kWarpLanes; c < columns; c += kWarpLanes) {
    if (c < begin || c >= end) row[c] = FromFloat<T>(0.0f);
  }
}

// Sums of 16 ranks of one unit over the features of one row; a lane takes every 32nd piece of 8.
template <typename T>
__device__ void DotInput(const LoraInputItem& item, const LoraPair& pair, int first_rank,
                         const T* x, int row, int inputs, float (&sum)[kUnitRanks]) {
  const uint32_t threshold = item.rows.train != 0 ? pair.threshold : 0;
  const T* a = static_cast<const T*>(pair.a) + int64_t{first_rank} * inputs;
  const int ranks = min(kUnitRanks, pair.rank - first_rank);
  for (int begin = 8 * (threadIdx.x % kWarpLanes); begin < inputs; begin += 8 * kWarpLanes) {
    const PhiloxCounter lanes =
        threshold != 0 ? DropoutLanes(item.rows, pair.word0, row, begin) : PhiloxCounter{};
    for (int feature = begin; feature < min(begin + 8, inputs); ++feature) {
      if (threshold != 0 && !Kept(lanes, feature, threshold)) continue;
      const float value = ToFloat(x[feature]);
#pragma unroll
      for (int r = 0; r < kUnitRanks; ++r) {
        if (r < ranks) sum[r] += value * ToFloat(a[int64_t{r} * inputs + feature]);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    InputKernel(LoraTables tables, Matrix<const T> x, Matrix<T> own, Matrix<T> shared) {
  if (static_cast<int>(blockIdx.y) >= tables.input_count) return;
  const LoraInputItem& item = tables.input_items[blockIdx.y];
  const int row = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  if (row >= item.rows.rows) return;
  const int64_t at = item.rows.first_row + row;
  if (item.zeros != 0 && shared.data != nullptr) {
    ZeroOthers(shared.At(at, 0), tables.columns, item.party_begin, item.party_end);
  }
  for (int unit = 0; unit < item.units; ++unit) {
    const LoraUnit& u = tables.units[item.first_unit + unit];
    const LoraPair& pair = tables.pairs[u.pair];
    float sum[kUnitRanks] = {};
    DotInput(item, pair, u.first_rank, x.At(at, 0), row, tables.inputs, sum);
    const bool drops = item.rows.train != 0 && pair.threshold != 0;
    const float scale = drops ? pair.scale * pair.keep_scale : pair.scale;
#pragma unroll
    for (int r = 0; r < kUnitRanks; ++r) {
      const float total = scale * WarpSum(sum[r]);
      if (threadIdx.x % kWarpLanes != 0) continue;
      const int column = unit * kUnitRanks + r;
      if (own.data != nullptr) *own.At(at, item.own_column + column) = FromFloat<T>(total);
      if (shared.data != nullptr) *shared.At(at, item.column + column) = FromFloat<T>(total);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    OutputKernel(LoraTables tables, Matrix<const T> dy, Matrix<T> ds) {
  if (static_cast<int>(blockIdx.y) >= tables.output_count) return;
  const LoraOutputItem& item = tables.output_items[blockIdx.y];
  const int row = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  if (row >= item.rows.rows) return;
  const int64_t at = item.rows.first_row + row;
  if (item.zeros != 0) {
    ZeroOthers(ds.At(at, 0), tables.columns, item.party_begin, item.party_end);
  }
  if (item.units == 0) return;
  const LoraPair& pair = tables.pairs[item.pair];
  const T* b = static_cast<const T*>(pair.b);
  const T* gradient = dy.At(at, pair.first_output);
  for (int first = item.first_rank; first < item.first_rank + item.units * kUnitRanks;
       first += kUnitRanks) {
    const int ranks = min(kUnitRanks, pair.rank - first);
    float sum[kUnitRanks] = {};
    for (int output = threadIdx.x % kWarpLanes; output < pair.outputs; output += kWarpLanes) {
      const float value = ToFloat(gradient[output]);
#pragma unroll
      for (int r = 0; r < kUnitRanks; ++r) {
        if (r < ranks) sum[r] += value * ToFloat(b[output * pair.b_stride + first + r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kUnitRanks; ++r) {
      const float total = pair.scale * WarpSum(sum[r]);
      if (threadIdx.x % kWarpLanes == 0) *ds.At(at, pair.column + first + r) = FromFloat<T>(total);
    }
  }
}

// A thread an output, all ranks of the item.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    GradientBKernel(LoraTables tables, Matrix<const T> dy, Matrix<const T> own) {
  if (static_cast<int>(blockIdx.y) >= tables.output_count) return;
  const LoraOutputItem& item = tables.output_items[blockIdx.y];
  if (item.units == 0 || item.rows.train == 0) return;
  const LoraPair& pair = tables.pairs[item.pair];
  const int output = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (output >= pair.outputs) return;
  bool finite = true;
  for (int unit = 0; unit < item.units; ++unit) {
    const int first = item.first_rank + unit * kUnitRanks;
    float sum[kUnitRanks] = {};
    for (int row = 0; row < item.rows.rows; ++row) {
      const int64_t at = item.rows.first_row + row;
      const float value = ToFloat(*dy.At(at, pair.first_output + output));
      const T* s = own.At(at, pair.own_column + first);
#pragma unroll
      for (int r = 0; r < kUnitRanks; ++r) sum[r] += value * ToFloat(s[r]);
    }
#pragma unroll
    for (int r = 0; r < kUnitRanks; ++r) {
      if (first + r < pair.rank) {
        finite &= AddFixed(pair.db + int64_t{output} * pair.rank + first + r, sum[r]);
      }
    }
  }
  if (!finite) *pair.overflow = 1;
}

// A thread a feature, all ranks of the item.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    GradientAKernel(LoraTables tables, Matrix<const T> x, Matrix<const T> ds,
                    int64_t mask_row_bytes) {
  if (static_cast<int>(blockIdx.y) >= tables.input_count) return;
  const LoraInputItem& item = tables.input_items[blockIdx.y];
  const int feature = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (item.units == 0 || item.rows.train == 0 || feature >= tables.inputs) return;
  for (int unit = 0; unit < item.units; ++unit) {
    const LoraUnit& u = tables.units[item.first_unit + unit];
    const LoraPair& pair = tables.pairs[u.pair];
    float sum[kUnitRanks] = {};
    for (int row = 0; row < item.rows.rows; ++row) {
      const int64_t at = item.rows.first_row + row;
      if (pair.mask != nullptr) {
        const PhiloxCounter lanes = DropoutLanes(item.rows, pair.word0, row, feature);
        if (feature % 8 == 0) {
          pair.mask[at * mask_row_bytes + feature / 8] =
              static_cast<uint8_t>(MaskByte(lanes, pair.threshold));
        }
        if (!Kept(lanes, feature, pair.threshold)) continue;
      }
      const float value = ToFloat(*x.At(at, feature));
      const T* d = ds.At(at, item.column + unit * kUnitRanks);
#pragma unroll
      for (int r = 0; r < kUnitRanks; ++r) sum[r] += value * ToFloat(d[r]);
    }
    const float scale = pair.mask != nullptr ? pair.keep_scale : 1.0f;
    bool finite = true;
#pragma unroll
    for (int r = 0; r < kUnitRanks; ++r) {
      if (u.first_rank + r >= pair.rank) continue;
      finite &=
          AddFixed(pair.da + (int64_t{u.first_rank} + r) * tables.inputs + feature, scale * sum[r]);
    }
    if (!finite) *pair.overflow = 1;
  }
}

dim3 Grid(int64_t x, int x_a_block, int y) {
  return {static_cast<unsigned>((x + x_a_block - 1) / x_a_block), static_cast<unsigned>(y)};
}

}  // namespace

void PlainProjectInput(const LoraTables& tables, const TensorView& x, const TensorView& own,
                       const TensorView& shared, cudaStream_t stream) {
  if (tables.input_count == 0) return;
  ForType(x.dtype, [&]<typename T>(T) {
    InputKernel<T><<<Grid(kChunkTokens, kWarps, tables.input_count), kThreads, 0, stream>>>(
        tables, Matrix<const T>(x), Matrix<T>(own), Matrix<T>(shared));
  });
  LORAD_CUDA_LAUNCHED();
}

void PlainProjectOutput(const LoraTables& tables, const TensorView& dy, const TensorView& own,
                        const TensorView& ds, cudaStream_t stream) {
  if (tables.output_count == 0) return;
  ForType(dy.dtype, [&]<typename T>(T) {
    OutputKernel<T><<<Grid(kChunkTokens, kWarps, tables.output_count), kThreads, 0, stream>>>(
        tables, Matrix<const T>(dy), Matrix<T>(ds));
    LORAD_CUDA_LAUNCHED();
    if (tables.any_train == 0) return;
    GradientBKernel<T>
        <<<Grid(tables.outputs_max, kThreads, tables.output_count), kThreads, 0, stream>>>(
            tables, Matrix<const T>(dy), Matrix<const T>(own));
    LORAD_CUDA_LAUNCHED();
  });
}

void PlainGradientA(const LoraTables& tables, const TensorView& x, const TensorView& ds,
                    int64_t mask_row_bytes, cudaStream_t stream) {
  if (tables.input_count == 0 || tables.any_train == 0) return;
  ForType(x.dtype, [&]<typename T>(T) {
    GradientAKernel<T><<<Grid(tables.inputs, kThreads, tables.input_count), kThreads, 0, stream>>>(
        tables, Matrix<const T>(x), Matrix<const T>(ds), mask_row_bytes);
  });
  LORAD_CUDA_LAUNCHED();
}

}  // namespace lorad::kernels::cuda
