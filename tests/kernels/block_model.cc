#include "tests/kernels/block_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace lorad::kernels::testing {
namespace {

constexpr float kEps = 1e-5f;
constexpr double kHuge = 0x1p126;  // of any type, exactly
constexpr int64_t kPositions = 2048;
constexpr int64_t kLossRowsMax = 32768;  // of a microbatch

// Large models draw one part and repeat it: the numbers need not be good, but there.
Matrix Weight(const World& world, Random& random, int64_t rows, int64_t columns, double size) {
  constexpr int64_t kDrawn = int64_t{1} << 20;
  if (rows * columns <= kDrawn) return world.RandomMatrix(random, rows, columns, size);
  const Matrix drawn = world.RandomMatrix(random, 1, kDrawn - 3, size);
  Matrix matrix(rows, columns);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    matrix.values[i] = drawn.values[i % drawn.values.size()];
  }
  return matrix;
}

}  // namespace

// A microbatch's activations and gradients.
struct BlockModel::Buffers {
  TensorView x0, normed, qkv, mixed, x1, gate_up, gated, x2;
  TensorView dx, dgated, dgate_up, dnormed, dmixed, dqkv;
  TensorView lse, log_p, unit;
  TensorView saved[kGroups];  // of half of the linears; S of the others is computed again
};

Limits BlockModel::LimitsOf(const BlockShape& shape, int64_t tokens, int64_t longest) {
  return {.tokens = tokens,
          .longest_segment = longest,
          .features = std::max(2 * shape.feed_forward,
                               (shape.heads + 2 * shape.kv_heads) * shape.head_size),
          .hidden = shape.hidden,
          .vocabulary = shape.vocabulary,
          .rank = std::max<int64_t>(shape.rank, 4 * kJobs),
          .slots = 8,
          .targets_in_group = kTargetsOfGroup,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_size = shape.head_size};
}

BlockModel::BlockModel(World& world, const BlockShape& shape, uint64_t seed, std::vector<int> jobs)
    : world_(world),
      backend_(world.backend()),
      shape_(shape),
      attention_{.heads = shape.heads,
                 .kv_heads = shape.kv_heads,
                 .head_size = shape.head_size,
                 .scale = 1 / std::sqrt(static_cast<float>(shape.head_size))},
      jobs_(std::move(jobs)),
      qkv_columns_((shape.heads + 2 * shape.kv_heads) * shape.head_size) {
  Random random(seed);
  const int64_t h = shape.hidden;
  const int64_t f = shape.feed_forward;
  Matrix words = Weight(world, random, shape.vocabulary, h, 1);
  for (int64_t i = 0; i < h; ++i) words.at(shape.vocabulary - 1, i) = NAN;
  embedding_ = DeviceLinear(world, words, Matrix());
  head_ = DeviceLinear(world, Weight(world, random, shape.vocabulary, h, 1), Matrix());
  norm_ = std::make_unique<Guarded>(world, RandomMatrix(random, 1, h), Kind::kFloat32);
  const std::pair<int64_t, int64_t> shapes[kGroups] = {
      {qkv_columns_, h}, {h, shape.heads * shape.head_size}, {2 * f, h}, {h, f}};
  table_ = backend_.MakeAdapterTable(static_cast<int32_t>(jobs_.size()), kGroups);
  for (int32_t group = 0; group < kGroups; ++group) {
    const auto [outputs, inputs] = shapes[group];
    const double size = 2 / std::sqrt(static_cast<double>(inputs));
    linears_.push_back(DeviceLinear(world, Weight(world, random, outputs, inputs, size), Matrix()));
    for (size_t slot = 0; slot < jobs_.size(); ++slot) {
      const int job = jobs_[slot];
      Random of_job(seed + 1000 * static_cast<uint64_t>(job + 2) + static_cast<uint64_t>(group));
      const int64_t rank = job == kWatchedJob ? shape.rank : 4 * (job + 1);
      Adapter adapter;
      if (job >= 0) adapter = RandomAdapter(world, of_job, inputs, outputs, rank, 0.125);
      for (Target& target : adapter) {
        for (double& value : target.a.values) value *= 0.25;
        // A stranger that has diverged: its activations overflow.
        if (job == kDivergedJob) target.b.values[0] = kHuge;
      }
      adapters_.emplace_back(world, *table_, static_cast<int32_t>(slot), group, adapter);
    }
  }
  rope_ = std::make_unique<Guarded>(world, kPositions, shape.head_size, Kind::kFloat32);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < shape.head_size / 2; ++i) {
    frequencies.push_back(std::pow(0.3f, static_cast<float>(i)));
  }
  backend_.FillRope(frequencies, 1, rope_->view());
  for (const int job : jobs_) optimizers_.push_back(OptimizerOf(job));
  MakeReadings();
}

void BlockModel::MakeReadings() {
  const auto lay = [this](Arena& arena) {
    readings_ = {.log_p = arena.Allocate<float>(kLossRowsMax),
                 .sums = arena.Allocate<double>(static_cast<int64_t>(jobs_.size()) * kMatricesMax),
                 .overflows = arena.Allocate<int32_t>(static_cast<int64_t>(jobs_.size()))};
  };
  Arena counting(Device::kCpu);
  lay(counting);
  auto arena = backend_.MakeHostArena(counting.bytes_max());
  assert(arena.ok());
  host_arena_ = *std::move(arena);
  lay(*host_arena_);
}

BatchData BlockModel::Describe(const Microbatch& microbatch) const {
  BatchData data;
  for (const BlockSequence& sequence : microbatch) {
    Random random(static_cast<uint64_t>(1000 + sequence.name));
    const size_t first = data.ids.size();
    const auto at = std::find(jobs_.begin(), jobs_.end(), sequence.job);
    const bool off = sequence.job < 0 || at == jobs_.end();
    const int32_t slot = off ? -1 : static_cast<int32_t>(at - jobs_.begin());
    data.Append(random, sequence.rows, slot, Mode::kTrain,
                {.seed = 99,
                 .step = static_cast<uint32_t>(7 + steps_),
                 .sequence = static_cast<uint32_t>(100 + sequence.name)},
                shape_.vocabulary - 1);
    if (sequence.broken) data.ids[first] = static_cast<int32_t>(shape_.vocabulary - 1);
  }
  return data;
}

void BlockModel::Run(const Microbatch& microbatch, BlockBits* bits) {
  const BatchData data = Describe(microbatch);
  const auto batch = backend_.PrepareBatch(data.description());
  const int64_t t = data.tokens();
  const int64_t n = static_cast<int64_t>(data.loss_rows.size());
  const int64_t h = shape_.hidden;
  const int64_t f = shape_.feed_forward;
  const int64_t q = shape_.heads * shape_.head_size;
  const int64_t mark = world_.arena().used();
  const auto take = [&](int64_t rows, int64_t columns) {
    return world_.arena().Matrix(rows, columns, backend_.activation_dtype());
  };
  const Buffers buffers = {.x0 = take(t, h),
                           .normed = take(t, h),
                           .qkv = take(t, qkv_columns_),
                           .mixed = take(t, q),
                           .x1 = take(t, h),
                           .gate_up = take(t, 2 * f),
                           .gated = take(t, f),
                           .x2 = take(t, h),
                           .dx = take(t, h),
                           .dgated = take(t, f),
                           .dgate_up = take(t, 2 * f),
                           .dnormed = take(t, h),
                           .dmixed = take(t, q),
                           .dqkv = take(t, qkv_columns_),
                           .lse = world_.arena().Matrix(t, shape_.heads),
                           .log_p = world_.arena().Matrix(1, n),
                           .unit = take(n, h),
                           .saved = {take(t, SavedColumns()), {}, take(t, SavedColumns()), {}}};
  Forward(*batch, buffers);
  Backward(*batch, buffers, n);
  assert(n <= kLossRowsMax);
  backend_.ReadBack(buffers.log_p, readings_.log_p);
  if (bits != nullptr) Collect(microbatch, data, buffers, bits);
  world_.arena().Rewind(mark);
}

void BlockModel::Forward(const Batch& batch, const Buffers& b) {
  const int64_t n = shape_.heads;
  const int64_t g = shape_.kv_heads;
  backend_.Embed(batch, *embedding_, 1, b.x0);
  backend_.RmsNorm(batch, b.x0, norm_->view(), kEps, b.normed);
  backend_.LoraLinearRope(batch, *linears_[kQkv], *table_, kQkv, b.normed, rope_->view(),
                          Heads(b.qkv, 0, n + g).columns, b.qkv, b.saved[kQkv]);
  backend_.Attention(batch, attention_, Heads(b.qkv, 0, n), Heads(b.qkv, n, g),
                     Heads(b.qkv, n + g, g), b.mixed, b.lse);
  Linear(batch, kOut, b.mixed, b.x0, b.x1, b.saved[kOut]);
  backend_.RmsNorm(batch, b.x1, norm_->view(), kEps, b.normed);
  backend_.LoraLinearSwiGlu(batch, *linears_[kGateUp], *table_, kGateUp, Gate::kSilu, b.normed,
                            b.gate_up, b.gated, b.saved[kGateUp]);
  Linear(batch, kDown, b.gated, b.x1, b.x2, b.saved[kDown]);
  backend_.LinearLoss(batch, b.x2, *head_, 0, b.log_p, b.unit);
}

void BlockModel::Backward(const Batch& batch, const Buffers& b, int64_t loss_rows) {
  const int64_t n = shape_.heads;
  const int64_t g = shape_.kv_heads;
  const TensorView weight = norm_->view();
  backend_.LossBackward(batch, std::vector<float>(static_cast<size_t>(loss_rows), -0.01f), b.unit,
                        b.dx);
  backend_.LoraLinearSwiGluBackward(batch, *linears_[kDown], *table_, kDown, Gate::kSilu, b.gate_up,
                                    b.gated, b.dx, b.dgated, b.dgate_up, b.saved[kDown]);
  LinearBackward(batch, kGateUp, b.normed, b.dgate_up, b.dnormed, b.saved[kGateUp]);
  backend_.RmsNormBackward(batch, b.x1, weight, kEps, b.dnormed, b.dx);
  LinearBackward(batch, kOut, b.mixed, b.dx, b.dmixed, b.saved[kOut]);
  backend_.AttentionRopeBackward(batch, attention_, rope_->view(), Heads(b.qkv, 0, n),
                                 Heads(b.qkv, n, g), Heads(b.qkv, n + g, g), b.mixed, b.lse,
                                 b.dmixed, Heads(b.dqkv, 0, n), Heads(b.dqkv, n, g),
                                 Heads(b.dqkv, n + g, g));
  backend_.RmsNorm(batch, b.x0, weight, kEps, b.normed);
  LinearBackward(batch, kQkv, b.normed, b.dqkv, b.dnormed, b.saved[kQkv]);
  backend_.RmsNormBackward(batch, b.x0, weight, kEps, b.dnormed, b.dx);
}

void BlockModel::Linear(const Batch& batch, Group group, const TensorView& x,
                        const TensorView& residual, const TensorView& y, const TensorView& saved) {
  backend_.LoraLinear(batch, *linears_[group], *table_, group, x, residual, y, saved);
}

void BlockModel::LinearBackward(const Batch& batch, Group group, const TensorView& x,
                                const TensorView& dy, const TensorView& dx,
                                const TensorView& saved) {
  backend_.LoraLinearBackward(batch, *linears_[group], *table_, group, x, dy, dx, saved);
}

std::vector<DeviceAdapter*> BlockModel::AdaptersOf(int job) {
  std::vector<DeviceAdapter*> adapters;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    if (jobs_[i % jobs_.size()] == job) adapters.push_back(&adapters_[i]);
  }
  return adapters;
}

std::unique_ptr<Optimizer> BlockModel::OptimizerOf(int job) {
  std::vector<OptimizerTensor> tensors;
  for (DeviceAdapter* adapter : AdaptersOf(job)) {
    const std::vector<OptimizerTensor> part = adapter->Tensors(0.01);
    tensors.insert(tensors.end(), part.begin(), part.end());
  }
  return tensors.empty() ? nullptr : backend_.MakeOptimizer(tensors);
}

void BlockModel::Step() {
  ++steps_;
  std::vector<NormRequest> norms;
  std::vector<StepRequest> steps;
  for (size_t slot = 0; slot < jobs_.size(); ++slot) {
    const Optimizer* optimizer = optimizers_[slot].get();
    if (optimizer == nullptr) continue;
    norms.push_back({optimizer, readings_.sums + slot * kMatricesMax});
    if (jobs_[slot] == kDivergedJob) continue;
    const double learning_rate = jobs_[slot] == kWatchedJob ? 1e-3 : 0;
    steps.push_back(
        {optimizer, {.learning_rate = learning_rate, .step = steps_, .clip_factor = 0.5}});
  }
  backend_.SumsOfSquares(norms);
  for (size_t slot = 0; slot < jobs_.size(); ++slot) {
    if (optimizers_[slot] == nullptr) continue;
    backend_.TakeOverflow(*table_, static_cast<int32_t>(slot), readings_.overflows + slot);
    if (jobs_[slot] == kDivergedJob) backend_.DropGradients(*optimizers_[slot]);
  }
  backend_.AdamW(steps);
}

BlockBits BlockModel::Train(const std::vector<Microbatch>& microbatches, int steps) {
  BlockBits bits;
  for (int step = 0; step < steps; ++step) {
    const bool last = step + 1 == steps;
    for (const Microbatch& microbatch : microbatches) Run(microbatch, last ? &bits : nullptr);
    if (last) {
      for (const DeviceAdapter* adapter : AdaptersOf(kWatchedJob)) {
        const std::vector<int64_t> part = adapter->Accumulators();
        bits.accumulators.insert(bits.accumulators.end(), part.begin(), part.end());
      }
    }
    Step();
  }
  for (const DeviceAdapter* adapter : AdaptersOf(kWatchedJob)) {
    const std::vector<float> part = adapter->State();
    bits.state.insert(bits.state.end(), part.begin(), part.end());
  }
  return bits;
}

void BlockModel::Collect(const Microbatch& microbatch, const BatchData& data, const Buffers& b,
                         BlockBits* bits) {
  // Not dgated: it may be passed by (LoraLinearSwiGluBackward).
  const TensorView results[] = {b.x0, b.normed, b.qkv,      b.mixed,   b.x1,     b.gate_up, b.gated,
                                b.x2, b.dx,     b.dgate_up, b.dnormed, b.dmixed, b.dqkv,    b.lse};
  for (size_t index = 0; index < microbatch.size(); ++index) {
    if (microbatch[index].job != kWatchedJob) continue;
    const Segment& segment = data.segments[index];
    std::vector<float>& rows = bits->sequences[microbatch[index].name];
    for (const TensorView& result : results) {
      std::vector<float> host(static_cast<size_t>(segment.rows * result.columns));
      backend_.CopyToHost(result.Rows(segment.first_row, segment.rows), host.data());
      rows.insert(rows.end(), host.begin(), host.end());
    }
    std::vector<float> all(static_cast<size_t>(b.log_p.columns));
    backend_.CopyToHost(b.log_p, all.data());
    for (size_t i = 0; i < data.loss_rows.size(); ++i) {
      const int64_t row = data.loss_rows[i].row - segment.first_row;
      if (row >= 0 && row < segment.rows) rows.push_back(all[i]);
    }
  }
}

}  // namespace lorad::kernels::testing
