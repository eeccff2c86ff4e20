#include "tests/kernels/cuda_cases.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"

namespace lorad::kernels::testing {
namespace {

std::unique_ptr<Backend> Make(DType activation) {
  auto backend = MakeCudaBackend(0, activation);
  INFO(backend.status().ToString());
  REQUIRE(backend.ok());
  return *std::move(backend);
}

// Tells it of every test case that goes over the backends.
bool HasGpu() {
  static const auto facts = [] {
    auto found = ProbeCudaDevice(0);
    if (found.ok()) std::printf("%s\n", Describe(*found).c_str());
    return found;
  }();
  if (!facts.ok()) WARN("skipped: no GPU (" << std::string(facts.status().message()) << ")");
  return facts.ok();
}

}  // namespace

void AppendCudaBackends(std::vector<BackendCase>* backends) {
  if (!HasGpu()) return;
  // Without a family: float32 promises no isolation.
  backends->push_back({"cuda, float32", [] { return Make(DType::kFloat32); }, ""});
  backends->push_back(
      {"cuda, bfloat16", [] { return Make(DType::kBfloat16); }, "cuda bfloat16", true});
}

}  // namespace lorad::kernels::testing
