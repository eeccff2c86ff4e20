// Initialization, norm and AdamW of every backend against float64.
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

// A tensor of the optimizer in device memory. On every backend so far that is host memory for plain
// pointers.
struct DeviceTensor {
  DeviceTensor(World& world, const State& state) {
    const int64_t n = static_cast<int64_t>(state.p.size());
    tensor = {.parameter = world.arena().Allocate<float>(n),
              .exp_avg = world.arena().Allocate<float>(n),
              .exp_avg_sq = world.arena().Allocate<float>(n),
              .gradient = world.arena().Allocate<int64_t>(n),
              .elements = n};
    for (size_t i = 0; i < state.p.size(); ++i) {
      tensor.parameter[i] = static_cast<float>(state.p[i]);
      tensor.exp_avg[i] = static_cast<float>(state.m[i]);
      tensor.exp_avg_sq[i] = static_cast<float>(state.v[i]);
    }
  }
  void SetGradient(const State& state) {
    for (size_t i = 0; i < state.g.size(); ++i) {
      tensor.gradient[i] = std::llrint(state.g[i] / kGradientQuantum);
    }
  }
  Matrix Read(const float* values) const {
    Matrix matrix(1, tensor.elements);
    std::copy(values, values + tensor.elements, matrix.values.begin());
    return matrix;
  }
  OptimizerTensor tensor;
};

Matrix RowOf(const std::vector<double>& values) {
  Matrix matrix(1, static_cast<int64_t>(values.size()));
  matrix.values = values;
  return matrix;
}

TEST_CASE("AdamW over several tensors and steps") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      INFO(backend.name << ", seed " << seed);
      Random random(seed);
      World world(backend.make(), TestLimits());
      std::vector<State> states;
      std::vector<DeviceTensor> device;
      const double decays[] = {0.0, 0.01, 0.1};
      for (const int64_t n : {int64_t{1}, random.Integer(2, 100), random.Integer(4000, 20000)}) {
        State state;
        state.p = RandomMatrix(random, 1, n).values;
        state.m.assign(state.p.size(), 0);
        state.v = state.m;
        state.g = state.m;
        device.emplace_back(world, state);
        states.push_back(state);
      }
      AdamWOptions options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
      for (options.step = 1; options.step <= 5; ++options.step) {
        options.clip_factor = random.Uniform(0.1, 1);
        std::vector<OptimizerTensor> tensors;
        for (size_t i = 0; i < states.size(); ++i) {
          states[i].g =
              RandomMatrix(random, 1, static_cast<int64_t>(states[i].p.size()), 1e-2).values;
          device[i].SetGradient(states[i]);
          device[i].tensor.learning_rate = 1e-3 * static_cast<double>(i + 1);
          device[i].tensor.weight_decay = decays[i];
          tensors.push_back(device[i].tensor);
        }
        std::vector<double> sums(tensors.size());
        world.backend().SumOfSquares(tensors, sums);
        world.backend().AdamW(options, tensors);
        for (size_t i = 0; i < states.size(); ++i) {
          double squares = 0;
          for (const double g : states[i].g) squares += g * g;
          CHECK(std::fabs(sums[i] - squares) <= squares * 2e-7);  // gradients rounded to float32
          AdamWReference(options, tensors[i].learning_rate, decays[i], states[i]);
          CHECK(Compare(device[i].Read(tensors[i].parameter), RowOf(states[i].p), kAdamW) == "");
          CHECK(Compare(device[i].Read(tensors[i].exp_avg), RowOf(states[i].m), kAdamW) == "");
          CHECK(Compare(device[i].Read(tensors[i].exp_avg_sq), RowOf(states[i].v), kAdamW) == "");
          for (int64_t j = 0; j < tensors[i].elements; ++j) REQUIRE(tensors[i].gradient[j] == 0);
        }
      }
    }
  }
}

TEST_CASE("SumOfSquares is exact where it can be, and infinite outside the range") {
  World world(Backends().back().make(), TestLimits());
  std::vector<OptimizerTensor> tensors;
  const int64_t sizes[] = {1, 15, 16, 17, 4096, 4097, 100000};
  for (const int64_t n : sizes) {
    int64_t* gradient = world.arena().Allocate<int64_t>(n);
    std::fill_n(gradient, n, static_cast<int64_t>(0x1p40));
    tensors.push_back({.gradient = gradient, .elements = n});
  }
  std::vector<double> sums(tensors.size());
  world.backend().SumOfSquares(tensors, sums);
  for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == static_cast<double>(sizes[i]) * 0x1p-8);
  tensors.back().gradient[77777] = -(int64_t{1} << 62);
  world.backend().SumOfSquares(tensors, sums);
  CHECK(sums.back() == std::numeric_limits<double>::infinity());
  CHECK(std::isfinite(sums[sums.size() - 2]));
  world.backend().DropGradients(tensors);
  world.backend().SumOfSquares(tensors, sums);
  for (const double sum : sums) CHECK(sum == 0);
}

TEST_CASE("InitializeA is uniform in its bound and a function of seed, layer and target") {
  World world(Backends().back().make(), TestLimits());
  const int64_t rank = 31;
  const int64_t features = 577;
  Guarded a(world, rank, features, 0);
  Guarded b(world, rank, features, 0);
  world.backend().InitializeA(7, 3, 2, a.view());
  world.backend().InitializeA(7, 3, 2, b.view());
  CHECK(a.Bits() == b.Bits());
  CHECK(a.Intact());
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

}  // namespace
}  // namespace lorad::kernels::testing
