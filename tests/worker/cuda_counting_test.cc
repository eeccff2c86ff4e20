// What the planner estimates for a GPU is what the CUDA backend's own layout takes of the engine's
// arenas, byte for byte, counted without a GPU.
#include <catch2/catch.hpp>

#include "tests/worker/counting_cuda_backend.h"
#include "tests/worker/cuda_memory_cases.h"

namespace lorad::worker {
namespace {

TEST_CASE("a group and a slot are counted for a GPU as the planner says, where there is none") {
  for (const kernels::DType type : {kernels::DType::kBfloat16, kernels::DType::kFloat32}) {
    // Of none, of a seventh of an H100, of an A100, of an H100.
    for (const int multiprocessors : {0, 16, 108, 132}) {
      kernels::CountingCudaBackend backend(type, multiprocessors);
      CheckCudaMemory(backend, multiprocessors);
    }
  }
}

}  // namespace
}  // namespace lorad::worker
