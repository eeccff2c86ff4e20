#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/rowwise/rowwise.h"

// Embedding, casts, and the gradient of the loss: rows copied from elsewhere.
namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;

dim3 Grid(int64_t rows, int64_t columns) {
  const int64_t units = (columns + kUnit - 1) / kUnit;
  // Rows along x: it alone reaches beyond 65535.
  return dim3(static_cast<unsigned int>(rows),
              static_cast<unsigned int>((units + kThreads - 1) / kThreads));
}

__device__ int FirstColumn() { return (blockIdx.y * kThreads + threadIdx.x) * kUnit; }

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) CastKernel(Rows<const From> from, int64_t from_rows,
                                                       int from_columns, Rows<To> to, int columns) {
  ptx::TakeTurn();
  const int first = FirstColumn();
  if (first >= columns) return;
  Unit unit = {};
  if (blockIdx.x < from_rows && first < from_columns) {
    unit = LoadUnit(from.row(blockIdx.x), first, from_columns, from.aligned);
  }
  StoreUnit(unit, to.row(blockIdx.x), first, columns, to.aligned);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const int32_t* ids, Rows<const T> weight, float factor, Rows<T> x, int columns) {
  ptx::TakeTurn();
  const int first = FirstColumn();
  if (first >= columns) return;
  Unit unit = LoadUnit(weight.row(ids[blockIdx.x]), first, columns, weight.aligned);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) unit.value[i] *= factor;
  StoreUnit(unit, x.row(blockIdx.x), first, columns, x.aligned);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AddKernel(Rows<const T> x, Rows<T> y, int columns) {
  ptx::TakeTurn();
  const int first = FirstColumn();
  if (first >= columns) return;
  const Unit addend = LoadUnit(x.row(blockIdx.x), first, columns, x.aligned);
  Unit sum = LoadUnit(y.row(blockIdx.x), first, columns, y.aligned);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) sum.value[i] += addend.value[i];
  StoreUnit(sum, y.row(blockIdx.x), first, columns, y.aligned);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    LossBackwardKernel(const int32_t* loss_of_row, const float* weights, Rows<const T> unit_rows,
                       Rows<T> dx, int columns) {
  ptx::TakeTurn();
  const int first = FirstColumn();
  if (first >= columns) return;
  const int loss = loss_of_row[blockIdx.x];
  Unit unit = {};
  if (loss >= 0) {
    unit = LoadUnit(unit_rows.row(loss), first, columns, unit_rows.aligned);
    const float weight = weights[loss];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) unit.value[i] *= weight;
  }
  StoreUnit(unit, dx.row(blockIdx.x), first, columns, dx.aligned);
}

}  // namespace

void Zero(cudaStream_t stream, const TensorView& x) {
  if (x.elements() == 0) return;
  const int64_t bytes = BytesOf(x.dtype);
  LORAD_CUDA_CHECK(cudaMemset2DAsync(x.data, static_cast<size_t>(x.row_stride * bytes), 0,
                                     static_cast<size_t>(x.columns * bytes),
                                     static_cast<size_t>(x.rows), stream));
}

void Cast(cudaStream_t stream, const TensorView& from, const TensorView& to) {
  assert(to.rows >= from.rows && to.columns >= from.columns);
  if (to.elements() == 0) return;
  ForType(from.dtype, [&]<typename From>(From) {
    ForType(to.dtype, [&]<typename To>(To) {
      LaunchKernel(CastKernel<From, To>,
                   {.grid = Grid(to.rows, to.columns), .threads = kThreads, .early = true}, stream,
                   RowsOf<const From>(from), from.rows, static_cast<int>(from.columns),
                   RowsOf<To>(to), static_cast<int>(to.columns));
    });
  });
}

void Embed(cudaStream_t stream, const BatchTables& batch, const TensorView& weight, float factor,
           const TensorView& x) {
  assert(x.rows == batch.tokens && x.columns == weight.columns && x.dtype == weight.dtype);
  if (x.elements() == 0) return;
  ForType(x.dtype, [&]<typename T>(T) {
    LaunchKernel(EmbedKernel<T>,
                 {.grid = Grid(x.rows, x.columns), .threads = kThreads, .early = true}, stream,
                 batch.ids, RowsOf<const T>(weight), factor, RowsOf<T>(x),
                 static_cast<int>(x.columns));
  });
}

void Add(cudaStream_t stream, const TensorView& x, const TensorView& y) {
  assert(x.dtype == y.dtype && x.rows == y.rows && x.columns == y.columns);
  if (x.elements() == 0) return;
  ForType(x.dtype, [&]<typename T>(T) {
    LaunchKernel(AddKernel<T>,
                 {.grid = Grid(x.rows, x.columns), .threads = kThreads, .early = true}, stream,
                 RowsOf<const T>(x), RowsOf<T>(y), static_cast<int>(x.columns));
  });
}

void LossBackward(cudaStream_t stream, const BatchTables& batch, const float* weights,
                  const TensorView& unit, const TensorView& dx) {
  assert(dx.rows == batch.tokens);
  assert(batch.loss_count == 0 || (unit.dtype == dx.dtype && unit.columns == dx.columns));
  if (dx.elements() == 0) return;
  TensorView rows = unit;
  if (batch.loss_count == 0) rows.dtype = dx.dtype;  // of no rows, and none is read
  ForType(dx.dtype, [&]<typename T>(T) {
    LaunchKernel(LossBackwardKernel<T>,
                 {.grid = Grid(dx.rows, dx.columns), .threads = kThreads, .early = true}, stream,
                 batch.loss_of_row, weights, RowsOf<const T>(rows), RowsOf<T>(dx),
                 static_cast<int>(dx.columns));
  });
}

}  // namespace lorad::kernels::cuda
