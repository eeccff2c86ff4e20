// Memory of one GPU and copies between it and the host.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/arena.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/context.h"

namespace lorad::kernels::cuda {

// Device memory, zero. RESOURCE_EXHAUSTED where there is not enough.
absl::StatusOr<std::unique_ptr<Arena>> MakeDeviceArena(const Context& context, int64_t bytes);
// Pinned memory of the host.
absl::StatusOr<std::unique_ptr<Arena>> MakePinnedArena(int64_t bytes);
// Where kernels write what the host reads: the device's address of pinned memory.
template <typename T>
T* DeviceAddress(T* pinned) {
  void* address = nullptr;
  LORAD_CUDA_CHECK(cudaHostGetDevicePointer(&address, pinned, 0));
  return static_cast<T*>(address);
}

// Copies float32 values through two pinned buffers, rounding to the tensor's type on the way to the
// device and widening on the way back. What is pinned already goes straight where types agree.
class Transfer {
 public:
  explicit Transfer(Context& context);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // host: dense [rows, columns]; read when the call returns.
  void ToDevice(const float* host, const TensorView& view);
  // Enqueued; host: pinned. Of a float32 view.
  void ReadBack(const TensorView& view, float* host);
  // Written when the call returns, after everything that was enqueued.
  void ToHost(const TensorView& view, float* host);

 private:
  // Rows of a view that fit a buffer; at least one.
  int64_t RowsAtOnce(const TensorView& view) const;

  static constexpr int kBuffers = 2;

  Context& context_;
  std::array<void*, kBuffers> buffers_ = {};
  std::array<Event, kBuffers> copied_;
  int next_ = 0;
};

// The open mapping of a weight: float32 values in the host's memory, and where they go. The memory
// serves one mapping after another, for a model brings gigabytes of them and the system clears
// every page it gives; Release lets it go.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { Release(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Contents are unspecified. REQUIRES: none is open.
  float* Open(const TensorView& to);
  void Close(Transfer& transfer);
  // REQUIRES: none is open.
  void Release();

 private:
  float* values_ = nullptr;
  int64_t capacity_ = 0;
  TensorView to_ = {};
};

}  // namespace lorad::kernels::cuda
