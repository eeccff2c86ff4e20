// The GPU's backends under test.
#ifndef LORAD_TESTS_KERNELS_CUDA_CASES_H_
#define LORAD_TESTS_KERNELS_CUDA_CASES_H_

#include <vector>

#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {

// GPU 0 with float32 and with bfloat16 activations; without a GPU none, and a line says so once.
void AppendCudaBackends(std::vector<BackendCase>* backends);

}  // namespace lorad::kernels::testing

#endif  // LORAD_TESTS_KERNELS_CUDA_CASES_H_
