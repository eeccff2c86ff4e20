// What a GPU keeps up for long. Under load its clock is held down by its power limit, so neither an
// operation timed alone nor the speed of a large product says what a service can reach: whole steps
// without a pause do, beside the step's products with frozen weights alone by cuBLASLt, which spend
// as much power a FLOP.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace lorad::bench {

// A weight W [outputs, inputs].
struct FrozenShape {
  int64_t outputs = 0;
  int64_t inputs = 0;
};

// The products with frozen weights of a step: forward and input gradient of each.
struct FrozenProducts {
  int64_t tokens = 0;
  int64_t layers = 0;
  std::vector<FrozenShape> of_layer;
  FrozenShape head;
};

// An operation of the backend, `times` of which are in a step.
struct SustainedOperation {
  std::string name;
  int64_t times = 0;
  std::function<void()> run;
};

// Runs the frozen products, each by the fastest of cuBLASLt's first eight algorithms, and then
// `step`, each again and again for `seconds`. Prints milliseconds a step, power and clock of the
// second half of each.
void RunSustained(kernels::Backend& backend, const std::vector<std::function<void()>>& step,
                  const FrozenProducts& products, double seconds);

// The energy of a step: each operation, and each frozen product by cuBLASLt and by our own kernel,
// alone for `seconds`: milliseconds, power, joules a step. At the power limit a step takes at least
// its energy over the limit. Last what the matrix units alone spend on all frozen products'
// operations (matrix_units.h).
void RunEnergy(kernels::Backend& backend, const std::vector<SustainedOperation>& operations,
               const FrozenProducts& products, double seconds);

}  // namespace lorad::bench
