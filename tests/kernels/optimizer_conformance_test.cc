// Initialization, norm and AdamW of every backend against float64.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {
namespace {

struct State {
  std::vector<double> p, m, v, g;
};

// torch.optim.AdamW in float64.
void AdamWReference(const AdamWOptions& options, double lr, double decay, State& state) {
  const double bias1 = 1 - std::pow(options.beta1, static_cast<double>(options.step));
  const double bias2 = 1 - std::pow(options.beta2, static_cast<double>(options.step));
  for (size_t i = 0; i < state.p.size(); ++i) {
    const double g = state.g[i] * options.clip_factor;
    state.p[i] *= 1 - lr * decay;
    state.m[i] += (1 - options.beta1) * (g - state.m[i]);
    state.v[i] = options.beta2 * state.v[i] + (1 - options.beta2) * g * g;
    state.p[i] -=
        lr / bias1 * state.m[i] / (std::sqrt(state.v[i]) / std::sqrt(bias2) + options.eps);
  }
}

// A tensor of the optimizer in device memory: a matrix of `columns`, with a copy in the activation
// type whose rows are longer.
struct DeviceTensor {
  DeviceTensor(World& to, const State& state, int64_t columns) : world(&to) {
    const int64_t n = static_cast<int64_t>(state.p.size());
    tensor = {.parameter = world->arena().Allocate<float>(n),
              .exp_avg = world->arena().Allocate<float>(n),
              .exp_avg_sq = world->arena().Allocate<float>(n),
              .gradient = world->arena().Allocate<int64_t>(n),
              .elements = n,
              .columns = columns};
    Write(state.p, tensor.parameter);
    Write(state.m, tensor.exp_avg);
    Write(state.v, tensor.exp_avg_sq);
    const DType dtype = world->backend().activation_dtype();
    if (dtype == DType::kFloat32) return;
    tensor.copy = world->arena().Matrix(n / columns, PaddedRank(columns), dtype);
    world->backend().Zero(tensor.copy);
  }
  void Write(const std::vector<double>& values, float* to) {
    const std::vector<float> narrow(values.begin(), values.end());
    world->Write(narrow.data(), static_cast<int64_t>(narrow.size() * sizeof(float)), to);
  }
  void SetGradient(const State& state) {
    std::vector<int64_t> quanta;
    for (const double g : state.g) quanta.push_back(std::llrint(g / kGradientQuantum));
    world->Write(quanta.data(), static_cast<int64_t>(quanta.size() * sizeof(int64_t)),
                 tensor.gradient);
  }
  Matrix Read(const float* values) const {
    std::vector<float> host(static_cast<size_t>(tensor.elements));
    world->Read(values, tensor.elements * static_cast<int64_t>(sizeof(float)), host.data());
    Matrix matrix(1, tensor.elements);
    std::copy(host.begin(), host.end(), matrix.values.begin());
    return matrix;
  }
  Matrix ReadCopy() const {
    Matrix matrix(tensor.copy.rows, tensor.copy.columns);
    std::vector<float> host(matrix.values.size());
    world->backend().CopyToHost(tensor.copy, host.data());
    std::copy(host.begin(), host.end(), matrix.values.begin());
    return matrix;
  }
  bool GradientIsZero() const {
    std::vector<int64_t> quanta(static_cast<size_t>(tensor.elements));
    world->Read(tensor.gradient, static_cast<int64_t>(quanta.size() * sizeof(int64_t)),
                quanta.data());
    return std::all_of(quanta.begin(), quanta.end(), [](int64_t value) { return value == 0; });
  }
  World* world;
  OptimizerTensor tensor;
};

Matrix RowOf(const std::vector<double>& values) {
  Matrix matrix(1, static_cast<int64_t>(values.size()));
  matrix.values = values;
  return matrix;
}

// The rounded parameter in the first columns of every row, zeros in the others.
void CheckCopy(const DeviceTensor& device) {
  if (device.tensor.copy.empty()) return;
  const Matrix copy = device.ReadCopy();
  const Matrix parameter = device.Read(device.tensor.parameter);
  for (int64_t row = 0; row < copy.rows; ++row) {
    for (int64_t column = 0; column < copy.columns; ++column) {
      const bool inside = column < device.tensor.columns;
      const double want =
          inside ? device.world->Rounded(parameter.at(0, row * device.tensor.columns + column)) : 0;
      REQUIRE(copy.at(row, column) == want);
    }
  }
}

TEST_CASE("AdamW over several tensors and steps") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      INFO(backend.name << ", seed " << seed);
      Random random(seed);
      World world(backend);
      std::vector<State> states;
      std::vector<DeviceTensor> device;
      const double decays[] = {0.0, 0.01, 0.1};
      for (const int64_t columns : {int64_t{1}, random.Integer(2, 100), random.Integer(40, 200)}) {
        const int64_t n = columns == 1 ? 1 : columns * random.Integer(1, 100);
        State state;
        state.p = RandomMatrix(random, 1, n).values;
        state.m.assign(state.p.size(), 0);
        state.v = state.m;
        state.g = state.m;
        device.emplace_back(world, state, columns);
        states.push_back(state);
      }
      AdamWOptions options = {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
      for (options.step = 1; options.step <= 5; ++options.step) {
        options.clip_factor = random.Uniform(0.1, 1);
        std::vector<OptimizerTensor> tensors;
        for (size_t i = 0; i < states.size(); ++i) {
          states[i].g =
              RandomMatrix(random, 1, static_cast<int64_t>(states[i].p.size()), 1e-2).values;
          device[i].SetGradient(states[i]);
          device[i].tensor.learning_rate_factor = static_cast<double>(i + 1);
          device[i].tensor.weight_decay = decays[i];
          tensors.push_back(device[i].tensor);
        }
        std::vector<double> sums;
        double total = 0;
        for (const OptimizerTensor& tensor : tensors) {
          sums.push_back(world.SumOfSquares({&tensor, 1}));
          total += sums.back();
        }
        CHECK(std::fabs(world.SumOfSquares(tensors) - total) <= total * 1e-14);
        world.Step(options, tensors);
        for (size_t i = 0; i < states.size(); ++i) {
          double squares = 0;
          for (const double g : states[i].g) squares += g * g;
          CHECK(std::fabs(sums[i] - squares) <= squares * 2e-7);  // gradients rounded to float32
          AdamWReference(options, 1e-3 * tensors[i].learning_rate_factor, decays[i], states[i]);
          CHECK(Compare(device[i].Read(tensors[i].parameter), RowOf(states[i].p),
                        world.Within(kAdamW)) == "");
          CHECK(Compare(device[i].Read(tensors[i].exp_avg), RowOf(states[i].m),
                        world.Within(kAdamW)) == "");
          CHECK(Compare(device[i].Read(tensors[i].exp_avg_sq), RowOf(states[i].v),
                        world.Within(kAdamW)) == "");
          REQUIRE(device[i].GradientIsZero());
          CheckCopy(device[i]);
        }
      }
    }
  }
}

void CheckSums(World& world) {
  std::vector<OptimizerTensor> tensors;
  const int64_t sizes[] = {1, 15, 16, 17, 4096, 4097, 100000};
  const auto set = [&](const std::vector<int64_t>& quanta, int64_t* to) {
    world.Write(quanta.data(), static_cast<int64_t>(quanta.size() * sizeof(int64_t)), to);
  };
  for (const int64_t n : sizes) {
    int64_t* gradient = world.arena().Allocate<int64_t>(n);
    set(std::vector<int64_t>(static_cast<size_t>(n), int64_t{1} << 40), gradient);
    tensors.push_back({.gradient = gradient, .elements = n});
  }
  double total = 0;
  const std::vector<double> sums = world.SumsOfSquares(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(sums[i] == static_cast<double>(sizes[i]) * 0x1p-8);
    total += sums[i];
  }
  CHECK(world.SumOfSquares(tensors) == total);
  set({-(int64_t{1} << 62)}, tensors.back().gradient + 77777);
  CHECK(world.SumOfSquares(tensors) == std::numeric_limits<double>::infinity());
  CHECK(std::isfinite(world.SumOfSquares(std::span(tensors).first(tensors.size() - 1))));
  world.DropGradients(tensors);
  CHECK(world.SumOfSquares(tensors) == 0);
}

// The state of a slot's tensors after a step.
std::vector<Matrix> StateOf(const std::vector<DeviceTensor>& tensors) {
  std::vector<Matrix> state;
  for (const DeviceTensor& device : tensors) {
    for (const float* part :
         {device.tensor.parameter, device.tensor.exp_avg, device.tensor.exp_avg_sq}) {
      state.push_back(device.Read(part));
    }
    if (!device.tensor.copy.empty()) state.push_back(device.ReadCopy());
  }
  return state;
}

// Slots with matrices, rates and steps of their own: more than one launch takes.
struct Slots {
  static constexpr int kSlots = 40;

  Slots(World& to, uint64_t seed) : world(to) {
    Random random(seed);
    for (int slot = 0; slot < kSlots; ++slot) {
      std::vector<DeviceTensor>& mine = tensors.emplace_back();
      std::vector<OptimizerTensor> described;
      const int64_t matrices = random.Integer(1, 3);
      for (int64_t i = 0; i < matrices; ++i) {
        const int64_t columns = random.Integer(1, 40) * (slot % 2 == 0 ? 4 : 1);
        const int64_t n = columns * random.Integer(1, 300);
        State state;
        for (std::vector<double>* values : {&state.p, &state.m, &state.v, &state.g}) {
          *values = RandomMatrix(random, 1, n, 1e-2).values;
        }
        for (double& value : state.v) value *= value;
        mine.emplace_back(world, state, columns);
        mine.back().SetGradient(state);
        mine.back().tensor.weight_decay = 0.01 * static_cast<double>(i);
        described.push_back(mine.back().tensor);
      }
      optimizers.push_back(world.backend().MakeOptimizer(described));
      options.push_back({.learning_rate = random.Uniform(1e-4, 1e-2),
                         .beta1 = random.Uniform(0.8, 0.95),
                         .beta2 = random.Uniform(0.9, 0.999),
                         .step = random.Integer(1, 100),
                         .clip_factor = random.Uniform(0.1, 1)});
    }
  }

  World& world;
  std::vector<std::vector<DeviceTensor>> tensors;
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  std::vector<AdamWOptions> options;
};

// More matrices than FoldSums has lanes on any device, of several blocks each.
TEST_CASE("A matrix' sum of squares does not depend on where its slot's list is cut") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    Random random(Seeds().front());
    std::vector<OptimizerTensor> tensors;
    for (int i = 0; i < 300; ++i) {
      const int64_t n = random.Integer(1, 9000);
      std::vector<int64_t> quanta(static_cast<size_t>(n));
      for (int64_t& value : quanta) {
        value = random.Integer(-(int64_t{1} << 50), int64_t{1} << 50);
      }
      int64_t* gradient = world.arena().Allocate<int64_t>(n);
      world.Write(quanta.data(), n * static_cast<int64_t>(sizeof(int64_t)), gradient);
      tensors.push_back({.gradient = gradient, .elements = n});
    }
    const std::vector<double> whole = world.SumsOfSquares(tensors);
    for (const size_t cut : {size_t{1}, size_t{7}, size_t{150}, size_t{299}}) {
      std::vector<double> parts = world.SumsOfSquares(std::span(tensors).first(cut));
      const std::vector<double> rest = world.SumsOfSquares(std::span(tensors).subspan(cut));
      parts.insert(parts.end(), rest.begin(), rest.end());
      CHECK(parts == whole);
      CHECK(world.backend().FoldSums(parts) == world.SumOfSquares(tensors));
    }
  }
}

TEST_CASE("Slots that step in one call get the bits that each gets alone") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    const uint64_t seed = Seeds().front();
    const Slots together(world, seed);
    const Slots alone(world, seed);
    std::vector<const Optimizer*> all;
    std::vector<StepRequest> requests;
    for (size_t slot = 0; slot < Slots::kSlots; ++slot) {
      all.push_back(together.optimizers[slot].get());
      requests.push_back({all.back(), together.options[slot]});
    }
    std::vector<size_t> counts;
    for (const std::vector<DeviceTensor>& tensors : together.tensors) {
      counts.push_back(tensors.size());
    }
    const std::vector<std::vector<double>> sums = world.SumsOfSquares(all, counts);
    world.backend().AdamW(requests);
    for (size_t slot = 0; slot < Slots::kSlots; ++slot) {
      const Optimizer* one = alone.optimizers[slot].get();
      const StepRequest request = {one, alone.options[slot]};
      CHECK(world.SumsOfSquares({&one, 1}, {&counts[slot], 1}).front() == sums[slot]);
      world.backend().AdamW({&request, 1});
      const std::vector<Matrix> want = StateOf(alone.tensors[slot]);
      const std::vector<Matrix> got = StateOf(together.tensors[slot]);
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i].values == want[i].values);
      for (const DeviceTensor& device : together.tensors[slot]) CHECK(device.GradientIsZero());
    }
  }
}

TEST_CASE("A sum of squares is exact where it can be, and infinite outside the range") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    CheckSums(world);
  }
}

void CheckInitialization(World& world, std::vector<float>* bits) {
  const int64_t rank = 31;
  const int64_t features = 576;
  Guarded a(world, rank, features, Kind::kFloat32, 0);
  Guarded b(world, rank, features, Kind::kFloat32, 0);
  world.backend().InitializeA(7, 3, 2, a.view());
  world.backend().InitializeA(7, 3, 2, b.view());
  CHECK(a.Bits() == b.Bits());
  CHECK(a.Intact());
  if (bits->empty()) *bits = a.Bits();
  CHECK(a.Bits() == *bits);
  double mean = 0;
  double squares = 0;
  const double bound = 1 / std::sqrt(static_cast<double>(features));
  for (const double value : a.Read().values) {
    CHECK_FALSE(!(std::fabs(value) <= bound * (1 + 1e-6)));
    mean += value;
    squares += value * value;
  }
  const double n = static_cast<double>(rank * features);
  CHECK(std::fabs(mean / n) < bound * 0.02);
  CHECK(std::fabs(squares / n / (bound * bound / 3) - 1) < 0.03);
  for (const auto& [seed, layer, target] : {std::tuple(8, 3, 2), {7, 4, 2}, {7, 3, 1}}) {
    world.backend().InitializeA(static_cast<uint64_t>(seed), layer, target, b.view());
    CHECK(a.Bits() != b.Bits());
  }
}

TEST_CASE("InitializeA is uniform, a function of seed, layer and target, the same everywhere") {
  std::vector<float> bits;
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    CheckInitialization(world, &bits);
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
