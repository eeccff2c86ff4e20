// Where things lie in one piece of memory, and how sizes are rounded.
#pragma once

#include <cstdint>

namespace lorad::sizes {

constexpr int64_t CeilDivide(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
constexpr int64_t RoundUp(int64_t value, int64_t unit) { return CeilDivide(value, unit) * unit; }

// Every allocation of an arena (kernels/arena.h) begins at a multiple of this and its size counts
// rounded up to it.
inline constexpr int64_t kArenaAlignment = 64;
constexpr int64_t ArenaBytes(int64_t bytes) { return RoundUp(bytes, kArenaAlignment); }

// One thing after another, each rounded up.
class Layout {
 public:
  explicit constexpr Layout(int64_t alignment = kArenaAlignment) : alignment_(alignment) {}

  // Where the next `bytes` lie.
  constexpr int64_t Take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += RoundUp(bytes, alignment_);
    return at;
  }
  constexpr int64_t bytes() const { return bytes_; }

 private:
  int64_t alignment_;
  int64_t bytes_ = 0;
};

}  // namespace lorad::sizes
