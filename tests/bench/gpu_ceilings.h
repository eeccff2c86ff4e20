// What a GPU can do at most, measured: the limits that benchmarks print beside their figures.
#pragma once

#include <functional>

#include "kernels/backend.h"

namespace lorad::bench {

struct Ceilings {
  double product_flops = 0;  // a second: bfloat16 product of 8192 x 8192 x 8192 by cuBLASLt
  double copy_bytes = 0;     // a second, read plus written: a copy of 2 GiB on the device
};

// On the current device; prints both.
Ceilings MeasureCeilings();

// Median of 5 of the mean time of as many calls as take about 20 ms.
double MedianMs(kernels::Backend& backend, const std::function<void()>& run);

}  // namespace lorad::bench
