// Adapters on a device for the tests of the LoRA linear.
#ifndef LORAD_TESTS_KERNELS_LORA_FIXTURE_H_
#define LORAD_TESTS_KERNELS_LORA_FIXTURE_H_

#include <memory>
#include <vector>

#include "tests/kernels/fixture.h"
#include "tests/kernels/reference.h"

namespace lorad::kernels::testing {

// A random adapter over outputs [0, outputs): up to three targets, each over a range of its own.
Adapter RandomAdapter(Random& random, int64_t features, int64_t outputs, int64_t rank_max,
                      double dropout);

std::unique_ptr<Linear> DeviceLinear(World& world, const Matrix& weight, const Matrix& bias);

// One slot's targets in device memory, with zeroed accumulators.
class DeviceAdapter {
 public:
  DeviceAdapter(World& world, AdapterTable& table, int32_t slot, int32_t group,
                const Adapter& adapter);

  Matrix GradientA(size_t target) const {
    return Gradient(targets_[target].da, adapter_[target].a);
  }
  Matrix GradientB(size_t target) const {
    return Gradient(targets_[target].db, adapter_[target].b);
  }
  // Raw accumulators of all targets.
  std::vector<int64_t> Accumulators() const;

 private:
  static Matrix Gradient(const int64_t* accumulator, const Matrix& like);

  Adapter adapter_;
  std::vector<LoraTarget> targets_;
};

}  // namespace lorad::kernels::testing

#endif  // LORAD_TESTS_KERNELS_LORA_FIXTURE_H_
