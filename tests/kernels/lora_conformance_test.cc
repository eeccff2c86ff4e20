// The multi-adapter LoRA linear of every backend against float64.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/kernels/lora_fixture.h"

namespace lorad::kernels::testing {
namespace {

struct Case {
  double dropout;
  bool bias;
  bool residual;
  bool saved;
};

constexpr Case kCases[] = {{0, false, false, true},
                           {0, true, true, false},
                           {0.3, false, true, true},
                           {0.1, true, false, false}};

void CheckCase(World& world, Random& random, const Case& options) {
  constexpr int32_t kSlots = 3;
  constexpr int32_t kGroup = 1;
  Backend& backend = world.backend();
  const int64_t features = world.Columns(random.Integer(1, 50));
  const int64_t outputs = world.Columns(random.Integer(1, 50));
  const BatchData data = RandomBatch(random, 3, 280, kSlots, 10);
  const auto batch = backend.PrepareBatch(data.description());
  const Matrix weight = world.RandomMatrix(random, outputs, features);
  const Matrix bias = options.bias ? world.RandomMatrix(random, 1, outputs) : Matrix();
  const auto linear = DeviceLinear(world, weight, bias);
  const auto table = backend.MakeAdapterTable(kSlots, 2);
  std::vector<Adapter> adapters;
  std::vector<DeviceAdapter> on_device;
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    adapters.push_back(RandomAdapter(world, random, features, outputs, 24, options.dropout));
    on_device.emplace_back(world, *table, slot, kGroup, adapters.back());
  }

  const Matrix x = world.RandomMatrix(random, data.tokens(), features);
  const Matrix residual = world.RandomMatrix(random, data.tokens(), outputs);
  const Guarded device_x(world, x);
  const Guarded device_residual(world, residual);
  Guarded y(world, data.tokens(), outputs);
  const TensorView saved =
      options.saved
          ? world.arena().Matrix(data.tokens(), LoraSavedColumns(3, 24), backend.activation_dtype())
          : TensorView();
  backend.LoraLinear(*batch, *linear, *table, kGroup, device_x.view(),
                     options.residual ? device_residual.view() : TensorView(), y.view(), saved);
  Matrix want = LoraReference(data, x, weight, bias, adapters);
  for (size_t i = 0; options.residual && i < want.values.size(); ++i) {
    want.values[i] += residual.values[i];
  }
  CHECK(Compare(y.Read(), want, world.Within(kLinear)) == "");
  CHECK(y.Intact());

  const Matrix dy = world.RandomMatrix(random, data.tokens(), outputs);
  const Guarded device_dy(world, dy);
  Guarded dx(world, data.tokens(), features);
  backend.LoraLinearBackward(*batch, *linear, *table, kGroup, device_x.view(), device_dy.view(),
                             dx.view(), saved);
  CHECK(dx.Intact());
  const auto loss_of_x = [&](const Matrix& at) {
    return Inner(LoraReference(data, at, weight, bias, adapters), dy);
  };
  CHECK(CheckGradient(random, x, dx.Read(), loss_of_x, world.Within(kLinear), 20) == "");
  // A and B train on the rows of training segments alone.
  Matrix trained = dy;
  for (const Segment& segment : data.segments) {
    if (segment.mode == Mode::kTrain) continue;
    for (int64_t i = 0; i < segment.rows * outputs; ++i) {
      trained.values[static_cast<size_t>(segment.first_row * outputs + i)] = 0;
    }
  }
  for (size_t slot = 0; slot < adapters.size(); ++slot) {
    CHECK_FALSE(world.TakeOverflow(*table, static_cast<int32_t>(slot)));
    for (size_t target = 0; target < adapters[slot].size(); ++target) {
      const auto loss_of = [&](Matrix Target::*matrix) {
        return [&, matrix](const Matrix& at) {
          std::vector<Adapter> moved = adapters;
          moved[slot][target].*matrix = at;
          return Inner(LoraReference(data, x, weight, bias, moved), trained);
        };
      };
      CHECK(CheckGradient(random, adapters[slot][target].a, on_device[slot].GradientA(target),
                          loss_of(&Target::a), world.Within(kLoraGradient), 8) == "");
      CHECK(CheckGradient(random, adapters[slot][target].b, on_device[slot].GradientB(target),
                          loss_of(&Target::b), world.Within(kLoraGradient), 8) == "");
    }
  }
}

TEST_CASE("LoraLinear, forward and backward") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      for (const Case& options : kCases) {
        INFO(backend.name << ", seed " << seed << ", dropout " << options.dropout);
        Random random(seed);
        World world(backend);
        CheckCase(world, random, options);
      }
    }
  }
}

void CheckTiles(World& world) {
  Random random(11);
  Backend& backend = world.backend();
  BatchData data;
  data.Append(random, 5, 0, Mode::kTrain, {}, 10);
  const auto batch = backend.PrepareBatch(data.description());
  const Matrix weight = world.RandomMatrix(random, 1000, 600);
  const auto linear = DeviceLinear(world, weight, Matrix());
  const auto table = backend.MakeAdapterTable(1, 1);
  const Adapter adapter = {{.first_output = 100,
                            .outputs = 800,
                            .rank = 24,
                            .scale = 0.5,
                            .dropout = 0.25,
                            .a = world.RandomMatrix(random, 24, 600),
                            .b = world.RandomMatrix(random, 800, 24)}};
  DeviceAdapter on_device(world, *table, 0, 0, adapter);
  const Matrix x = world.RandomMatrix(random, 5, 600);
  const Matrix residual = world.RandomMatrix(random, 5, 1000);
  const Guarded device_x(world, x);
  Guarded y(world, residual);
  backend.LoraLinear(*batch, *linear, *table, 0, device_x.view(), y.view(), y.view(), {});
  Matrix want = LoraReference(data, x, weight, Matrix(), {adapter});
  for (size_t i = 0; i < want.values.size(); ++i) want.values[i] += residual.values[i];
  CHECK(Compare(y.Read(), want, world.Within(kLinear)) == "");
  CHECK(y.Intact());

  const Matrix dy = world.RandomMatrix(random, 5, 1000);
  const Guarded device_dy(world, dy);
  Guarded dx(world, 5, 600);
  backend.LoraLinearBackward(*batch, *linear, *table, 0, device_x.view(), device_dy.view(), {}, {});
  const std::vector<int64_t> once = on_device.Accumulators();
  backend.LoraLinearBackward(*batch, *linear, *table, 0, device_x.view(), device_dy.view(),
                             dx.view(), {});
  const std::vector<int64_t> twice = on_device.Accumulators();
  for (size_t i = 0; i < once.size(); ++i) REQUIRE(twice[i] == 2 * once[i]);
  const auto loss = [&](const Matrix& at) {
    return Inner(LoraReference(data, at, weight, Matrix(), {adapter}), dy);
  };
  CHECK(CheckGradient(random, x, dx.Read(), loss, world.Within(kLinear)) == "");
}

TEST_CASE("LoraLinear in tiles: wider than one, with the residual in place and no input gradient") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    CheckTiles(world);
  }
}

void CheckSwiGlu(World& world, Random& random, Gate gate, double dropout) {
  Backend& backend = world.backend();
  const int64_t features = world.Columns(random.Integer(1, 50));
  const int64_t outputs = 2 * world.Columns(random.Integer(1, 300));
  const BatchData data = RandomBatch(random, 3, 280, 2, 10);
  const auto batch = backend.PrepareBatch(data.description());
  const auto linear = DeviceLinear(world, world.RandomMatrix(random, outputs, features), Matrix());
  const auto table = backend.MakeAdapterTable(2, 1);
  const Adapter adapter = RandomAdapter(world, random, features, outputs, 24, dropout);
  const DeviceAdapter on_device(world, *table, 1, 0, adapter);
  const Guarded x(world, world.RandomMatrix(random, data.tokens(), features));
  const Guarded want_y(world, data.tokens(), outputs);
  const Guarded want(world, data.tokens(), outputs / 2);
  backend.LoraLinear(*batch, *linear, *table, 0, x.view(), {}, want_y.view(), {});
  backend.SwiGlu(*batch, gate, want_y.view(), want.view());
  const Guarded y(world, data.tokens(), outputs);
  const Guarded gated(world, data.tokens(), outputs / 2);
  backend.LoraLinearSwiGlu(*batch, *linear, *table, 0, gate, x.view(), y.view(), gated.view(), {});
  CHECK(y.Bits() == want_y.Bits());
  CHECK(gated.Bits() == want.Bits());
  CHECK((y.Intact() && gated.Intact()));
}

// The gradient of gate_up by two operations, then by one in place.
void CheckSwiGluBackward(World& world, Random& random, Gate gate, double dropout) {
  Backend& backend = world.backend();
  const int64_t features = world.Columns(random.Integer(1, 300));
  const int64_t outputs = world.Columns(random.Integer(1, 50));
  const BatchData data = RandomBatch(random, 3, 280, 2, 10);
  const auto batch = backend.PrepareBatch(data.description());
  const auto linear = DeviceLinear(world, world.RandomMatrix(random, outputs, features), Matrix());
  const auto table = backend.MakeAdapterTable(2, 1);
  const Adapter adapter = RandomAdapter(world, random, features, outputs, 24, dropout);
  const DeviceAdapter on_device(world, *table, 1, 0, adapter);
  const Guarded gate_up(world, world.RandomMatrix(random, data.tokens(), 2 * features));
  Guarded y(world, data.tokens(), features);
  backend.SwiGlu(*batch, gate, gate_up.view(), y.view());
  const Guarded dy(world, world.RandomMatrix(random, data.tokens(), outputs));
  Guarded dx(world, data.tokens(), features);
  Guarded want(world, data.tokens(), 2 * features);
  backend.LoraLinearBackward(*batch, *linear, *table, 0, y.view(), dy.view(), dx.view(), {});
  backend.SwiGluBackward(*batch, gate, gate_up.view(), dx.view(), want.view());
  const std::vector<int64_t> once = on_device.Accumulators();
  backend.LoraLinearSwiGluBackward(*batch, *linear, *table, 0, gate, gate_up.view(), y.view(),
                                   dy.view(), dx.view(), gate_up.view(), {});
  const std::vector<int64_t> twice = on_device.Accumulators();
  CHECK(gate_up.Bits() == want.Bits());
  CHECK(gate_up.Intact());
  for (size_t i = 0; i < once.size(); ++i) REQUIRE(twice[i] == 2 * once[i]);
}

TEST_CASE("A LoRA linear with SwiGLU gives the bits of the two operations that it stands for") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      for (const double dropout : {0.0, 0.1}) {
        INFO(backend.name << ", seed " << seed << ", dropout " << dropout);
        Random random(seed);
        World world(backend);
        for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
          CheckSwiGlu(world, random, gate, dropout);
          CheckSwiGluBackward(world, random, gate, dropout);
        }
      }
    }
  }
}

// q and k beside v: turned by an operation of their own, then by the linear's.
void CheckRope(World& world, Random& random, int64_t head_size, bool has_bias) {
  Backend& backend = world.backend();
  const int64_t features = world.Columns(random.Integer(1, 50));
  const int64_t kv_heads = random.Integer(1, 3);
  const int64_t rotated = (kv_heads * random.Integer(1, 3) + kv_heads) * head_size;
  const int64_t outputs = rotated + kv_heads * head_size;
  const BatchData data = RandomBatch(random, 3, 280, 2, 10);
  const auto batch = backend.PrepareBatch(data.description());
  const auto linear = DeviceLinear(world, world.RandomMatrix(random, outputs, features),
                                   has_bias ? world.RandomMatrix(random, 1, outputs) : Matrix());
  const auto table = backend.MakeAdapterTable(2, 1);
  const Adapter adapter = RandomAdapter(world, random, features, outputs, 24, 0);
  const DeviceAdapter on_device(world, *table, 1, 0, adapter);
  const Guarded angles(world, world.RandomMatrix(random, 280, head_size), Kind::kFloat32);
  const Guarded x(world, world.RandomMatrix(random, data.tokens(), features));
  const Guarded want(world, data.tokens(), outputs);
  backend.LoraLinear(*batch, *linear, *table, 0, x.view(), {}, want.view(), {});
  backend.Rope(*batch, angles.view(), want.view().Columns(0, rotated));
  const Guarded y(world, data.tokens(), outputs);
  backend.LoraLinearRope(*batch, *linear, *table, 0, x.view(), angles.view(), rotated, y.view(),
                         {});
  CHECK(y.Bits() == want.Bits());
  CHECK(y.Intact());
}

TEST_CASE("A LoRA linear with rope gives the bits of the two operations that it stands for") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      Random random(seed);
      for (const int64_t head_size : {random.Integer(1, 6) * 16, int64_t{64}, int64_t{128}}) {
        for (const bool has_bias : {false, true}) {
          INFO(backend.name << ", seed " << seed << ", heads of " << head_size);
          World world(backend);
          CheckRope(world, random, head_size, has_bias);
        }
      }
    }
  }
}

void CheckOverflow(World& world) {
  Random random(12);
  Backend& backend = world.backend();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 1e38f, 0x1p19f}) {
    BatchData data;
    data.Append(random, 5, 0, Mode::kTrain, {}, 10);
    data.Append(random, 5, 1, Mode::kTrain, {}, 10);
    const auto batch = backend.PrepareBatch(data.description());
    const auto linear = DeviceLinear(world, world.RandomMatrix(random, 8, 8), Matrix());
    const auto table = backend.MakeAdapterTable(2, 1);
    const Adapter adapter = {{.first_output = 0,
                              .outputs = 8,
                              .rank = 2,
                              .scale = 1,
                              .a = world.RandomMatrix(random, 2, 8),
                              .b = world.RandomMatrix(random, 8, 2)}};
    DeviceAdapter first(world, *table, 0, 0, adapter);
    DeviceAdapter second(world, *table, 1, 0, adapter);
    Matrix dy = world.RandomMatrix(random, 10, 8);
    dy.at(2, 3) = static_cast<double>(bad);
    const Guarded x(world, world.RandomMatrix(random, 10, 8));
    const Guarded device_dy(world, dy);
    Guarded dx(world, 10, 8);
    backend.LoraLinearBackward(*batch, *linear, *table, 0, x.view(), device_dy.view(), dx.view(),
                               {});
    CHECK(world.TakeOverflow(*table, 0));
    CHECK_FALSE(world.TakeOverflow(*table, 0));
    CHECK_FALSE(world.TakeOverflow(*table, 1));
  }
}

TEST_CASE("A gradient that is not finite or too large marks its slot alone") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    CheckOverflow(world);
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
