// Exactness: what a sequence and its slot get does not depend on company, place, grouping into
// microbatches or threads. One block of a model, forward and backward, every intermediate result
// compared bit for bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "tests/kernels/lora_fixture.h"

namespace lorad::kernels::testing {
namespace {

constexpr int64_t kHidden = 96;
constexpr int64_t kFeedForward = 400;
constexpr int64_t kVocabulary = 1100;
constexpr int32_t kNanWord = kVocabulary - 1;  // its embedding is not a number
constexpr AttentionShape kAttentionShape = {
    .heads = 6, .kv_heads = 2, .head_size = 16, .scale = 0.25f};
constexpr int64_t kQkv = (6 + 2 * 2) * 16;
constexpr int32_t kSlots = 3;
constexpr float kEps = 1e-5f;
constexpr int32_t kVictim = 0;  // the slot whose bits are watched

enum Group : int32_t { kQkvGroup, kOutGroup, kGateUpGroup, kDownGroup, kGroups };

// A sequence of some job; `name` tells the watched ones apart, negative for strangers.
struct Sequence {
  int name;
  int64_t rows;
  int32_t slot;
  bool broken;  // its first token's embedding is not a number
};
using Microbatch = std::vector<Sequence>;

struct Shape {
  int64_t outputs;
  int64_t inputs;
};
constexpr Shape kShapes[kGroups] = {
    {kQkv, kHidden}, {kHidden, kHidden}, {2 * kFeedForward, kHidden}, {kHidden, kFeedForward}};

// Everything that a sequence's rows and a slot's accumulators came to.
struct Bits {
  std::map<int, std::vector<float>> sequences;  // by name
  std::vector<int64_t> accumulators;
  bool operator==(const Bits&) const = default;
};

// The same model and adapters, whatever the world.
class Model {
 public:
  Model(World& world, uint64_t seed) : world_(world), backend_(world.backend()) {
    Random random(seed);
    Matrix words = RandomMatrix(random, kVocabulary, kHidden);
    for (int64_t i = 0; i < kHidden; ++i) words.at(kNanWord, i) = NAN;
    embedding_ = DeviceLinear(world, words, Matrix());
    head_ = DeviceLinear(world, RandomMatrix(random, kVocabulary, kHidden), Matrix());
    norm_ = std::make_unique<Guarded>(world, RandomMatrix(random, 1, kHidden));
    table_ = backend_.MakeAdapterTable(kSlots, kGroups);
    for (int32_t group = 0; group < kGroups; ++group) {
      const Shape& shape = kShapes[group];
      linears_.push_back(
          DeviceLinear(world, RandomMatrix(random, shape.outputs, shape.inputs, 0.2), Matrix()));
      for (int32_t slot = 0; slot < kSlots; ++slot) {
        const int64_t rank = slot == 0 ? 13 : 4 * slot;
        Adapter adapter = RandomAdapter(random, shape.inputs, shape.outputs, rank, 0.125);
        if (slot == kSlots - 1) {  // a stranger that has diverged
          for (Target& target : adapter) target.b.values[0] = NAN;
        }
        adapters_.emplace_back(world, *table_, slot, group, adapter);
      }
    }
    rope_ = std::make_unique<Guarded>(world, 900, kAttentionShape.head_size);
    std::vector<float> frequencies;
    for (int i = 0; i < 8; ++i) frequencies.push_back(std::pow(0.3f, static_cast<float>(i)));
    backend_.FillRope(frequencies, 1, rope_->view());
  }

  Bits Train(const std::vector<Microbatch>& microbatches) {
    Bits bits;
    for (const Microbatch& microbatch : microbatches) Run(microbatch, bits);
    for (int32_t group = 0; group < kGroups; ++group) {
      const auto part = adapters_[static_cast<size_t>(group * kSlots + kVictim)].Accumulators();
      bits.accumulators.insert(bits.accumulators.end(), part.begin(), part.end());
    }
    return bits;
  }

 private:
  static BatchData Describe(const Microbatch& microbatch) {
    BatchData data;
    for (const Sequence& sequence : microbatch) {
      // The tokens are the sequence's own: a function of its name.
      Random random(static_cast<uint64_t>(1000 + sequence.name));
      const size_t first = data.ids.size();
      data.Append(random, sequence.rows, sequence.slot, Mode::kTrain,
                  {.seed = 99, .step = 7, .sequence = static_cast<uint32_t>(100 + sequence.name)},
                  kNanWord);
      if (sequence.broken) data.ids[first] = kNanWord;
    }
    return data;
  }

  void Run(const Microbatch& microbatch, Bits& bits) {
    const BatchData data = Describe(microbatch);
    const auto batch = backend_.PrepareBatch(data.description());
    const int64_t t = data.tokens();
    const int64_t n = static_cast<int64_t>(data.loss_rows.size());
    const int64_t mark = world_.arena().used();
    std::vector<TensorView> results;
    const auto take = [&](int64_t columns) {
      results.push_back(world_.arena().Matrix(t, columns));
      return results.back();
    };
    const TensorView x0 = take(kHidden), normed = take(kHidden), qkv = take(kQkv);
    const TensorView mixed = take(kHidden), lse = take(kAttentionShape.heads), x1 = take(kHidden);
    const TensorView gate_up = take(2 * kFeedForward), gated = take(kFeedForward),
                     x2 = take(kHidden);
    const TensorView dx = take(kHidden), dgated = take(kFeedForward),
                     dgate_up = take(2 * kFeedForward);
    const TensorView dnormed = take(kHidden), dmixed = take(kHidden), dqkv = take(kQkv);
    const auto part = [](const TensorView& view, int64_t first, int64_t heads) {
      return view.Columns(first * 16, heads * 16);
    };
    const TensorView weight = norm_->view();

    backend_.Embed(*batch, *embedding_, x0);
    backend_.RmsNorm(*batch, x0, weight, kEps, normed);
    Forward(*batch, kQkvGroup, normed, {}, qkv);
    backend_.Rope(*batch, rope_->view(), part(qkv, 0, 8));
    backend_.Attention(*batch, kAttentionShape, part(qkv, 0, 6), part(qkv, 6, 2), part(qkv, 8, 2),
                       mixed, lse);
    Forward(*batch, kOutGroup, mixed, x0, x1);
    backend_.RmsNorm(*batch, x1, weight, kEps, normed);
    Forward(*batch, kGateUpGroup, normed, {}, gate_up);
    backend_.SwiGlu(*batch, gate_up, gated);
    Forward(*batch, kDownGroup, gated, x1, x2);
    const TensorView log_p = world_.arena().Matrix(1, n);
    const TensorView unit = world_.arena().Matrix(n, kHidden);
    backend_.LinearLoss(*batch, x2, *head_, log_p, unit);

    backend_.LossBackward(*batch, std::vector<float>(static_cast<size_t>(n), -0.01f), unit, dx);
    Backward(*batch, kDownGroup, gated, dx, dgated);
    backend_.SwiGluBackward(*batch, gate_up, dgated, dgate_up);
    Backward(*batch, kGateUpGroup, normed, dgate_up, dnormed);
    backend_.RmsNormBackward(*batch, x1, weight, kEps, dnormed, dx);
    Backward(*batch, kOutGroup, mixed, dx, dmixed);
    backend_.AttentionBackward(*batch, kAttentionShape, part(qkv, 0, 6), part(qkv, 6, 2),
                               part(qkv, 8, 2), mixed, lse, dmixed, part(dqkv, 0, 6),
                               part(dqkv, 6, 2), part(dqkv, 8, 2));
    backend_.RopeBackward(*batch, rope_->view(), part(dqkv, 0, 8));
    backend_.RmsNorm(*batch, x0, weight, kEps, normed);
    Backward(*batch, kQkvGroup, normed, dqkv, dnormed);
    backend_.RmsNormBackward(*batch, x0, weight, kEps, dnormed, dx);

    Collect(microbatch, data, results, log_p, bits);
    world_.arena().Rewind(mark);
  }

  void Forward(const Batch& batch, Group group, const TensorView& x, const TensorView& residual,
               const TensorView& y) {
    backend_.LoraLinear(batch, *linears_[group], *table_, group, x, residual, y);
  }

  void Backward(const Batch& batch, Group group, const TensorView& x, const TensorView& dy,
                const TensorView& dx) {
    backend_.LoraLinearBackward(batch, *linears_[group], *table_, group, x, dy, dx);
  }

  void Collect(const Microbatch& microbatch, const BatchData& data,
               const std::vector<TensorView>& results, const TensorView& log_p, Bits& bits) {
    for (size_t index = 0; index < microbatch.size(); ++index) {
      if (microbatch[index].slot != kVictim) continue;
      const Segment& segment = data.segments[index];
      std::vector<float>& rows = bits.sequences[microbatch[index].name];
      for (const TensorView& result : results) {
        std::vector<float> host(static_cast<size_t>(segment.rows * result.columns));
        backend_.CopyToHost(result.Rows(segment.first_row, segment.rows), host.data());
        rows.insert(rows.end(), host.begin(), host.end());
      }
      std::vector<float> all(static_cast<size_t>(log_p.columns));
      backend_.CopyToHost(log_p, all.data());
      for (size_t i = 0; i < data.loss_rows.size(); ++i) {
        const int64_t row = data.loss_rows[i].row - segment.first_row;
        if (row >= 0 && row < segment.rows) rows.push_back(all[i]);
      }
    }
  }

  World& world_;
  Backend& backend_;
  std::unique_ptr<Linear> embedding_;
  std::unique_ptr<Linear> head_;
  std::unique_ptr<Guarded> norm_;
  std::unique_ptr<Guarded> rope_;
  std::vector<std::unique_ptr<Linear>> linears_;
  std::unique_ptr<AdapterTable> table_;
  std::vector<DeviceAdapter> adapters_;  // [group * kSlots + slot]
};

Limits IsolationLimits() {
  return {.tokens = 2400,
          .longest_segment = 900,
          .features = 2 * kFeedForward,
          .hidden = kHidden,
          .vocabulary = kVocabulary,
          .rank = 13,
          .targets_in_group = 3,
          .heads = kAttentionShape.heads,
          .kv_heads = kAttentionShape.kv_heads,
          .head_size = kAttentionShape.head_size};
}

bool Finite(const Bits& bits) {
  for (const auto& [name, rows] : bits.sequences) {
    for (const float value : rows) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}

// The watched sequences dealt out to microbatches of at most 2400 tokens in a random order, among
// random strangers.
std::vector<Microbatch> Deal(Random& random, std::vector<Sequence> watched) {
  std::vector<Microbatch> microbatches(1);
  int64_t tokens = 0;
  int stranger = -1;
  const auto put = [&](const Sequence& sequence) {
    if (tokens + sequence.rows > 2400 || random.Integer(0, 3) == 0) {
      microbatches.emplace_back();
      tokens = 0;
    }
    microbatches.back().push_back(sequence);
    tokens += sequence.rows;
  };
  while (!watched.empty()) {
    if (random.Integer(0, 1) == 0) {
      put({stranger--, random.Integer(1, 300), static_cast<int32_t>(random.Integer(1, 3) % 3 - 1),
           random.Integer(0, 2) == 0});
      if (microbatches.back().back().slot == kVictim) microbatches.back().back().slot = kSlots - 1;
    }
    const size_t at =
        static_cast<size_t>(random.Integer(0, static_cast<int64_t>(watched.size()) - 1));
    put(watched[at]);
    watched.erase(watched.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::erase_if(microbatches, [](const Microbatch& microbatch) { return microbatch.empty(); });
  return microbatches;
}

TEST_CASE(
    "A job's bits are its own: alone, among strangers, in other splits, on 1, 2 and 3 threads") {
  for (const uint64_t seed : Seeds()) {
    INFO("seed " << seed);
    Random random(seed);
    const std::vector<Sequence> watched = {{0, 17, kVictim, false},
                                           {1, 256, kVictim, false},
                                           {2, random.Integer(257, 700), kVictim, false},
                                           {3, random.Integer(17, 256), kVictim, false},
                                           {4, 900, kVictim, false}};
    std::vector<Microbatch> alone;
    for (const Sequence& sequence : watched) alone.push_back({sequence});
    Bits want;
    for (const BackendCase& backend : Backends()) {
      INFO(backend.name);
      World world(backend.make(), IsolationLimits());
      const Bits got = Model(world, seed).Train(alone);
      if (want.accumulators.empty()) want = got;
      REQUIRE(Finite(want));
      REQUIRE(std::any_of(want.accumulators.begin(), want.accumulators.end(),
                          [](int64_t quanta) { return quanta != 0; }));
      CHECK(got == want);
      for (int deal = 0; deal < 3; ++deal) {
        World another(backend.make(), IsolationLimits());
        CHECK(Model(another, seed).Train(Deal(random, watched)) == want);
      }
    }
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
