// The GPU's backends under test.
#pragma once

#include <vector>

#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {

// GPU 0 with float32 and with bfloat16 activations; without a GPU none, and a line says so once.
void AppendCudaBackends(std::vector<BackendCase>* backends);

}  // namespace lorad::kernels::testing
