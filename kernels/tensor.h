// Tensors as every operation sees them: a pointer, a shape, a row stride. Nothing here owns memory.
//
// Legend of letters, in this room and wherever a shape is written down:
//   B  sequences of a microbatch      T  tokens (rows) of a microbatch   H  hidden size
//   F  feed-forward size              N  query heads                     G  key-value heads
//   D  head size                      V  vocabulary                      R  rank of an adapter
//   K  input features of a linear     O  its output features             P  positions
//   n  trained rows of a microbatch (rows whose next token counts in the loss)
#pragma once

#include <cassert>
#include <cstdint>

namespace lorad::kernels {

enum class DType : uint8_t { kFloat32, kBfloat16 };
enum class Device : uint8_t { kCpu, kCuda };

constexpr int64_t BytesOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// A matrix [rows, columns]. The innermost stride is 1; rows may be longer than their width
// (row_stride >= columns). A vector of length L is [1, L]; heads are a subdivision of the columns
// ([T, N*D], head h at columns h*D...). The view does not own its memory and says nothing about
// constness: an operation documents what it writes.
struct TensorView {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;

  bool empty() const { return data == nullptr; }
  int64_t elements() const { return rows * columns; }

  // REQUIRES: dtype is kFloat32.
  float* f32() const {
    assert(dtype == DType::kFloat32);
    return static_cast<float*>(data);
  }
  float* row(int64_t index) const { return f32() + index * row_stride; }

  // REQUIRES: the range lies inside the view. A view of nothing (counting pass) stays one of
  // nothing.
  TensorView Rows(int64_t first, int64_t count) const {
    assert(first >= 0 && count >= 0 && first + count <= rows);
    TensorView view = *this;
    view.rows = count;
    if (data != nullptr) view.data = At(first, 0);
    return view;
  }
  TensorView Columns(int64_t first, int64_t count) const {
    assert(first >= 0 && count >= 0 && first + count <= columns);
    TensorView view = *this;
    view.columns = count;
    if (data != nullptr) view.data = At(0, first);
    return view;
  }

 private:
  void* At(int64_t row_index, int64_t column) const {
    return static_cast<char*>(data) + (row_index * row_stride + column) * BytesOf(dtype);
  }
};

// A dense float32 matrix on the host.
inline TensorView HostMatrix(float* data, int64_t rows, int64_t columns) {
  return {.data = data, .rows = rows, .columns = columns, .row_stride = columns};
}

}  // namespace lorad::kernels
