#include <cuda_bf16.h>

#include "kernels/cuda/device/check.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint16_t kPattern16 = 0x7fdb;
constexpr uint32_t kPattern32 = 0x7fdb7fdb;
constexpr int64_t kRowsAround = 3;
constexpr int64_t kColumnsBeside = 8;

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ int64_t Index() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__device__ uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ double Get(const TensorView& view, int64_t row, int64_t column) {
  const int64_t i = row * view.row_stride + column;
  if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data)[i];
  return __bfloat162float(static_cast<const __nv_bfloat16*>(view.data)[i]);
}
__device__ void Put(const TensorView& view, int64_t row, int64_t column, float value) {
  const int64_t i = row * view.row_stride + column;
  if (view.dtype == DType::kFloat32) {
    static_cast<float*>(view.data)[i] = value;
  } else {
    static_cast<__nv_bfloat16*>(view.data)[i] = __float2bfloat16_rn(value);
  }
}
__device__ uint32_t Bits(const TensorView& view, int64_t row, int64_t column) {
  const int64_t i = row * view.row_stride + column;
  if (view.dtype == DType::kFloat32) return static_cast<const uint32_t*>(view.data)[i];
  return static_cast<const uint16_t*>(view.data)[i];
}

__global__ void FillRandomKernel(TensorView view, float scale, uint64_t seed) {
  const int64_t i = Index();
  if (i >= view.rows * view.columns) return;
  const uint64_t bits = Mix(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i));
  float sum = 0;  // of four uniforms: variance 4 / 12
  for (int k = 0; k < 4; ++k) sum += static_cast<float>((bits >> (16 * k)) & 0xffff) / 65536 - 0.5f;
  Put(view, i / view.columns, i % view.columns, scale * 1.7320508f * sum);
}

__global__ void FillConstantKernel(TensorView view, float value) {
  const int64_t i = Index();
  if (i < view.rows * view.columns) Put(view, i / view.columns, i % view.columns, value);
}

__global__ void FillPatternKernel(uint32_t* words, int64_t count) {
  const int64_t i = Index();
  if (i < count) words[i] = kPattern32;
}

__global__ void FillBitsKernel(uint32_t* words, int64_t count, uint64_t seed) {
  const int64_t i = Index();
  if (i < count) words[i] = static_cast<uint32_t>(Mix(seed + static_cast<uint64_t>(i)) >> 20);
}

__global__ void CopyKernel(TensorView from, TensorView to) {
  const int64_t i = Index();
  if (i >= to.rows * to.columns) return;
  Put(to, i / to.columns, i % to.columns,
      static_cast<float>(Get(from, i / to.columns, i % to.columns)));
}

__global__ void CountDifferentKernel(TensorView a, TensorView b, unsigned long long* count) {
  const int64_t i = Index();
  if (i >= a.rows * a.columns) return;
  const int64_t row = i / a.columns;
  const int64_t column = i % a.columns;
  if (Bits(a, row, column) != Bits(b, row, column)) atomicAdd(count, 1ull);
}

// all: the whole buffer; inside: rows [kRowsAround, kRowsAround + rows), columns below `columns`.
__global__ void CountBrokenKernel(TensorView all, int64_t rows, int64_t columns,
                                  unsigned long long* count) {
  const int64_t i = Index();
  if (i >= all.rows * all.columns) return;
  const int64_t row = i / all.columns - kRowsAround;
  const int64_t column = i % all.columns;
  const bool inside = row >= 0 && row < rows && column < columns;
  const uint32_t pattern = all.dtype == DType::kFloat32 ? kPattern32 : kPattern16;
  const bool untouched = Bits(all, row + kRowsAround, column) == pattern;
  if (inside == untouched) atomicAdd(count, 1ull);
}

__device__ bool Kept(const LowRankTerm& term, int64_t row, int64_t column) {
  if (term.mask_words == nullptr) return true;
  return (term.mask_words[row * term.mask_row_words + column / 32] >> (column % 32)) & 1;
}

__device__ void AddTerm(const GemmArguments& arguments, const LowRankTerm& term, Sample at,
                        Expected& sum) {
  const int64_t output = at.column - term.first_output;
  if (output < 0 || output >= term.outputs || !Kept(term, at.row, at.column)) return;
  const bool forward = arguments.product == Product::kForward;
  const TensorView factor = {.data = const_cast<void*>(term.factor),
                             .rows = 0,
                             .columns = 0,
                             .row_stride = term.factor_stride,
                             .dtype = arguments.x.dtype};
  const double scale = forward ? 1.0 : static_cast<double>(term.mask_scale);
  for (int r = 0; r < term.rank; ++r) {
    const double s = Get(arguments.coefficients, at.row, term.first_column + r);
    if (s == 0) continue;
    const double f = forward ? Get(factor, output, r) : Get(factor, r, output);
    sum.value += scale * s * f;
    sum.magnitude += fabs(scale * s * f);
  }
}

// A block a sample.
__global__ void CompareKernel(GemmArguments arguments, TensorView residual, const Sample* samples,
                              Expected* out) {
  __shared__ double values[kThreads];
  __shared__ double magnitudes[kThreads];
  const Sample at = samples[blockIdx.x];
  const bool forward = arguments.product == Product::kForward;
  double value = 0;
  double magnitude = 0;
  for (int64_t k = threadIdx.x; k < arguments.x.columns; k += kThreads) {
    const double w =
        forward ? Get(arguments.weight, at.column, k) : Get(arguments.weight, k, at.column);
    const double product = Get(arguments.x, at.row, k) * w;
    value += product;
    magnitude += fabs(product);
  }
  values[threadIdx.x] = value;
  magnitudes[threadIdx.x] = magnitude;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Expected sum = {};
  for (int i = 0; i < kThreads; ++i) {
    sum.value += values[i];
    sum.magnitude += magnitudes[i];
  }
  if (arguments.bias.data != nullptr) sum.value += Get(arguments.bias, 0, at.column);
  if (residual.data != nullptr) sum.value += Get(residual, at.row, at.column);
  for (int i = 0; i < arguments.terms.count; ++i) {
    AddTerm(arguments, arguments.terms.terms[i], at, sum);
  }
  sum.got = Get(arguments.y, at.row, at.column);
  out[blockIdx.x] = sum;
}

int64_t ReadCount(const DeviceArray<unsigned long long>& count) {
  unsigned long long host = 0;
  LORAD_CUDA_CHECK(cudaMemcpy(&host, count.data(), sizeof(host), cudaMemcpyDeviceToHost));
  return static_cast<int64_t>(host);
}

}  // namespace

DeviceMemory::DeviceMemory(int64_t bytes) {
  LORAD_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(bytes > 0 ? bytes : 1)));
}
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

OwnedMatrix::OwnedMatrix(int64_t rows, int64_t columns, float scale) : OwnedMatrix(rows, columns) {
  FillRandom(view, scale, static_cast<uint64_t>(rows * 31 + columns));
}

Fenced::Fenced(int64_t rows, int64_t columns, DType dtype)
    : stride_((columns + 7) / 8 * 8 + kColumnsBeside),
      rows_(rows + 2 * kRowsAround),
      dtype_(dtype),
      memory_(rows_ * stride_ * BytesOf(dtype)) {
  view_ = {.data = static_cast<char*>(memory_.data()) + kRowsAround * stride_ * BytesOf(dtype),
           .rows = rows,
           .columns = columns,
           .row_stride = stride_,
           .dtype = dtype,
           .device = Device::kCuda};
  Poison();
}

void Fenced::Poison() {
  const int64_t words = rows_ * stride_ * BytesOf(dtype_) / 4;
  FillPatternKernel<<<Blocks(words), kThreads>>>(static_cast<uint32_t*>(memory_.data()), words);
  LORAD_CUDA_LAUNCHED();
}

int64_t Fenced::CountBroken() const {
  const TensorView all = {.data = memory_.data(),
                          .rows = rows_,
                          .columns = stride_,
                          .row_stride = stride_,
                          .dtype = dtype_,
                          .device = Device::kCuda};
  const DeviceArray<unsigned long long> count(std::vector<unsigned long long>{0});
  CountBrokenKernel<<<Blocks(rows_ * stride_), kThreads>>>(all, view_.rows, view_.columns,
                                                           count.data());
  LORAD_CUDA_LAUNCHED();
  return ReadCount(count);
}

void FillRandom(const TensorView& view, float scale, uint64_t seed) {
  if (view.elements() == 0) return;
  FillRandomKernel<<<Blocks(view.elements()), kThreads>>>(view, scale, seed);
  LORAD_CUDA_LAUNCHED();
}

void FillConstant(const TensorView& view, float value) {
  if (view.elements() == 0) return;
  FillConstantKernel<<<Blocks(view.elements()), kThreads>>>(view, value);
  LORAD_CUDA_LAUNCHED();
}

void FillRandomBits(uint32_t* words, int64_t count, uint64_t seed) {
  FillBitsKernel<<<Blocks(count), kThreads>>>(words, count, seed);
  LORAD_CUDA_LAUNCHED();
}

void CopyMatrix(const TensorView& from, const TensorView& to) {
  if (to.elements() == 0) return;
  CopyKernel<<<Blocks(to.elements()), kThreads>>>(from, to);
  LORAD_CUDA_LAUNCHED();
}

int64_t CountDifferent(const TensorView& a, const TensorView& b) {
  const DeviceArray<unsigned long long> count(std::vector<unsigned long long>{0});
  CountDifferentKernel<<<Blocks(a.elements()), kThreads>>>(a, b, count.data());
  LORAD_CUDA_LAUNCHED();
  return ReadCount(count);
}

std::vector<Expected> Compare(const GemmArguments& arguments, const TensorView& residual,
                              const std::vector<Sample>& samples) {
  const DeviceArray<Sample> device_samples(samples);
  std::vector<Expected> out(samples.size());
  const DeviceArray<Expected> device_out(out);
  CompareKernel<<<static_cast<unsigned>(samples.size()), kThreads>>>(
      arguments, residual, device_samples.data(), device_out.data());
  LORAD_CUDA_LAUNCHED();
  LORAD_CUDA_CHECK(cudaMemcpy(out.data(), device_out.data(), out.size() * sizeof(Expected),
                              cudaMemcpyDeviceToHost));
  return out;
}

}  // namespace lorad::kernels::cuda
