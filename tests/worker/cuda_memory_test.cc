// What the planner estimates for a GPU is what the engine's arenas take there, byte for byte. Skips
// where there is no GPU; cuda_counting_test needs none.
#include <catch2/catch.hpp>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "tests/worker/cuda_memory_cases.h"

namespace lorad::worker {
namespace {

TEST_CASE("a group and a slot on a GPU take what the planner says") {
  const auto facts = kernels::ProbeCudaDevice(0);
  if (!facts.ok()) {
    WARN("skipped: " << std::string(facts.status().message()));
    return;
  }
  for (const kernels::DType type : {kernels::DType::kBfloat16, kernels::DType::kFloat32}) {
    const auto backend = kernels::MakeCudaBackend(0, type);
    REQUIRE(backend.ok());
    CheckCudaMemory(**backend, facts->multiprocessors);
  }
}

}  // namespace
}  // namespace lorad::worker
