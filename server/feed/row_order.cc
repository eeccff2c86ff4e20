#include "server/feed/row_order.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace lorad::server::feed {
namespace {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): output n of the
// generator that starts at `start`.
uint64_t SplitMix64(uint64_t start, uint64_t n) {
  uint64_t z = start + (n + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A stream of draws that (seed, epoch) decide.
class Draws {
 public:
  Draws(uint64_t seed, int64_t epoch)
      : start_(SplitMix64(SplitMix64(0x726F77206F726465u, seed), static_cast<uint64_t>(epoch))) {}

  // 0..below-1, each as likely: Lemire, "Fast random integer generation in an interval" (2019).
  uint64_t Below(uint64_t below) {
    unsigned __int128 product = static_cast<unsigned __int128>(Next()) * below;
    if (static_cast<uint64_t>(product) < below) {
      const uint64_t threshold = (0 - below) % below;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<unsigned __int128>(Next()) * below;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t Next() { return SplitMix64(start_, count_++); }

  const uint64_t start_;
  uint64_t count_ = 0;
};

int64_t BatchesOfEpoch(int64_t rows, int64_t batch_size) {
  assert(rows > 0 && batch_size > 0);
  return (rows + batch_size - 1) / batch_size;
}

}  // namespace

std::vector<int64_t> RowOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  Draws draws(seed, epoch);
  for (size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[draws.Below(left)]);
  }
  return order;
}

BatchPlace PlaceOfStep(int64_t rows, int64_t batch_size, int64_t step) {
  assert(step > 0);
  const int64_t batches = BatchesOfEpoch(rows, batch_size);
  const int64_t begin = (step - 1) % batches * batch_size;
  return {(step - 1) / batches, begin, std::min(rows, begin + batch_size)};
}

int64_t TotalSteps(int64_t rows, int64_t batch_size, int64_t epochs, int64_t max_steps) {
  return max_steps > 0 ? max_steps : epochs * BatchesOfEpoch(rows, batch_size);
}

}  // namespace lorad::server::feed
