#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/rowwise/rowwise.h"
#include "kernels/cuda/rowwise/swiglu.cuh"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, Gate kGate>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(Rows<const T> gate_up, Rows<T> y, int size) {
  ptx::TakeTurn();
  const int first = (blockIdx.x * kThreads + threadIdx.x) * kUnit;
  if (first >= size) return;
  const T* row = gate_up.row(blockIdx.y);
  const Unit g = LoadUnit(row, first, size, gate_up.aligned);
  const Unit u = LoadUnit(row + size, first, size, gate_up.aligned);
  Unit result;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    result.value[i] = SwiGluOf<kGate>(g.value[i], u.value[i]);
  }
  StoreUnit(result, y.row(blockIdx.y), first, size, y.aligned);
}

// dgate_up may be gate_up: a thread reads its units of both halves before it writes them.
template <typename T, Gate kGate>
__global__ void __launch_bounds__(kThreads)
    SwiGluBackwardKernel(Rows<const T> gate_up, Rows<const T> dy, Rows<T> dgate_up, int size) {
  ptx::TakeTurn();
  const int first = (blockIdx.x * kThreads + threadIdx.x) * kUnit;
  if (first >= size) return;
  const T* row = gate_up.row(blockIdx.y);
  const Unit g = LoadUnit(row, first, size, gate_up.aligned);
  const Unit u = LoadUnit(row + size, first, size, gate_up.aligned);
  const Unit d = LoadUnit(dy.row(blockIdx.y), first, size, dy.aligned);
  Unit dg;
  Unit du;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const SwiGluGradients gradients = SwiGluGradientsOf<kGate>(g.value[i], u.value[i], d.value[i]);
    dg.value[i] = gradients.gate;
    du.value[i] = gradients.up;
  }
  T* gradient = dgate_up.row(blockIdx.y);
  StoreUnit(dg, gradient, first, size, dgate_up.aligned);
  StoreUnit(du, gradient + size, first, size, dgate_up.aligned);
}

dim3 Grid(int64_t rows, int64_t size) {
  assert(rows < 65536);
  const int64_t units = (size + kUnit - 1) / kUnit;
  return dim3(static_cast<unsigned int>((units + kThreads - 1) / kThreads),
              static_cast<unsigned int>(rows));
}

// Both halves of the row must allow words.
template <typename T>
Rows<T> HalvesOf(const TensorView& view) {
  Rows<T> rows = RowsOf<T>(view);
  rows.aligned = rows.aligned && view.columns / 2 % kUnit == 0;
  return rows;
}

}  // namespace

void SwiGlu(cudaStream_t stream, const TensorView& gate_up, const TensorView& y, Gate gate) {
  assert(gate_up.dtype == y.dtype && gate_up.rows == y.rows && gate_up.columns == 2 * y.columns);
  if (y.elements() == 0) return;
  ForType(y.dtype, [&]<typename T>(T) {
    LaunchKernel(
        gate == Gate::kSilu ? SwiGluKernel<T, Gate::kSilu> : SwiGluKernel<T, Gate::kGeluTanh>,
        {.grid = Grid(y.rows, y.columns), .threads = kThreads, .early = true}, stream,
        HalvesOf<const T>(gate_up), RowsOf<T>(y), static_cast<int>(y.columns));
  });
}

void SwiGluBackward(cudaStream_t stream, const TensorView& gate_up, const TensorView& dy,
                    const TensorView& dgate_up, Gate gate) {
  assert(gate_up.dtype == dy.dtype && gate_up.dtype == dgate_up.dtype);
  assert(gate_up.rows == dy.rows && gate_up.columns == 2 * dy.columns);
  assert(gate_up.rows == dgate_up.rows && gate_up.columns == dgate_up.columns);
  if (dy.elements() == 0) return;
  ForType(dy.dtype, [&]<typename T>(T) {
    LaunchKernel(gate == Gate::kSilu ? SwiGluBackwardKernel<T, Gate::kSilu>
                                     : SwiGluBackwardKernel<T, Gate::kGeluTanh>,
                 {.grid = Grid(dy.rows, dy.columns), .threads = kThreads, .early = true}, stream,
                 HalvesOf<const T>(gate_up), RowsOf<const T>(dy), HalvesOf<T>(dgate_up),
                 static_cast<int>(dy.columns));
  });
}

}  // namespace lorad::kernels::cuda
