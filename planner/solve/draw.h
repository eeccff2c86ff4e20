// Numbers drawn for scenarios and loads: the same numbers on every machine for the same seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lorad::planner {

// exp(N(log median, sigma^2)) rounded down, drawn again until it lies in min .. max.
struct LogNormal {
  double median = 0;
  double sigma = 0;  // of the logarithm
  int64_t min = 1;
  int64_t max = 1;
};

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), and
// normal numbers by Box and Muller's method.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  double Uniform();  // 0 < u < 1
  double Normal();
  double Exponential(double mean);
  // An index, with a chance in proportion to its share. REQUIRES: some share is above 0.
  size_t Pick(const std::vector<double>& shares);
  // One of `kinds` (not empty) with equal chance each, then a length of it. After 32 draws
  // outside min .. max the nearer end is taken.
  int64_t Length(const std::vector<LogNormal>& kinds);

 private:
  uint64_t state_;
};

}  // namespace lorad::planner
