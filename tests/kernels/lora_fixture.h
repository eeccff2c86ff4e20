// Adapters on a device for the tests of the LoRA linear.
#pragma once

#include <memory>
#include <vector>

#include "tests/kernels/fixture.h"
#include "tests/kernels/reference.h"

namespace lorad::kernels::testing {

// A random adapter over outputs [0, outputs): up to three targets, each over a range of its own.
// Matrices are exact in the activation type.
Adapter RandomAdapter(const World& world, Random& random, int64_t features, int64_t outputs,
                      int64_t rank_max, double dropout);

std::unique_ptr<Linear> DeviceLinear(World& world, const Matrix& weight, const Matrix& bias);

// One slot's targets in device memory, with its copies and zeroed moments and accumulators.
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
  // Masters and moments of all targets.
  std::vector<float> State() const;
  // All matrices as the optimizer sees them.
  std::vector<OptimizerTensor> Tensors(double weight_decay) const;

 private:
  Matrix Gradient(const int64_t* accumulator, const Matrix& like) const;

  World* world_;

  Adapter adapter_;
  std::vector<LoraTarget> targets_;
  std::vector<OptimizerTensor> tensors_;  // A and B of every target
};

}  // namespace lorad::kernels::testing
