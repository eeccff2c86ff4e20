// The LoRA linear on a GPU against float64, part by part; its isolation rules.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/rowwise.h"
#include "kernels/philox.h"
#include "tests/kernels/cuda/lora_world.h"

namespace lorad::kernels::cuda::testing {
namespace {

constexpr int32_t kGroup = 0;

bool Skipped() {
  if (HaveGpu()) return false;
  WARN("skipped: no GPU");
  return true;
}

// ||got - want|| / ||want||, infinite where something is not finite.
struct Difference {
  double error = 0;
  double size = 0;

  void Add(double got, double want) {
    error +=
        std::isfinite(got) ? (got - want) * (got - want) : std::numeric_limits<double>::infinity();
    size += want * want;
  }
  double relative() const { return size > 0 ? std::sqrt(error / size) : std::sqrt(error); }
};

// Relative, in the norm of a tensor. bf16: products of values with errors of 2^-9 at random.
double Tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-6 : 4e-3; }

struct Options {
  DType dtype;
  int64_t inputs;
  int64_t outputs;
  int64_t rank_max;
  int64_t multiple;  // of target ranges
  float dropout;
  bool residual;
  bool saved;
};

bool Kept(const Segment& segment, const LoraTarget& target, int64_t row, int64_t feature) {
  const PhiloxCounter lanes = Philox(
      segment.dropout.seed,
      {{DropoutWord(static_cast<uint32_t>(target.layer), static_cast<uint32_t>(target.target),
                    static_cast<uint32_t>(feature / 8)),
        static_cast<uint32_t>(segment.first_position + row), segment.dropout.sequence,
        segment.dropout.step}});
  const uint32_t word = lanes.word[feature % 8 / 2];
  return (feature % 2 == 0 ? word & 0xFFFF : word >> 16) >= DropoutThreshold(target.dropout);
}

// A world with `slots` random adapters and everything one forward and backward needs.
class Case {
 public:
  Case(Generator& random, const Options& options, const BatchOf& batch, int32_t slots)
      : options_(options),
        batch_(batch),
        world_(options.dtype, LimitsOf(options, batch.tokens()), options.inputs, options.outputs,
               slots),
        x_(batch.tokens(), options.inputs, options.dtype),
        dy_(batch.tokens(), options.outputs, options.dtype),
        residual_(batch.tokens(), options.outputs, options.dtype),
        y_(batch.tokens(), options.outputs, options.dtype),
        dx_(batch.tokens(), options.inputs, options.dtype),
        saved_(batch.tokens(), 3 * PaddedRank(options.rank_max), options.dtype) {
    world_.weight().Write(RandomValues(random, options.outputs * options.inputs, 1));
    for (int32_t slot = 0; slot < slots; ++slot) {
      adapters_.push_back(std::make_unique<DeviceAdapter>(
          options.inputs, options.dtype,
          RandomTargets(random, options.inputs, options.outputs, options.rank_max, options.multiple,
                        options.dropout)));
      world_.table().SetTargets(slot, kGroup, adapters_.back()->targets());
    }
    x_.Write(RandomValues(random, batch.tokens() * options.inputs, 1));
    dy_.Write(RandomValues(random, batch.tokens() * options.outputs, 1));
    residual_.Write(RandomValues(random, batch.tokens() * options.outputs, 1));
  }

  static Limits LimitsOf(const Options& options, int64_t tokens) {
    return {.tokens = tokens,
            .features = std::max(options.inputs, options.outputs),
            .rank = options.rank_max,
            .slots = 8,
            .targets_in_group = 3};
  }

  LoraWorld& world() { return world_; }
  DeviceMatrix& x() { return x_; }
  DeviceMatrix& dy() { return dy_; }
  DeviceMatrix& y() { return y_; }
  DeviceMatrix& dx() { return dx_; }
  DeviceMatrix& saved() { return saved_; }
  DeviceAdapter& adapter(size_t slot) { return *adapters_[slot]; }
  size_t adapters() const { return adapters_.size(); }

  void Run() {
    world_.PoisonScratch();
    for (DeviceMatrix* out : {&y_, &dx_, &saved_}) out->Poison();
    for (const auto& adapter : adapters_) adapter->ClearGradients();
    const CudaBatch batch(world_.context(), batch_.description());
    const LoraContext lora = world_.lora();
    const TensorView saved = options_.saved ? saved_.view() : TensorView();
    LoraLinear(lora, batch, world_.linear(), world_.table(), kGroup, x_.view(),
               options_.residual ? residual_.view() : TensorView(), y_.view(), saved);
    LoraLinearBackward(lora, batch, world_.linear(), world_.table(), kGroup, x_.view(), dy_.view(),
                       dx_.view(), saved);
    world_.Synchronize();
  }

  void CheckAll();

 private:
  void CheckRows();
  void CheckSaved(const std::vector<float>& saved);
  void CheckGradients();
  std::vector<double> Masked(const Segment& segment, const LoraTarget& target,
                             const std::vector<float>& x, int64_t row) const;
  // S and dS of one row and target, unrounded.
  std::vector<double> Down(const Segment& segment, const HostTarget& host,
                           const std::vector<float>& x, int64_t row) const;
  std::vector<double> DownGradient(const HostTarget& host, const std::vector<float>& dy,
                                   int64_t row) const;

  const Options options_;
  const BatchOf batch_;
  LoraWorld world_;
  DeviceMatrix x_, dy_, residual_, y_, dx_, saved_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
};

std::vector<double> Case::Masked(const Segment& segment, const LoraTarget& target,
                                 const std::vector<float>& x, int64_t row) const {
  const bool drops = segment.mode == Mode::kTrain && target.dropout > 0;
  const double keep = drops ? 1 / (1 - static_cast<double>(target.dropout)) : 1;
  std::vector<double> masked(static_cast<size_t>(options_.inputs));
  for (int64_t k = 0; k < options_.inputs; ++k) {
    if (drops && !Kept(segment, target, row - segment.first_row, k)) continue;
    masked[static_cast<size_t>(k)] =
        keep * static_cast<double>(x[static_cast<size_t>(row * options_.inputs + k)]);
  }
  return masked;
}

std::vector<double> Case::Down(const Segment& segment, const HostTarget& host,
                               const std::vector<float>& x, int64_t row) const {
  const std::vector<double> masked = Masked(segment, host.shape, x, row);
  std::vector<double> s(static_cast<size_t>(host.shape.rank));
  for (size_t r = 0; r < s.size(); ++r) {
    for (size_t k = 0; k < masked.size(); ++k) {
      s[r] += masked[k] * static_cast<double>(host.a[r * masked.size() + k]);
    }
    s[r] *= static_cast<double>(host.shape.scale);
  }
  return s;
}

std::vector<double> Case::DownGradient(const HostTarget& host, const std::vector<float>& dy,
                                       int64_t row) const {
  const size_t rank = static_cast<size_t>(host.shape.rank);
  std::vector<double> ds(rank);
  const float* gradient = dy.data() + row * options_.outputs + host.shape.first_output;
  for (size_t o = 0; o < static_cast<size_t>(host.shape.outputs); ++o) {
    for (size_t r = 0; r < rank; ++r) {
      ds[r] += static_cast<double>(gradient[o]) * static_cast<double>(host.b[o * rank + r]);
    }
  }
  for (double& value : ds) value *= static_cast<double>(host.shape.scale);
  return ds;
}

// y and dx.
void Case::CheckRows() {
  const std::vector<float> x = x_.Read(), dy = dy_.Read(), w = world_.weight().Read();
  const std::vector<float> y = y_.Read(), dx = dx_.Read(), residual = residual_.Read();
  const size_t inputs = static_cast<size_t>(options_.inputs);
  const size_t outputs = static_cast<size_t>(options_.outputs);
  Difference of_y, of_dx;
  for (const Segment& segment : batch_.segments) {
    for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; row += 3) {
      std::vector<double> want_y(outputs), want_dx(inputs);
      const float* x_row = x.data() + static_cast<size_t>(row) * inputs;
      const float* dy_row = dy.data() + static_cast<size_t>(row) * outputs;
      for (size_t o = 0; o < outputs; ++o) {
        for (size_t k = 0; k < inputs; ++k) {
          const double weight = static_cast<double>(w[o * inputs + k]);
          want_y[o] += static_cast<double>(x_row[k]) * weight;
          want_dx[k] += static_cast<double>(dy_row[o]) * weight;
        }
        const size_t at = static_cast<size_t>(row) * outputs + o;
        if (options_.residual) want_y[o] += static_cast<double>(residual[at]);
      }
      const bool on = segment.slot >= 0 && segment.mode != Mode::kReference;
      const std::vector<HostTarget> none;
      for (const HostTarget& host :
           on ? adapters_[static_cast<size_t>(segment.slot)]->host() : none) {
        const LoraTarget& target = host.shape;
        const size_t rank = static_cast<size_t>(target.rank);
        const std::vector<double> s = Down(segment, host, x, row);
        const std::vector<double> ds = DownGradient(host, dy, row);
        for (size_t o = 0; o < static_cast<size_t>(target.outputs); ++o) {
          for (size_t r = 0; r < rank; ++r) {
            want_y[static_cast<size_t>(target.first_output) + o] +=
                s[r] * static_cast<double>(host.b[o * rank + r]);
          }
        }
        const bool drops = segment.mode == Mode::kTrain && target.dropout > 0;
        const double keep = drops ? 1 / (1 - static_cast<double>(target.dropout)) : 1;
        for (size_t k = 0; k < inputs; ++k) {
          if (drops && !Kept(segment, target, row - segment.first_row, static_cast<int64_t>(k))) {
            continue;
          }
          for (size_t r = 0; r < rank; ++r) {
            want_dx[k] += keep * ds[r] * static_cast<double>(host.a[r * inputs + k]);
          }
        }
      }
      for (size_t o = 0; o < outputs; ++o) {
        of_y.Add(static_cast<double>(y[static_cast<size_t>(row) * outputs + o]), want_y[o]);
      }
      for (size_t k = 0; k < inputs; ++k) {
        of_dx.Add(static_cast<double>(dx[static_cast<size_t>(row) * inputs + k]), want_dx[k]);
      }
    }
  }
  CHECK(of_y.relative() < Tolerance(options_.dtype));
  CHECK(of_dx.relative() < Tolerance(options_.dtype));
}

void Case::CheckSaved(const std::vector<float>& saved) {
  const std::vector<float> x = x_.Read();
  Difference of_s;
  for (const Segment& segment : batch_.segments) {
    if (segment.slot < 0 || segment.mode == Mode::kReference) continue;
    int64_t column = 0;
    for (const HostTarget& host : adapters_[static_cast<size_t>(segment.slot)]->host()) {
      for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; row += 5) {
        const std::vector<double> s = Down(segment, host, x, row);
        const float* got = saved.data() + row * saved_.view().columns + column;
        for (size_t r = 0; r < s.size(); ++r) of_s.Add(static_cast<double>(got[r]), s[r]);
        for (int64_t r = host.shape.rank; r < PaddedRank(host.shape.rank); ++r) {
          if (got[r] != 0) of_s.Add(1, 0);
        }
      }
      column += PaddedRank(host.shape.rank);
    }
  }
  CHECK(of_s.relative() < Tolerance(options_.dtype));
}

void Case::CheckGradients() {
  const std::vector<float> x = x_.Read(), dy = dy_.Read();
  const size_t inputs = static_cast<size_t>(options_.inputs);
  for (size_t slot = 0; slot < adapters_.size(); ++slot) {
    const auto& hosts = adapters_[slot]->host();
    for (size_t index = 0; index < hosts.size(); ++index) {
      const HostTarget& host = hosts[index];
      const size_t rank = static_cast<size_t>(host.shape.rank);
      const size_t outputs = static_cast<size_t>(host.shape.outputs);
      std::vector<double> da(rank * inputs), db(outputs * rank);
      for (const Segment& segment : batch_.segments) {
        if (segment.mode != Mode::kTrain || segment.slot != static_cast<int32_t>(slot)) continue;
        for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
          const std::vector<double> masked = Masked(segment, host.shape, x, row);
          const std::vector<double> s = Down(segment, host, x, row);
          const std::vector<double> ds = DownGradient(host, dy, row);
          for (size_t r = 0; r < rank; ++r) {
            for (size_t k = 0; k < inputs; ++k) da[r * inputs + k] += ds[r] * masked[k];
          }
          const float* gradient = dy.data() + row * options_.outputs + host.shape.first_output;
          for (size_t o = 0; o < outputs; ++o) {
            for (size_t r = 0; r < rank; ++r) {
              db[o * rank + r] += static_cast<double>(gradient[o]) * s[r];
            }
          }
        }
      }
      Difference of_a, of_b;
      const std::vector<int64_t> got_a = adapters_[slot]->da(index).Read();
      const std::vector<int64_t> got_b = adapters_[slot]->db(index).Read();
      for (size_t i = 0; i < da.size(); ++i) {
        of_a.Add(static_cast<double>(got_a[i]) * kGradientQuantum, da[i]);
      }
      for (size_t i = 0; i < db.size(); ++i) {
        of_b.Add(static_cast<double>(got_b[i]) * kGradientQuantum, db[i]);
      }
      INFO("slot " << slot << " target " << index << " rank " << rank);
      CHECK(of_a.relative() < Tolerance(options_.dtype));
      CHECK(of_b.relative() < Tolerance(options_.dtype));
      CHECK(adapters_[slot]->da(index).Intact());
      CHECK(adapters_[slot]->db(index).Intact());
    }
    CHECK_FALSE(world_.TakeOverflow(static_cast<int32_t>(slot)));
  }
}

void Case::CheckAll() {
  CHECK(y_.Intact());
  CHECK(dx_.Intact());
  CHECK(saved_.Intact());
  CheckRows();
  if (options_.saved) CheckSaved(saved_.Read());
  CheckGradients();
}

BatchOf RandomBatch(Generator& random, int64_t segments, int64_t rows_max, int32_t slots) {
  BatchOf batch;
  for (int64_t i = 0; i < segments; ++i) {
    const int64_t mode = RandomInteger(random, 0, 7);
    batch.Append(RandomInteger(random, 1, rows_max),
                 static_cast<int32_t>(RandomInteger(random, -1, slots - 1)),
                 mode == 0   ? Mode::kReference
                 : mode == 1 ? Mode::kEvaluate
                             : Mode::kTrain,
                 {.seed = random(),
                  .step = static_cast<uint32_t>(RandomInteger(random, 1, 1000)),
                  .sequence = static_cast<uint32_t>(i)});
    batch.segments.back().first_position = kChunkTokens * RandomInteger(random, 0, 2);
  }
  return batch;
}

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
    // All slices of a sum by one block.
    first.world().memory().partial_bytes = 0;
    first.Run();
    CHECK(BitsOf(first, 0, kRows, 1) == want);
    first.world().memory().early = false;
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
void CheckSwiGlu(Generator& random, const Options& options, const BatchOf& batch) {
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
               test.y().view(), test.saved().view(), gated);
  };
  run({});
  SwiGlu(world.context().stream.get(), test.y().view(), want.view());
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
        CheckSwiGlu(random, {DType::kBfloat16, inputs, outputs, 100, 8, 0.1f, false, true}, batch);
      }
    }
  }
}

// x = SwiGlu(gate_up), and the gradient of gate_up by two operations and by one.
void CheckSwiGluBackward(Generator& random, const Options& options, const BatchOf& batch) {
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
  SwiGlu(stream, gate_up.view(), test.x().view());
  const TensorView saved = test.saved().view();
  LoraLinear(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(), {},
             test.y().view(), saved);
  LoraLinearBackward(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(),
                     test.dy().view(), test.dx().view(), saved);
  SwiGluBackward(stream, gate_up.view(), test.dx().view(), want.view());
  const Bits once = BitsOf(test, 0, tokens, 0);
  for (int run = 0; run < 3; ++run) {
    // To a buffer of its own, then in place, which leaves nothing to repeat it from.
    DeviceMatrix got(tokens, 2 * options.inputs, options.dtype);
    const TensorView to = run < 2 ? got.view() : gate_up.view();
    for (size_t slot = 0; slot < kSlots; ++slot) test.adapter(slot).ClearGradients();
    LoraLinearBackward(lora, on_device, world.linear(), world.table(), kGroup, test.x().view(),
                       test.dy().view(), to, saved, gate_up.view());
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
        CheckSwiGluBackward(random, {DType::kBfloat16, inputs, outputs, 40, 8, 0, false, true},
                            batch);
        CheckSwiGluBackward(random, {DType::kBfloat16, inputs, outputs, 16, 8, 0.1f, false, true},
                            batch);
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
