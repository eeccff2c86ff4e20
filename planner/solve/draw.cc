#include "planner/solve/draw.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>
#include <numeric>

namespace lorad::planner {

uint64_t Draw::Next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double Draw::Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }

double Draw::Normal() {
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

double Draw::Exponential(double mean) { return -mean * std::log(Uniform()); }

size_t Draw::Pick(const std::vector<double>& shares) {
  double left = Uniform() * std::accumulate(shares.begin(), shares.end(), 0.0);
  size_t last = 0;  // with a share: rounding may leave a little
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] <= 0) continue;
    last = i;
    left -= shares[i];
    if (left < 0) break;
  }
  return last;
}

int64_t Draw::Length(const std::vector<LogNormal>& kinds) {
  assert(!kinds.empty());
  const LogNormal& kind = kinds[Next() % kinds.size()];
  double length = 0;
  for (int i = 0; i < 32; ++i) {
    length = kind.median * std::exp(kind.sigma * Normal());
    if (length >= static_cast<double>(kind.min) && length < static_cast<double>(kind.max) + 1) {
      return static_cast<int64_t>(length);
    }
  }
  return length < static_cast<double>(kind.min) ? kind.min : kind.max;
}

}  // namespace lorad::planner
