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

bool HasGpu() {
  static const bool has = [] {
    const auto facts = ProbeCudaDevice(0);
    if (facts.ok()) {
      std::printf("%s\n", Describe(*facts).c_str());
    } else {
      std::printf("cuda: skipped: no GPU (%s)\n", std::string(facts.status().message()).c_str());
    }
    return facts.ok();
  }();
  return has;
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
