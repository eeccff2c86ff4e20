#include "tests/kernels/lora_fixture.h"

#include <algorithm>

namespace lorad::kernels::testing {

Adapter RandomAdapter(const World& world, Random& random, int64_t features, int64_t outputs,
                      int64_t rank_max, double dropout) {
  Adapter adapter;
  int64_t first = 0;
  for (int32_t index = 0; index < 3; ++index) {
    const int64_t left = outputs - first;
    if (left < 1) break;
    const int64_t count = std::min(left, world.Columns(random.Integer(1, left)));
    const int64_t rank = random.Integer(1, rank_max);
    if (random.Integer(0, 3) > 0) {  // else a hole: rows that this adapter does not train
      adapter.push_back({.first_output = first,
                         .outputs = count,
                         .rank = rank,
                         .scale = static_cast<float>(random.Uniform(0.5, 2)),
                         .dropout = static_cast<float>(dropout),
                         .layer = static_cast<int32_t>(random.Integer(0, 40)),
                         .target = index,
                         .a = world.RandomMatrix(random, rank, features),
                         .b = world.RandomMatrix(random, count, rank)});
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
    : world_(&world), adapter_(adapter) {
  for (const Target& target : adapter_) {
    const TensorView a = world.arena().Matrix(target.a.rows, target.a.columns);
    const TensorView b = world.arena().Matrix(target.b.rows, target.b.columns);
    world.backend().CopyToDevice(
        std::vector<float>(target.a.values.begin(), target.a.values.end()).data(), a);
    world.backend().CopyToDevice(
        std::vector<float>(target.b.values.begin(), target.b.values.end()).data(), b);
    int64_t* da = world.arena().Allocate<int64_t>(a.elements());
    int64_t* db = world.arena().Allocate<int64_t>(b.elements());
    TensorView a_copy;
    TensorView b_copy;
    if (world.backend().activation_dtype() != DType::kFloat32) {
      const int64_t rank = PaddedRank(target.rank);
      a_copy = world.arena().Matrix(rank, a.columns, world.backend().activation_dtype());
      b_copy = world.arena().Matrix(b.rows, rank, world.backend().activation_dtype());
      world.backend().Cast(a, a_copy);
      world.backend().Cast(b, b_copy);
    }
    const auto add = [&](const TensorView& master, int64_t* gradient, const TensorView& copy) {
      const TensorView exp_avg = world.arena().Matrix(master.rows, master.columns);
      const TensorView exp_avg_sq = world.arena().Matrix(master.rows, master.columns);
      world.backend().Zero(exp_avg);
      world.backend().Zero(exp_avg_sq);
      tensors_.push_back({.parameter = master.f32(),
                          .exp_avg = exp_avg.f32(),
                          .exp_avg_sq = exp_avg_sq.f32(),
                          .gradient = gradient,
                          .elements = master.elements(),
                          .columns = master.columns,
                          .copy = copy});
    };
    add(a, da, a_copy);
    add(b, db, b_copy);
    targets_.push_back({.first_output = target.first_output,
                        .outputs = target.outputs,
                        .rank = target.rank,
                        .a = a.f32(),
                        .b = b.f32(),
                        .a_copy = a_copy,
                        .b_copy = b_copy,
                        .scale = static_cast<float>(target.scale),
                        .dropout = static_cast<float>(target.dropout),
                        .layer = target.layer,
                        .target = target.target,
                        .da = da,
                        .db = db});
  }
  world.DropGradients(tensors_);
  world.backend().SetTargets(table, slot, group, targets_);
}

Matrix DeviceAdapter::Gradient(const int64_t* accumulator, const Matrix& like) const {
  Matrix gradient(like.rows, like.columns);
  std::vector<int64_t> quanta(gradient.values.size());
  world_->Read(accumulator, static_cast<int64_t>(quanta.size() * sizeof(int64_t)), quanta.data());
  for (size_t i = 0; i < quanta.size(); ++i) {
    gradient.values[i] = static_cast<double>(quanta[i]) * kGradientQuantum;
  }
  return gradient;
}

std::vector<int64_t> DeviceAdapter::Accumulators() const {
  std::vector<int64_t> all;
  const auto append = [&](const int64_t* accumulator, const Matrix& like) {
    std::vector<int64_t> quanta(like.values.size());
    world_->Read(accumulator, static_cast<int64_t>(quanta.size() * sizeof(int64_t)), quanta.data());
    all.insert(all.end(), quanta.begin(), quanta.end());
  };
  for (size_t i = 0; i < targets_.size(); ++i) {
    append(targets_[i].da, adapter_[i].a);
    append(targets_[i].db, adapter_[i].b);
  }
  return all;
}

std::vector<float> DeviceAdapter::State() const {
  std::vector<float> all;
  for (const OptimizerTensor& tensor : tensors_) {
    for (const float* part : {tensor.parameter, tensor.exp_avg, tensor.exp_avg_sq}) {
      std::vector<float> host(static_cast<size_t>(tensor.elements));
      world_->Read(part, tensor.elements * static_cast<int64_t>(sizeof(float)), host.data());
      all.insert(all.end(), host.begin(), host.end());
    }
  }
  return all;
}

std::vector<OptimizerTensor> DeviceAdapter::Tensors(double weight_decay) const {
  std::vector<OptimizerTensor> tensors = tensors_;
  for (OptimizerTensor& tensor : tensors) tensor.weight_decay = weight_decay;
  return tensors;
}

}  // namespace lorad::kernels::testing
