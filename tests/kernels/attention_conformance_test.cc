// Attention of every backend against float64.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/kernels/fixture.h"
#include "tests/kernels/reference.h"

namespace lorad::kernels::testing {
namespace {

struct Inputs {
  Matrix q, k, v;
};

void CheckCase(World& world, Random& random, const BatchData& data, const AttentionShape& shape) {
  Backend& backend = world.backend();
  const auto batch = backend.PrepareBatch(data.description());
  const int64_t q_columns = shape.heads * shape.head_size;
  const int64_t kv_columns = shape.kv_heads * shape.head_size;
  // q, k and v side by side in one buffer, as the model has them.
  const Matrix qkv = world.RandomMatrix(random, data.tokens(), q_columns + 2 * kv_columns, 2);
  const Guarded device(world, qkv);
  const TensorView q = device.view().Columns(0, q_columns);
  const TensorView k = device.view().Columns(q_columns, kv_columns);
  const TensorView v = device.view().Columns(q_columns + kv_columns, kv_columns);
  Guarded out(world, data.tokens(), q_columns);
  Guarded lse(world, data.tokens(), shape.heads, Kind::kFloat32);
  backend.Attention(*batch, shape, q, k, v, out.view(), lse.view());
  Matrix want_lse(data.tokens(), shape.heads);
  const Matrix want = AttentionReference(data, shape, qkv, &want_lse);
  CHECK(Compare(out.Read(), want, world.Within(kAttention)) == "");
  CHECK(Compare(lse.Read(), want_lse, world.Within(kLogSumExp)) == "");
  CHECK(out.Intact());
  CHECK(lse.Intact());

  const Matrix dout = world.RandomMatrix(random, data.tokens(), q_columns);
  const Guarded device_dout(world, dout);
  Guarded gradient(world, data.tokens(), qkv.columns);
  backend.AttentionBackward(*batch, shape, q, k, v, out.view(), lse.view(), device_dout.view(),
                            gradient.view().Columns(0, q_columns),
                            gradient.view().Columns(q_columns, kv_columns),
                            gradient.view().Columns(q_columns + kv_columns, kv_columns));
  const auto loss = [&](const Matrix& at) {
    return Inner(AttentionReference(data, shape, at, nullptr), dout);
  };
  CHECK(CheckGradient(random, qkv, gradient.Read(), loss, world.Within(kAttentionBackward)) == "");
  CHECK(gradient.Intact());
}

TEST_CASE("Attention, forward and backward") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      INFO(backend.name << ", seed " << seed);
      Random random(seed);
      World world(backend);
      const int64_t kv_heads = random.Integer(1, 3);
      const AttentionShape shape = {.heads = kv_heads * random.Integer(1, 2),
                                    .kv_heads = kv_heads,
                                    .head_size = world.Columns(2 * random.Integer(1, 8)),
                                    .scale = static_cast<float>(random.Uniform(0.1, 0.5))};
      // A length of one row, one below and above a block of queries, and a chance one.
      BatchData data;
      for (const int64_t rows : {int64_t{1}, int64_t{63}, int64_t{65}, random.Integer(1, 150)}) {
        data.Append(random, rows, -1, Mode::kTrain, {}, 10);
      }
      CheckCase(world, random, data, shape);
    }
  }
}

TEST_CASE("Attention with windows and caps, forward and backward") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      Random random(seed);
      for (const int64_t window : {1, 16, 17, 64, 65, 100, 190}) {
        for (const float cap : {0.0f, 2.0f}) {
          INFO(backend.name << ", seed " << seed << ", window " << window << ", cap " << cap);
          World world(backend);
          constexpr int64_t kSizes[] = {16, 64, 128, 256};
          const int64_t kv_heads = random.Integer(1, 2);
          const AttentionShape shape = {.heads = kv_heads * random.Integer(1, 2),
                                        .kv_heads = kv_heads,
                                        .head_size = kSizes[random.Integer(0, 3)],
                                        .scale = 0.125f,
                                        .window = window,
                                        .cap = cap};
          BatchData data;
          for (const int64_t rows : {int64_t{1}, int64_t{65}, random.Integer(1, 300)}) {
            data.Append(random, rows, -1, Mode::kTrain, {}, 10);
          }
          CheckCase(world, random, data, shape);
        }
      }
    }
  }
}

// The one key's probability is 1 whatever q and k are. Of rounding alone Adam would make a step as
// long as any.
TEST_CASE("On a CPU a window of 1 gives q and k no gradient, to the bit") {
  for (const BackendCase& backend : Backends()) {
    if (backend.family != "cpu") continue;
    for (const float cap : {0.0f, 2.0f}) {
      INFO(backend.name << ", cap " << cap);
      Random random(7);
      World world(backend);
      const AttentionShape shape = {
          .heads = 4, .kv_heads = 2, .head_size = 24, .scale = 0.125f, .window = 1, .cap = cap};
      BatchData data;
      for (const int64_t rows : {1, 70}) data.Append(random, rows, -1, Mode::kTrain, {}, 10);
      const auto batch = world.backend().PrepareBatch(data.description());
      const Guarded qkv(world, world.RandomMatrix(random, data.tokens(), 8 * 24, 2));
      const auto part = [](const Guarded& of, int64_t first, int64_t heads) {
        return of.view().Columns(first * 24, heads * 24);
      };
      Guarded out(world, data.tokens(), 4 * 24);
      Guarded lse(world, data.tokens(), 4, Kind::kFloat32);
      world.backend().Attention(*batch, shape, part(qkv, 0, 4), part(qkv, 4, 2), part(qkv, 6, 2),
                                out.view(), lse.view());
      const Guarded dout(world, world.RandomMatrix(random, data.tokens(), 4 * 24));
      Guarded dqk(world, data.tokens(), 6 * 24);
      Guarded dv(world, data.tokens(), 2 * 24);
      world.backend().AttentionBackward(*batch, shape, part(qkv, 0, 4), part(qkv, 4, 2),
                                        part(qkv, 6, 2), out.view(), lse.view(), dout.view(),
                                        part(dqk, 0, 4), part(dqk, 4, 2), dv.view());
      CHECK(Compare(dqk.Read(), Matrix(data.tokens(), 6 * 24), {0, 0}) == "");
    }
  }
}

// dq, dk and dv, those of q and k turned back by an operation of its own, then by attention's.
void CheckRopeBackward(World& world, Random& random, int64_t head_size) {
  Backend& backend = world.backend();
  const int64_t kv_heads = random.Integer(1, 3);
  const AttentionShape shape = {.heads = kv_heads * random.Integer(1, 3),
                                .kv_heads = kv_heads,
                                .head_size = head_size,
                                .scale = 0.125f};
  const int64_t q = shape.heads * head_size;
  const int64_t kv = kv_heads * head_size;
  const BatchData data = RandomBatch(random, 3, 280, 1, 10);
  const auto batch = backend.PrepareBatch(data.description());
  const auto part = [&](const Guarded& of, int index) {
    return of.view().Columns(index == 0 ? 0 : q + (index - 1) * kv, index == 0 ? q : kv);
  };
  const Guarded qkv(world, world.RandomMatrix(random, data.tokens(), q + 2 * kv));
  const Guarded out(world, data.tokens(), q);
  const Guarded lse(world, data.tokens(), shape.heads, Kind::kFloat32);
  backend.Attention(*batch, shape, part(qkv, 0), part(qkv, 1), part(qkv, 2), out.view(),
                    lse.view());
  const Guarded angles(world, world.RandomMatrix(random, 280, head_size), Kind::kFloat32);
  const Guarded dout(world, world.RandomMatrix(random, data.tokens(), q));
  const Guarded want(world, data.tokens(), q + 2 * kv);
  backend.AttentionBackward(*batch, shape, part(qkv, 0), part(qkv, 1), part(qkv, 2), out.view(),
                            lse.view(), dout.view(), part(want, 0), part(want, 1), part(want, 2));
  backend.RopeBackward(*batch, angles.view(), want.view().Columns(0, q + kv));
  const Guarded got(world, data.tokens(), q + 2 * kv);
  backend.AttentionRopeBackward(*batch, shape, angles.view(), part(qkv, 0), part(qkv, 1),
                                part(qkv, 2), out.view(), lse.view(), dout.view(), part(got, 0),
                                part(got, 1), part(got, 2));
  CHECK(got.Bits() == want.Bits());
  CHECK(got.Intact());
}

TEST_CASE("Attention's backward with rope's gives the bits of the two operations") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      Random random(seed);
      for (const int64_t head_size : {random.Integer(1, 6) * 16, int64_t{64}, int64_t{128}}) {
        INFO(backend.name << ", seed " << seed << ", heads of " << head_size);
        World world(backend);
        CheckRopeBackward(world, random, head_size);
      }
    }
  }
}

TEST_CASE("Attention survives scores far apart") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    Random random(5);
    BatchData data;
    data.Append(random, 20, -1, Mode::kTrain, {}, 10);
    constexpr int64_t kSize = 8;
    const AttentionShape shape = {.heads = 1, .kv_heads = 1, .head_size = kSize, .scale = 20};
    const Matrix qkv = world.RandomMatrix(random, 20, 3 * kSize, 8);
    const Guarded device(world, qkv);
    const auto part = [&](int64_t index) { return device.view().Columns(index * kSize, kSize); };
    const auto batch = world.backend().PrepareBatch(data.description());
    Guarded out(world, 20, kSize);
    Guarded lse(world, 20, 1, Kind::kFloat32);
    world.backend().Attention(*batch, shape, part(0), part(1), part(2), out.view(), lse.view());
    const Matrix want = AttentionReference(data, shape, qkv, nullptr);
    // Scores of thousands in float32 have errors of 1e-3, and so have the weights.
    CHECK(Compare(out.Read(), want, {0, 1e-2}) == "");
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
