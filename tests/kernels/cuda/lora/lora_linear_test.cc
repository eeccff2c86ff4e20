// The LoRA linear on a GPU against float64, part by part; its isolation rules.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/rowwise/rowwise.h"
#include "tests/kernels/cuda/lora/case.h"

namespace lorad::kernels::cuda::testing {
namespace {

constexpr Options kCases[] = {
    {DType::kFloat32, 50, 37, 24, 1, 0.3f, true, true},
    {DType::kFloat32, 260, 96, 40, 1, 0, false, false},
    {DType::kBfloat16, 64, 64, 16, 8, 0, false, true},
    {DType::kBfloat16, 200, 136, 16, 8, 0.1f, true, true},
    {DType::kBfloat16, 136, 328, 60, 8, 0, true, false},
    {DType::kBfloat16, 72, 264, 200, 8, 0.5f, false, true},
    {DType::kBfloat16, 2504, 72, 20, 8, 0.2f, false, true},
    {DType::kBfloat16, 1032, 104, 100, 8, 0, true, true},
    {DType::kBfloat16, 88, 2312, 30, 8, 0.1f, false, false},
    {DType::kBfloat16, 96, 40, 512, 8, 0, false, true},
    {DType::kBfloat16, 56, 104, 24, 1, 0.3f, true, true},  // plain kernels
    {DType::kBfloat16, 8712, 72, 60, 8, 0, false, true},   // 16 slices
    {DType::kBfloat16, 72, 8328, 30, 8, 0, false, true},
    {DType::kBfloat16, 8200, 64, 12, 8, 0, false, true},
};

TEST_CASE("the LoRA linear of a GPU against float64") {
  if (Skipped()) return;
  for (const uint64_t seed : {uint64_t{1}, static_cast<uint64_t>(std::random_device()())}) {
    for (size_t index = 0; index < std::size(kCases); ++index) {
      const Options& options = kCases[index];
      Generator random(seed * 1000 + index);
      constexpr int32_t kSlots = 4;
      const BatchOf batch =
          RandomBatch(random, RandomInteger(random, 1, 6), index % 2 == 0 ? 300 : 90, kSlots);
      INFO("seed " << seed << " case " << index << " tokens " << batch.tokens());
      Case test(random, options, batch, kSlots);
      test.Run();
      test.CheckAll();
    }
  }
}

struct Bits {
  std::vector<uint16_t> saved;
  std::vector<uint16_t> y;
  std::vector<uint16_t> dx;
  std::vector<std::vector<int64_t>> sums;

  bool operator==(const Bits&) const = default;
};

Bits BitsOf(Case& test, int64_t first_row, int64_t rows, size_t slot) {
  Bits bits = {.saved = test.saved().RawRows(first_row, rows),
               .y = test.y().RawRows(first_row, rows),
               .dx = test.dx().RawRows(first_row, rows),
               .sums = {}};
  for (size_t i = 0; i < test.adapter(slot).host().size(); ++i) {
    bits.sums.push_back(test.adapter(slot).da(i).Read());
    bits.sums.push_back(test.adapter(slot).db(i).Read());
  }
  return bits;
}

Options IsolationOptions(float dropout) {
  return {DType::kBfloat16, 2312, 1320, 40, 8, dropout, false, true};
}

TEST_CASE("the same bits in any company, at any place, cut in any way, again and again") {
  if (Skipped()) return;
  for (const float dropout : {0.0f, 0.1f}) {
    constexpr int64_t kRows = 601;
    const DropoutKey key = {.seed = 5, .step = 3, .sequence = 7};
    BatchOf alone;
    alone.Append(kRows, 1, Mode::kTrain, key);
    BatchOf packed;
    packed.Append(37, 0, Mode::kTrain, {.seed = 9, .step = 3, .sequence = 1});
    packed.Append(kRows, 1, Mode::kTrain, key);
    packed.Append(450, 2, Mode::kTrain, {.seed = 10, .step = 1, .sequence = 2});
    packed.Append(5, -1, Mode::kTrain, {});

    // The same adapters in both worlds: the same generator, and inputs copied over.
    Generator one(3), two(3);
    Case first(one, IsolationOptions(dropout), alone, 3);
    Case second(two, IsolationOptions(dropout), packed, 3);
    const auto copy = [&](DeviceMatrix& from, DeviceMatrix& to, bool strangers_nan) {
      const int64_t columns = from.view().columns;
      std::vector<float> values = to.Read();
      if (strangers_nan) {
        std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
      }
      const std::vector<float> source = from.Read();
      std::copy(source.begin(), source.end(), values.begin() + 37 * columns);
      to.Write(values);
    };
    first.Run();
    const Bits want = BitsOf(first, 0, kRows, 1);
    for (int run = 0; run < 20; ++run) {
      first.Run();
      REQUIRE(BitsOf(first, 0, kRows, 1) == want);
    }
    // All slices of a sum by one block, or by blocks in several launches.
    first.world().memory().partial_bytes = int64_t{1} << 20;
    first.Run();
    CHECK(BitsOf(first, 0, kRows, 1) == want);
    first.world().memory().overlaps = false;
    first.Run();
    CHECK(BitsOf(first, 0, kRows, 1) == want);

    for (const bool strangers_nan : {false, true}) {
      copy(first.x(), second.x(), strangers_nan);
      copy(first.dy(), second.dy(), strangers_nan);
      second.Run();
      const Bits got = BitsOf(second, 37, kRows, 1);
      CHECK(got.saved == want.saved);
      CHECK(got.sums == want.sums);
      // By cuBLASLt on other devices these two hold from 256 rows up only.
      CHECK(got.dx == want.dx);
      CHECK(got.y == want.y);
      CHECK(second.world().TakeOverflow(0) == (strangers_nan && !second.adapter(0).host().empty()));
      CHECK_FALSE(second.world().TakeOverflow(1));
      CHECK_FALSE(second.world().TakeOverflow(0));
    }
  }
}

TEST_CASE("chunks that are added up in one block give the bits that they give one by one") {
  if (Skipped()) return;
  constexpr int32_t kSlots = 4;
  for (const int64_t rank_max : {16, 64}) {
    for (const float dropout : {0.0f, 0.1f}) {
      for (const uint64_t seed : {uint64_t{1}, static_cast<uint64_t>(std::random_device()())}) {
        Generator random(seed);
        // From a single chunk to more of one slot than a block takes, trained or not.
        const int64_t segments = RandomInteger(random, 1, 5);
        const BatchOf batch = RandomBatch(random, segments, 1300, kSlots);
        const Options options = {DType::kBfloat16, 712, 1128, rank_max, 8, dropout, false, true};
        INFO("seed " << seed << " rank at most " << rank_max << " tokens " << batch.tokens());
        Case test(random, options, batch, kSlots);
        std::vector<Bits> want;
        for (const int32_t together : {1, 2, kGroupChunks}) {
          test.world().memory().chunks_together = together;
          test.world().memory().multiprocessors = 1;  // as if blocks were too many
          test.Run();
          for (int32_t slot = 0; slot < kSlots; ++slot) {
            const auto index = static_cast<size_t>(slot);
            const Bits bits = BitsOf(test, 0, batch.tokens(), index);
            if (together == 1) want.push_back(bits);
            CHECK(bits == want[index]);
            CHECK_FALSE(test.world().TakeOverflow(slot));
          }
        }
      }
    }
  }
}

// y is gate beside up; SwiGlu(y) by an operation of its own, and by the product's.
void CheckSwiGlu(Generator& random, const Options& options, const BatchOf& batch, Gate gate) {
  Case test(random, options, batch, 2);
  LoraWorld& world = test.world();
  const LoraContext lora = world.lora();
  const CudaBatch on_device(world.context(), batch.description());
  if (!FusesSwiGlu(lora, world.linear())) return;
  const int64_t tokens = batch.tokens();
  DeviceMatrix want(tokens, options.outputs / 2, options.dtype);
  const auto run = [&](const TensorView& gated) {
    test.y().Poison();
    LoraLinear(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(), {},
               test.y().view(), test.saved().view(), gated, {}, gate);
  };
  run({});
  SwiGlu(world.context().stream.get(), test.y().view(), want.view(), gate);
  const std::vector<uint16_t> y = test.y().RawRows(0, tokens);
  for (int repeat = 0; repeat < 3; ++repeat) {
    DeviceMatrix gated(tokens, options.outputs / 2, options.dtype);
    run(gated.view());
    CHECK(test.y().RawRows(0, tokens) == y);
    CHECK(gated.RawRows(0, tokens) == want.RawRows(0, tokens));
    CHECK((test.y().Intact() && gated.Intact()));
  }
}

TEST_CASE("SwiGLU as a product's last step: the bits of a pass of its own") {
  if (Skipped()) return;
  for (const uint64_t seed : {uint64_t{1}, static_cast<uint64_t>(std::random_device()())}) {
    Generator random(seed);
    for (const int64_t outputs : {16, 192, 400, 3072, 5632}) {
      for (const int64_t inputs : {64, 576, 1032}) {
        const BatchOf batch = RandomBatch(random, 3, RandomInteger(random, 1, 300), 2);
        INFO("seed " << seed << " " << inputs << " x " << outputs << ", " << batch.tokens());
        for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
          CheckSwiGlu(random, {DType::kBfloat16, inputs, outputs, 100, 8, 0.1f, false, true}, batch,
                      gate);
        }
      }
    }
  }
}

// Heads of y turned by an operation of its own, and by the product's. angles [P, D].
void CheckRope(Generator& random, const Options& options, const BatchOf& batch, int64_t head_size,
               bool has_bias) {
  Case test(random, options, batch, 2);
  LoraWorld& world = test.world();
  const cudaStream_t stream = world.context().stream.get();
  const CudaBatch on_device(world.context(), batch.description());
  const int64_t tokens = batch.tokens();
  DeviceMatrix bias(1, options.outputs, options.dtype);
  bias.Write(RandomValues(random, options.outputs, 1));
  world.linear().has_bias = has_bias;
  if (has_bias) world.linear().bias = bias.view();
  const int64_t positions = tokens + 2 * kChunkTokens;
  DeviceMatrix angles(positions, head_size, DType::kFloat32);
  angles.Write(RandomValues(random, positions * head_size, 1));
  const int64_t heads = options.outputs / head_size;
  const int64_t rotated = RandomInteger(random, 0, heads) * head_size;
  const GemmRope rope = RopeOf(on_device, angles.view(), rotated);
  if (!FusesRope(world.lora(), world.linear(), rope)) return;
  const auto run = [&](const GemmRope& with) {
    test.y().Poison();
    LoraLinear(world.lora(), on_device, world.linear(), world.table(), kGroup, test.x().view(), {},
               test.y().view(), test.saved().view(), {}, with);
  };
  run({});
  Rope(stream, on_device.tables, angles.view(), 1, test.y().view().Columns(0, rotated));
  const std::vector<uint16_t> want = test.y().RawRows(0, tokens);
  for (int repeat = 0; repeat < 3; ++repeat) {
    run(rope);
    const std::vector<uint16_t> got = test.y().RawRows(0, tokens);
    const size_t first = static_cast<size_t>(
        std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
    const auto columns = static_cast<size_t>(options.outputs);
    INFO("turned " << rotated << ", repeat " << repeat << ", first different in row "
                   << first / columns << " column " << first % columns);
    CHECK(first == got.size());
    CHECK(test.y().Intact());
  }
}

TEST_CASE("rope as a product's last step: the bits of a pass of its own") {
  if (Skipped()) return;
  // Heads of 64, 128 and 256: fewer than a tile has room for, a tile's, and several tiles'.
  constexpr std::pair<int64_t, int64_t> kHeads[] = {{1, 64},  {3, 64},   {40, 64}, {1, 128},
                                                    {5, 128}, {20, 128}, {1, 256}, {4, 256}};
  for (const uint64_t seed : {uint64_t{1}, static_cast<uint64_t>(std::random_device()())}) {
    Generator random(seed);
    for (const auto& [heads, head_size] : kHeads) {
      for (const bool has_bias : {false, true}) {
        const int64_t inputs = 8 * RandomInteger(random, 1, 80);
        const BatchOf batch = RandomBatch(random, 3, RandomInteger(random, 1, 300), 2);
        INFO("seed " << seed << ", " << inputs << " to " << heads << " heads of " << head_size
                     << (has_bias ? ", bias, " : ", ") << batch.tokens() << " rows");
        CheckRope(random, {DType::kBfloat16, inputs, heads * head_size, 100, 8, 0.1f, false, true},
                  batch, head_size, has_bias);
      }
    }
  }
}

// x = SwiGlu(gate_up), and the gradient of gate_up by two operations and by one.
void CheckSwiGluBackward(Generator& random, const Options& options, const BatchOf& batch,
                         Gate gate) {
  constexpr int32_t kSlots = 2;
  Case test(random, options, batch, kSlots);
  LoraWorld& world = test.world();
  const cudaStream_t stream = world.context().stream.get();
  const LoraContext lora = world.lora();
  const CudaBatch on_device(world.context(), batch.description());
  if (!FusesSwiGluBackward(lora, on_device, world.linear(), world.table(), kGroup)) return;
  const int64_t tokens = batch.tokens();
  DeviceMatrix gate_up(tokens, 2 * options.inputs, options.dtype);
  DeviceMatrix want(tokens, 2 * options.inputs, options.dtype);
  gate_up.Write(RandomValues(random, tokens * 2 * options.inputs, 4));
  SwiGlu(stream, gate_up.view(), test.x().view(), gate);
  const TensorView saved = test.saved().view();
  LoraLinear(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(), {},
             test.y().view(), saved);
  LoraLinearBackward(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(),
                     test.dy().view(), test.dx().view(), saved);
  SwiGluBackward(stream, gate_up.view(), test.dx().view(), want.view(), gate);
  const Bits once = BitsOf(test, 0, tokens, 0);
  for (int run = 0; run < 3; ++run) {
    // To a buffer of its own, then in place, which leaves nothing to repeat it from.
    DeviceMatrix got(tokens, 2 * options.inputs, options.dtype);
    const TensorView to = run < 2 ? got.view() : gate_up.view();
    for (size_t slot = 0; slot < kSlots; ++slot) test.adapter(slot).ClearGradients();
    LoraLinearBackward(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(),
                       test.dy().view(), to, saved, gate_up.view(), gate);
    const DeviceMatrix& result = run < 2 ? got : gate_up;
    CHECK(result.RawRows(0, tokens) == want.RawRows(0, tokens));
    if (run < 2) CHECK(got.Intact());
    CHECK(BitsOf(test, 0, tokens, 0).sums == once.sums);
  }
}

TEST_CASE("SwiGLU's gradient as a product's last step: the bits of a pass of its own") {
  if (Skipped()) return;
  for (const uint64_t seed : {uint64_t{1}, static_cast<uint64_t>(std::random_device()())}) {
    Generator random(seed);
    for (const int64_t inputs : {8, 200, 576, 1544, 2816}) {
      for (const int64_t outputs : {64, 576, 1032}) {
        const BatchOf batch = RandomBatch(random, 3, RandomInteger(random, 1, 300), 2);
        INFO("seed " << seed << " " << inputs << " x " << outputs << ", " << batch.tokens());
        for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
          CheckSwiGluBackward(random, {DType::kBfloat16, inputs, outputs, 40, 8, 0, false, true},
                              batch, gate);
          CheckSwiGluBackward(random, {DType::kBfloat16, inputs, outputs, 16, 8, 0.1f, false, true},
                              batch, gate);
        }
      }
    }
  }
}

// Of 410 rows of two adapters.
void CheckMasks(float dropout) {
  INFO("dropout " << dropout);
  Generator random(8);
  Options options = IsolationOptions(dropout);
  BatchOf batch;
  batch.Append(300, 0, Mode::kTrain, {.seed = 77, .step = 2, .sequence = 4});
  batch.Append(40, 0, Mode::kEvaluate, {.seed = 77, .step = 2, .sequence = 5});
  batch.Append(70, 1, Mode::kTrain, {.seed = 78, .step = 9, .sequence = 0});
  Case test(random, options, batch, 2);
  test.Run();
  const LoraMemory& memory = test.world().memory();
  const int64_t row_bytes = MaskRowBytes(options.inputs);
  int64_t wrong = 0;
  int64_t checked = 0;
  for (const Segment& segment : batch.segments) {
    if (segment.mode != Mode::kTrain) continue;
    const auto& hosts = test.adapter(static_cast<size_t>(segment.slot)).host();
    for (size_t index = 0; index < hosts.size(); ++index) {
      if (hosts[index].shape.dropout == 0) continue;
      std::vector<uint8_t> mask(static_cast<size_t>(segment.rows * row_bytes));
      LORAD_CUDA_CHECK(cudaMemcpy(
          mask.data(),
          memory.mask + static_cast<int64_t>(index) * memory.tokens * memory.mask_row_bytes +
              segment.first_row * row_bytes,
          mask.size(), cudaMemcpyDeviceToHost));
      for (int64_t row = 0; row < segment.rows; ++row) {
        for (int64_t k = 0; k < options.inputs; ++k) {
          const uint8_t byte = mask[static_cast<size_t>(row * row_bytes + k / 8)];
          const bool kept = (byte >> (k % 8)) & 1;
          wrong += kept != Kept(segment, hosts[index].shape, row, k) ? 1 : 0;
          ++checked;
        }
      }
    }
  }
  CHECK(checked > 0);
  CHECK(wrong == 0);
}

TEST_CASE("masks are those of the host, bit for bit") {
  if (Skipped()) return;
  for (const float dropout : {0.00002f, 0.1f, 0.25f, 0.5f, 0.50002f, 0.75f, 0.9999f}) {
    CheckMasks(dropout);
  }
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing
