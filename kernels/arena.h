// Memory planned by the code that uses it: the same function runs twice, first over a counting
// arena (which hands out null pointers and adds up), then over a real one of exactly that size. So
// the estimate, the admission test and the allocation are one number.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/tensor.h"
#include "sizes/layout.h"

namespace lorad::kernels {

using sizes::ArenaBytes;
using sizes::kArenaAlignment;

// Hands out memory front to back; frees nothing but what Rewind takes back. Not thread-safe.
class Arena {
 public:
  // A counting arena: no memory, no limit.
  explicit Arena(Device device) : device_(device) {}
  // Over `capacity` bytes at `base` (aligned to kArenaAlignment); `release` is called once at the
  // end.
  Arena(Device device, void* base, int64_t capacity, std::function<void()> release);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Contents are unspecified (zero the first time). A counting arena returns nullptr.
  // REQUIRES: bytes >= 0, and that the plan made with a counting arena asked for at least as much
  // (a CHECK).
  void* Allocate(int64_t bytes);
  template <typename T>
  T* Allocate(int64_t count) {
    return static_cast<T*>(Allocate(count * static_cast<int64_t>(sizeof(T))));
  }
  // A dense matrix [rows, columns]; empty() when counting.
  TensorView Matrix(int64_t rows, int64_t columns, DType dtype = DType::kFloat32);

  // Takes back everything allocated since used() was `mark`: what follows overlaps it in place, not
  // in time.
  void Rewind(int64_t mark);

  bool counting() const { return counting_; }
  int64_t used() const { return used_; }
  // The most that was ever in use: what a real arena for the same calls must hold.
  int64_t bytes_max() const { return used_max_; }

 private:
  const Device device_;
  const bool counting_ = true;
  char* const base_ = nullptr;
  const int64_t capacity_ = 0;
  const std::function<void()> release_;
  int64_t used_ = 0;
  int64_t used_max_ = 0;
};

}  // namespace lorad::kernels
