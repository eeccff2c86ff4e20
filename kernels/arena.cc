#include "kernels/arena.h"

#include <algorithm>
#include <utility>

namespace lorad::kernels {

Arena::Arena(Device device, void* base, int64_t capacity, std::function<void()> release)
    : device_(device),
      counting_(false),
      base_(static_cast<char*>(base)),
      capacity_(capacity),
      release_(std::move(release)) {
  assert(reinterpret_cast<uintptr_t>(base) % kArenaAlignment == 0);
}

Arena::~Arena() {
  if (release_) release_();
}

void* Arena::Allocate(int64_t bytes) {
  assert(bytes >= 0);
  const int64_t begin = used_;
  used_ += ArenaBytes(bytes);
  used_max_ = std::max(used_max_, used_);
  if (counting_) return nullptr;
  assert(used_ <= capacity_ && "the real pass asked for more than the counting pass");
  return base_ + begin;
}

TensorView Arena::Matrix(int64_t rows, int64_t columns, DType dtype) {
  return {.data = Allocate(rows * columns * BytesOf(dtype)),
          .rows = rows,
          .columns = columns,
          .row_stride = columns,
          .dtype = dtype,
          .device = device_};
}

void Arena::Rewind(int64_t mark) {
  assert(mark >= 0 && mark <= used_);
  used_ = mark;
}

}  // namespace lorad::kernels
