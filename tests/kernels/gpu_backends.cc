// The GPU's backends alone: for GPU machines without the libraries of the CPU's.
#include "tests/kernels/cuda_cases.h"
#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {

std::vector<BackendCase> Backends() {
  std::vector<BackendCase> backends;
  AppendCudaBackends(&backends);
  return backends;
}

}  // namespace lorad::kernels::testing
