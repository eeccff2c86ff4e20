// What the tests and timings of products on the GPU share: random matrices, a float64 reference of
// single elements, sentinels and comparisons, all computed on the device by code of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/gemm/gemm.h"

namespace lorad::kernels::cuda {

// Device memory that is freed at the end.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// A matrix of bfloat16 in memory of its own.
struct OwnedMatrix {
  OwnedMatrix(int64_t rows, int64_t columns)
      : memory(rows * columns * BytesOf(DType::kBfloat16)),
        view{.data = memory.data(),
             .rows = rows,
             .columns = columns,
             .row_stride = columns,
             .dtype = DType::kBfloat16,
             .device = Device::kCuda} {}
  // FillRandom.
  OwnedMatrix(int64_t rows, int64_t columns, float scale);

  DeviceMemory memory;
  TensorView view;
};

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host)
      : memory_(static_cast<int64_t>(host.size() * sizeof(T))) {
    if (host.empty()) return;
    LORAD_CUDA_CHECK(
        cudaMemcpy(memory_.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  T* data() const { return static_cast<T*>(memory_.data()); }

 private:
  DeviceMemory memory_;
};

// A matrix inside a larger buffer: its rows are longer than its width, and there are rows before
// and after; all of that holds a pattern (a NaN) that nobody may read or change.
class Fenced {
 public:
  Fenced(int64_t rows, int64_t columns, DType dtype);
  const TensorView& view() const { return view_; }
  // The pattern everywhere, inside too.
  void Poison();
  // Elements outside the view that are no longer the pattern, and inside that still are.
  int64_t CountBroken() const;

 private:
  int64_t stride_;
  int64_t rows_;
  DType dtype_;
  DeviceMemory memory_;
  TensorView view_;
};

// Values of mean 0 and standard deviation `scale`.
void FillRandom(const TensorView& view, float scale, uint64_t seed);
void FillConstant(const TensorView& view, float value);
void FillRandomBits(uint32_t* words, int64_t count, uint64_t seed);
// to = from, in the type of each.
void CopyMatrix(const TensorView& from, const TensorView& to);
// Elements whose bits differ.
int64_t CountDifferent(const TensorView& a, const TensorView& b);

struct Sample {
  int32_t row;
  int32_t column;
};
struct Expected {
  double value;      // exact but for float64
  double magnitude;  // the same sum over absolute values
  double got;        // y
};
// residual: what it was before the product. Terms whose coefficients are all zero in a row count
// nothing there, whatever their list says.
std::vector<Expected> Compare(const GemmArguments& arguments, const TensorView& residual,
                              const std::vector<Sample>& samples);

}  // namespace lorad::kernels::cuda
