#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/cuda_cases.h"
#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {

std::vector<BackendCase> Backends() {
  std::vector<BackendCase> backends = {{"cpu, 1 thread", [] { return MakeCpuBackend(1); }, "cpu"},
                                       {"cpu, 3 threads", [] { return MakeCpuBackend(3); }, "cpu"}};
  AppendCudaBackends(&backends);
  return backends;
}

}  // namespace lorad::kernels::testing
