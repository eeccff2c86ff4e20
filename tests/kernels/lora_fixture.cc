#include "tests/kernels/lora_fixture.h"

#include <algorithm>

namespace lorad::kernels::testing {

Adapter RandomAdapter(Random& random, int64_t features, int64_t outputs, int64_t rank_max,
                      double dropout) {
  Adapter adapter;
  int64_t first = 0;
  for (int32_t index = 0; index < 3; ++index) {
    const int64_t left = outputs - first;
    if (left < 1) break;
    const int64_t count = random.Integer(1, left);
    const int64_t rank = random.Integer(1, rank_max);
    if (random.Integer(0, 3) > 0) {  // else a hole: rows that this adapter does not train
      adapter.push_back({.first_output = first,
                         .outputs = count,
                         .rank = rank,
                         .scale = static_cast<float>(random.Uniform(0.5, 2)),
                         .dropout = static_cast<float>(dropout),
                         .layer = static_cast<int32_t>(random.Integer(0, 40)),
                         .target = index,
                         .a = RandomMatrix(random, rank, features),
                         .b = RandomMatrix(random, count, rank)});
    }
    first += count;
  }
  return adapter;
}

std::unique_ptr<Linear> DeviceLinear(World& world, const Matrix& weight, const Matrix& bias) {
  Backend& backend = world.backend();
  auto linear = backend.MakeLinear(weight.rows, weight.columns, bias.rows > 0, world.arena());
  std::copy(weight.values.begin(), weight.values.end(), backend.MapRows(*linear, 0, weight.rows));
  backend.Unmap(*linear);
  if (bias.rows > 0) {
    std::copy(bias.values.begin(), bias.values.end(), backend.MapBias(*linear, 0, weight.rows));
    backend.Unmap(*linear);
  }
  return linear;
}

DeviceAdapter::DeviceAdapter(World& world, AdapterTable& table, int32_t slot, int32_t group,
                             const Adapter& adapter)
    : adapter_(adapter) {
  for (const Target& target : adapter_) {
    const TensorView a = world.arena().Matrix(target.a.rows, target.a.columns);
    const TensorView b = world.arena().Matrix(target.b.rows, target.b.columns);
    world.backend().CopyToDevice(
        std::vector<float>(target.a.values.begin(), target.a.values.end()).data(), a);
    world.backend().CopyToDevice(
        std::vector<float>(target.b.values.begin(), target.b.values.end()).data(), b);
    int64_t* da = world.arena().Allocate<int64_t>(a.elements());
    int64_t* db = world.arena().Allocate<int64_t>(b.elements());
    world.backend().DropGradients(std::vector<OptimizerTensor>{
        {.gradient = da, .elements = a.elements()}, {.gradient = db, .elements = b.elements()}});
    targets_.push_back({.first_output = target.first_output,
                        .outputs = target.outputs,
                        .rank = target.rank,
                        .a = a.f32(),
                        .b = b.f32(),
                        .scale = static_cast<float>(target.scale),
                        .dropout = static_cast<float>(target.dropout),
                        .layer = target.layer,
                        .target = target.target,
                        .da = da,
                        .db = db});
  }
  world.backend().SetTargets(table, slot, group, targets_);
}

Matrix DeviceAdapter::Gradient(const int64_t* accumulator, const Matrix& like) {
  Matrix gradient(like.rows, like.columns);
  for (size_t i = 0; i < gradient.values.size(); ++i) {
    gradient.values[i] = static_cast<double>(accumulator[i]) * kGradientQuantum;
  }
  return gradient;
}

std::vector<int64_t> DeviceAdapter::Accumulators() const {
  std::vector<int64_t> all;
  for (size_t i = 0; i < targets_.size(); ++i) {
    all.insert(all.end(), targets_[i].da, targets_[i].da + adapter_[i].a.values.size());
    all.insert(all.end(), targets_[i].db, targets_[i].db + adapter_[i].b.values.size());
  }
  return all;
}

}  // namespace lorad::kernels::testing
