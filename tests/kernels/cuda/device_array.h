// What the tests of single CUDA operations share: arrays of device memory, bf16 on the host, random
// numbers that depend on a seed alone.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/device/check.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda::testing {

inline int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// To nearest, ties to even.
inline uint16_t ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// splitmix64; about normal: the sum of four uniform numbers, with standard deviation 1.
class Source {
 public:
  explicit Source(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 1) {}
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  float Normal() {
    const uint64_t bits = Next();
    const double sum = static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                           (bits >> 32 & 0xffff) + (bits >> 48));
    return static_cast<float>((sum / 65536 - 2) * std::sqrt(3.0));
  }
  int64_t Integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  uint64_t state_;
};

// A dense matrix in device memory, read and written as float32 whatever its type.
class DeviceMatrix {
 public:
  DeviceMatrix(int64_t rows, int64_t columns, DType dtype) {
    LORAD_CUDA_CHECK(
        cudaMalloc(&view_.data, static_cast<size_t>(rows * columns * BytesOf(dtype) + 256)));
    view_.rows = rows;
    view_.columns = columns;
    view_.row_stride = columns;
    view_.dtype = dtype;
    view_.device = Device::kCuda;
  }
  ~DeviceMatrix() { cudaFree(view_.data); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  const TensorView& view() const { return view_; }
  size_t bytes() const { return static_cast<size_t>(view_.elements() * BytesOf(view_.dtype)); }

  void Write(const std::vector<float>& values) {
    std::vector<uint16_t> rounded;
    const void* from = values.data();
    if (view_.dtype == DType::kBfloat16) {
      for (const float value : values) rounded.push_back(ToBfloat16(value));
      from = rounded.data();
    }
    LORAD_CUDA_CHECK(cudaMemcpy(view_.data, from, bytes(), cudaMemcpyHostToDevice));
    // A short copy may still be under way, and the operations' streams do not wait for it.
    LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<float> Read() const {
    LORAD_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<float> values(static_cast<size_t>(view_.elements()));
    if (view_.dtype == DType::kFloat32) {
      LORAD_CUDA_CHECK(cudaMemcpy(values.data(), view_.data, bytes(), cudaMemcpyDeviceToHost));
      return values;
    }
    std::vector<uint16_t> rounded(values.size());
    LORAD_CUDA_CHECK(cudaMemcpy(rounded.data(), view_.data, bytes(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < values.size(); ++i) values[i] = FromBfloat16(rounded[i]);
    return values;
  }

 private:
  TensorView view_;
};

// Bytes of device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes) : bytes_(bytes) {
    LORAD_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(bytes) + 256));
    // Every bit set: NaN in any floating type.
    LORAD_CUDA_CHECK(cudaMemset(data_, 0xff, static_cast<size_t>(bytes)));
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

// Milliseconds of `call` on `stream`: the median of 5 rounds of `calls` calls, after a warm-up.
template <typename Call>
double MedianMs(cudaStream_t stream, int calls, const Call& call) {
  constexpr int kRounds = 5;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  LORAD_CUDA_CHECK(cudaEventCreate(&begin));
  LORAD_CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) call();
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    LORAD_CUDA_CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < calls; ++i) call();
    LORAD_CUDA_CHECK(cudaEventRecord(end, stream));
    LORAD_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(static_cast<double>(ms) / calls);
  }
  LORAD_CUDA_CHECK(cudaEventDestroy(begin));
  LORAD_CUDA_CHECK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[kRounds / 2];
}

// |got - want| / |want|, Frobenius; NaN counts as infinite.
inline double RelativeError(const std::vector<double>& want, const std::vector<float>& got) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    norm += want[i] * want[i];
  }
  const double error = std::sqrt(difference / (norm + 1e-300));
  return std::isfinite(error) ? error : INFINITY;
}

// Same bits, NaN included.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}

}  // namespace lorad::kernels::cuda::testing
