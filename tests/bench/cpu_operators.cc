// Where a training step of SmolLM2's shape goes on the CPU: every operation's time for a microbatch
// of 4 x 256 tokens, beside the time its products alone would take at the library's speed. usage:
// cpu_operators [adapters] [dropout] [threads] [rank]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/bench/product_ceiling.h"

namespace lorad::bench {
namespace {

using namespace kernels;

constexpr int64_t kTokens = 1024;
constexpr int64_t kSequence = 256;

struct Options {
  int adapters = 4;
  float dropout = 0;
  int threads = 2;
  int64_t rank = 8;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), shape_(SmolLm2()), backend_(MakeCpuBackend(options.threads)) {
    arena_ = *backend_->MakeArena(int64_t{1} << 30);
    backend_->ReserveWorkspace({.tokens = kTokens,
                                .longest_segment = kSequence,
                                .features = 2 * shape_.feed_forward,
                                .hidden = shape_.hidden,
                                .vocabulary = shape_.vocabulary,
                                .rank = options.rank,
                                .targets_in_group = 3,
                                .heads = shape_.heads,
                                .kv_heads = shape_.kv_heads,
                                .head_size = shape_.head_size},
                               *arena_);
    ids_.assign(kTokens, 1);
    for (int64_t row = 0; row < kTokens; row += kSequence) {
      segments_.push_back({.first_row = row,
                           .rows = kSequence,
                           .first_position = 0,
                           .slot = options.adapters > 0
                                       ? static_cast<int32_t>(row / kSequence % options.adapters)
                                       : -1});
    }
    for (int64_t row = 0; row < kTokens; ++row) loss_rows_.push_back({row, 7});
    batch_ = backend_->PrepareBatch({ids_, segments_, loss_rows_});
    table_ = backend_->MakeAdapterTable(options.adapters, 4);
    ceiling_ = MeasureProductCeiling(shape_, options.threads).large_flops;
  }

  void Print() {
    std::printf("%s, %d threads, %d adapters of rank %ld, dropout %g; large product %.1f GFLOP/s\n",
                backend_->NumericsId().c_str(), options_.threads, options_.adapters,
                static_cast<long>(options_.rank), static_cast<double>(options_.dropout),
                ceiling_ * 1e-9);
    std::printf("%-22s %8s %10s %8s\n", "operation", "ms", "x a step", "of ceil.");
    const int64_t layers = shape_.layers;
    const int64_t h = shape_.hidden;
    const int64_t q = shape_.heads * shape_.head_size;
    const int64_t qkv = q + 2 * shape_.kv_heads * shape_.head_size;
    LoraGroup("qkv", 0, h, {q, (qkv - q) / 2, (qkv - q) / 2});
    LoraGroup("o", 1, q, {h});
    LoraGroup("gate_up", 2, h, {shape_.feed_forward, shape_.feed_forward});
    LoraGroup("down", 3, shape_.feed_forward, {h});
    Rowwise();
    AttentionBoth();
    Loss();
    const double products = shape_.TrainingFlopsPerToken(kSequence) * kTokens / ceiling_;
    std::printf(
        "step %.0f ms = %.1f tok/s; products at the ceiling %.0f ms = %.1f tok/s; ratio %.3f\n",
        total_ * 1e3, kTokens / total_, products * 1e3, kTokens / products, products / total_);
    std::printf("(x 0.71 is the bar; layers: %ld)\n", static_cast<long>(layers));
  }

 private:
  TensorView Random(int64_t rows, int64_t columns) {
    const TensorView view = arena_->Matrix(rows, columns);
    for (int64_t i = 0; i < view.elements(); ++i) {
      view.f32()[i] = static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 0.5f;
    }
    return view;
  }

  std::unique_ptr<Linear> RandomLinear(int64_t outputs, int64_t inputs) {
    auto linear = backend_->MakeLinear(outputs, inputs, false, *arena_);
    float* rows = backend_->MapRows(*linear, 0, outputs);
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      rows[i] = static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 0.5f;
    }
    backend_->Unmap(*linear);
    return linear;
  }

  void Time(const std::string& name, int64_t times, double flops,
            const std::function<void()>& run) {
    run();
    double best = 1e9;
    for (int i = 0; i < 7; ++i) {
      const double begin = Seconds(options_.threads);
      run();
      best = std::min(best, Seconds(options_.threads) - begin);
    }
    total_ += best * static_cast<double>(times);
    std::printf("%-22s %8.2f %10.1f %8.2f\n", name.c_str(), best * 1e3,
                best * 1e3 * static_cast<double>(times), flops / ceiling_ / best);
  }

  void LoraGroup(const std::string& name, int32_t group, int64_t inputs,
                 const std::vector<int64_t>& outputs) {
    const int64_t mark = arena_->used();
    int64_t total = 0;
    for (const int64_t part : outputs) total += part;
    const auto linear = RandomLinear(total, inputs);
    for (int32_t slot = 0; slot < options_.adapters; ++slot) {
      std::vector<LoraTarget> targets;
      int64_t first = 0;
      for (size_t part = 0; part < outputs.size(); ++part) {
        targets.push_back({.first_output = first,
                           .outputs = outputs[part],
                           .rank = options_.rank,
                           .a = Random(options_.rank, inputs).f32(),
                           .b = Random(outputs[part], options_.rank).f32(),
                           .scale = 1e-3f,
                           .dropout = options_.dropout,
                           .target = static_cast<int32_t>(part),
                           .da = arena_->Allocate<int64_t>(options_.rank * inputs),
                           .db = arena_->Allocate<int64_t>(options_.rank * outputs[part])});
        first += outputs[part];
      }
      backend_->SetTargets(*table_, slot, group, targets);
    }
    const TensorView x = Random(kTokens, inputs);
    const TensorView y = Random(kTokens, total);
    const TensorView dx = Random(kTokens, inputs);
    const double flops = 2.0 * static_cast<double>(kTokens * inputs * total);
    const bool residual = outputs.size() == 1;
    Time(name, shape_.layers, flops, [&] {
      backend_->LoraLinear(*batch_, *linear, *table_, group, x, residual ? y : TensorView(), y,
                           TensorView());
    });
    Time(name + " backward", shape_.layers, flops,
         [&] { backend_->LoraLinearBackward(*batch_, *linear, *table_, group, x, y, dx, {}); });
    arena_->Rewind(mark);
  }

  void Rowwise() {
    const int64_t mark = arena_->used();
    const TensorView x = Random(kTokens, shape_.hidden);
    const TensorView y = Random(kTokens, shape_.hidden);
    const TensorView weight = Random(1, shape_.hidden);
    const TensorView gate_up = Random(kTokens, 2 * shape_.feed_forward);
    const TensorView gated = Random(kTokens, shape_.feed_forward);
    const TensorView table = Random(kSequence, shape_.head_size);
    const TensorView qk = Random(kTokens, (shape_.heads + shape_.kv_heads) * shape_.head_size);
    Time("norm", 4 * shape_.layers, 0, [&] { backend_->RmsNorm(*batch_, x, weight, 1e-5f, y); });
    Time("norm backward", 2 * shape_.layers, 0,
         [&] { backend_->RmsNormBackward(*batch_, x, weight, 1e-5f, y, y); });
    Time("rope", 2 * shape_.layers, 0, [&] { backend_->Rope(*batch_, table, qk); });
    Time("swiglu", 2 * shape_.layers, 0,
         [&] { backend_->SwiGlu(*batch_, Gate::kSilu, gate_up, gated); });
    Time("swiglu backward", shape_.layers, 0,
         [&] { backend_->SwiGluBackward(*batch_, Gate::kSilu, gate_up, gated, gate_up); });
    arena_->Rewind(mark);
  }

  void AttentionBoth() {
    const int64_t mark = arena_->used();
    const int64_t d = shape_.head_size;
    const int64_t q = shape_.heads * d;
    const int64_t kv = shape_.kv_heads * d;
    const TensorView qkv = Random(kTokens, q + 2 * kv);
    const TensorView dqkv = Random(kTokens, q + 2 * kv);
    const TensorView out = Random(kTokens, q);
    const TensorView dout = Random(kTokens, q);
    const TensorView lse = Random(kTokens, shape_.heads);
    const AttentionShape attention = {
        .heads = shape_.heads, .kv_heads = shape_.kv_heads, .head_size = d, .scale = 0.125f};
    const double flops =
        2.0 * static_cast<double>(kTokens * q) * static_cast<double>(kSequence + 1) / 2;
    Time("attention", shape_.layers, 2 * flops, [&] {
      backend_->Attention(*batch_, attention, qkv.Columns(0, q), qkv.Columns(q, kv),
                          qkv.Columns(q + kv, kv), out, lse);
    });
    Time("attention backward", shape_.layers, 5 * flops, [&] {
      backend_->AttentionBackward(*batch_, attention, qkv.Columns(0, q), qkv.Columns(q, kv),
                                  qkv.Columns(q + kv, kv), out, lse, dout, dqkv.Columns(0, q),
                                  dqkv.Columns(q, kv), dqkv.Columns(q + kv, kv));
    });
    arena_->Rewind(mark);
  }

  void Loss() {
    const auto head = RandomLinear(shape_.vocabulary, shape_.hidden);
    const TensorView x = Random(kTokens, shape_.hidden);
    const TensorView unit = Random(kTokens, shape_.hidden);
    const TensorView log_p = Random(1, kTokens);
    const double flops = 4.0 * static_cast<double>(kTokens * shape_.vocabulary * shape_.hidden);
    Time("head and loss", 1, flops,
         [&] { backend_->LinearLoss(*batch_, x, *head, 0, log_p, unit); });
  }

  const Options options_;
  const ModelShape shape_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  std::vector<int32_t> ids_;
  std::vector<Segment> segments_;
  std::vector<LossRow> loss_rows_;
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<AdapterTable> table_;
  double ceiling_ = 0;
  double total_ = 0;
};

}  // namespace
}  // namespace lorad::bench

int main(int argc, char** argv) {
  lorad::bench::Options options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (argc > 1) options.adapters = std::atoi(argv[1]);
  if (argc > 2) options.dropout = static_cast<float>(std::atof(argv[2]));
  if (argc > 3) options.threads = std::atoi(argv[3]);
  if (argc > 4) options.rank = std::atoi(argv[4]);
  lorad::bench::Bench(options).Print();
  return 0;
}
