// The memory that a worker takes beyond the counted bytes (planner/cost/memory.h): allocator,
// libraries, threads, fragmentation. Fitted online per base model and layout to the peaks that
// workers report:
//   Mem = counted + b0 + b1 B L + b2 B L^2,  b >= 0                   (mLoRA 3.4, PLoRA A.1)
// with B L the tokens of the largest microbatch and B L^2 the sum of its squared lengths. Relative
// errors of the whole peak are what is minimized, since that is what admission's margin is a share
// of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/solve/least_squares.h"

namespace lorad::planner {

// Bytes.
struct MemoryCoefficients {
  double constant = 0;  // b0
  double token = 0;     // b1
  double squared = 0;   // b2
};

// A value type; O(1) each operation.
class MemoryFit {
 public:
  // Until so many peaks were seen, b = 0: the counted bytes alone.
  static constexpr int64_t kFittedFrom = 4;

  struct Peak {
    int64_t counted_bytes = 0;  // > 0
    int64_t tokens = 0;
    int64_t squared_lengths = 0;
    int64_t peak_bytes = 0;  // > 0, measured
  };
  // Asserts the ranges named above.
  void Observe(const Peak& peak);
  int64_t observations() const { return fit_.observations(); }
  MemoryCoefficients Fit() const;

  // Predicts the whole peak, in bytes; interval and distance from what was seen as Prediction says.
  Prediction Predict(int64_t counted_bytes, int64_t tokens, int64_t squared_lengths) const;

  // Mean absolute percentage error of the predictions made for each peak before it was
  // observed, from kFittedFrom on, as a share (0.0025 = 0.25 %). NaN before the first of them.
  double mean_error() const;
  std::string ToText() const;

  // All that it knows, to be kept; false where that was never anybody's sums().
  std::vector<double> sums() const;
  bool SetSums(std::vector<double> sums);

 private:
  NonNegativeFit<3> fit_;
  double errors_ = 0;
  int64_t predicted_ = 0;
};

}  // namespace lorad::planner
