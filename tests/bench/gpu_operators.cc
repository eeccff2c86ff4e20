// Where a training step goes on a GPU: the time of every operation of a model's layer on one
// microbatch, beside its own limit in the same run: products at the speed of a large product by
// cuBLASLt, everything else at the speed of a device copy. The sum over the layers is the step that
// is left when nothing but operations takes time. With --sustained SECONDS instead: whole steps
// without a pause for so long; with --energy SECONDS: the power and energy of each operation
// (gpu_sustained.h).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "tests/bench/gpu_ceilings.h"
#include "tests/bench/gpu_sustained.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::bench {
namespace {

using namespace kernels;

struct ModelShape {
  const char* name;
  int64_t layers, hidden, feed_forward, heads, kv_heads, head_size, vocabulary;
};

constexpr ModelShape kShapes[] = {
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 64, 32000},
    {"qwen2.5-3b", 36, 2048, 11008, 16, 2, 128, 151936},
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256},
};

constexpr float kWeightSize = 0.02f;  // standard deviation of weights and adapters

struct Options {
  std::string shape = "llama-3.1-8b";
  int device = 0;
  int64_t tokens = 4096;
  int64_t sequence = 1024;
  int32_t adapters = 4;
  int64_t rank = 16;
  double dropout = 0;
  // Both 0: operation by operation.
  double sustained_seconds = 0;
  double energy_seconds = 0;

  bool Recorded() const { return sustained_seconds > 0 || energy_seconds > 0; }
};

// One target of a group: its place in the weight's rows.
struct Part {
  int64_t first;
  int64_t outputs;
};

class Bench {
 public:
  Bench(const Options& options, const ModelShape& shape, std::unique_ptr<Backend> backend)
      : options_(options), shape_(shape), backend_(std::move(backend)) {
    const Limits limits = {.tokens = options.tokens,
                           .longest_segment = options.sequence,
                           .features = 2 * shape.feed_forward,
                           .hidden = shape.hidden,
                           .vocabulary = shape.vocabulary,
                           .rank = options.rank,
                           .slots = options.adapters,
                           .targets_in_group = 3,
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_size = shape.head_size};
    Arena counting(Device::kCuda);
    backend_->ReserveWorkspace(limits, counting);
    std::printf("workspace %.2f GiB\n", static_cast<double>(counting.bytes_max()) / 0x1p30);
    arena_ = *backend_->MakeArena(counting.bytes_max() + (int64_t{14} << 30));
    backend_->ReserveWorkspace(limits, *arena_);
    for (int64_t row = 0; row < options.tokens; ++row) {
      ids_.push_back(static_cast<int32_t>(row * 7919 % shape.vocabulary));
      loss_rows_.push_back({row, static_cast<int32_t>(row * 104729 % shape.vocabulary)});
    }
    for (int64_t row = 0; row < options.tokens; row += options.sequence) {
      const int64_t index = row / options.sequence;
      segments_.push_back({.first_row = row,
                           .rows = std::min(options.sequence, options.tokens - row),
                           .slot = static_cast<int32_t>(index * options.adapters /
                                                        (options.tokens / options.sequence)),
                           .dropout = {.seed = 1, .sequence = static_cast<uint32_t>(index)}});
    }
    NextBatch();
    table_ = backend_->MakeAdapterTable(options.adapters, 4);
  }

  void Run() {
    if (!options_.Recorded()) {
      ceilings_ = MeasureCeilings();
      std::printf("%-24s %6s %9s %9s %9s %7s\n", "operation", "a step", "ms", "ms a step",
                  "limit ms", "of it");
    }
    Operations();
    if (options_.Recorded()) return RunRecorded();
    const double seconds = total_ms_ * 1e-3;
    std::printf("step %.2f ms = %.0f tok/s; limits %.2f ms = %.0f tok/s; ratio %.3f\n", total_ms_,
                static_cast<double>(options_.tokens) / seconds, limit_ms_,
                static_cast<double>(options_.tokens) / (limit_ms_ * 1e-3), total_ms_ / limit_ms_);
  }

 private:
  void Operations() {
    const int64_t h = shape_.hidden;
    const int64_t f = shape_.feed_forward;
    const int64_t q = shape_.heads * shape_.head_size;
    const int64_t kv = shape_.kv_heads * shape_.head_size;
    const int64_t layers = shape_.layers;
    LoraGroup("qkv", 0, h, {{0, q}, {q, kv}, {q + kv, kv}}, Kind::kRope);
    LoraGroup("o", 1, q, {{0, h}}, Kind::kResidual);
    LoraGroup("gate_up", 2, h, {{0, f}, {f, f}}, Kind::kGateUp);
    LoraGroup("down", 3, f, {{0, h}}, Kind::kDown);
    Attention(q, kv);
    Rowwise(layers);
    Head();
    Optimizer();
  }

  void RunRecorded() {
    const int64_t h = shape_.hidden;
    const int64_t f = shape_.feed_forward;
    const int64_t q = shape_.heads * shape_.head_size;
    const int64_t kv = shape_.kv_heads * shape_.head_size;
    const FrozenProducts products = {.tokens = options_.tokens,
                                     .layers = shape_.layers,
                                     .of_layer = {{q + 2 * kv, h}, {h, q}, {2 * f, h}, {h, f}},
                                     .head = {shape_.vocabulary, h}};
    if (options_.sustained_seconds > 0) {
      RunSustained(*backend_, Step(), products, options_.sustained_seconds);
    }
    if (options_.energy_seconds > 0) {
      RunEnergy(*backend_, recorded_, products, options_.energy_seconds);
    }
  }

  // The operations in the order of a step.
  std::vector<std::function<void()>> Step() {
    std::vector<std::function<void()>> step = {[this] { NextBatch(); }};
    const auto add = [&](const std::vector<std::string>& names, int64_t times) {
      for (int64_t i = 0; i < times; ++i) {
        for (const std::string& name : names) {
          step.push_back(
              std::find_if(recorded_.begin(), recorded_.end(), [&](const auto& recorded) {
                return recorded.name == name;
              })->run);
        }
      }
    };
    add({"embed"}, 1);
    add({"rms_norm", "qkv, rope", "attention", "o", "rms_norm", "gate_up, swiglu", "down"},
        shape_.layers);
    add({"rms_norm", "head and loss", "loss backward", "rms_norm backward"}, 1);
    add({"down, swiglu backward", "gate_up backward", "rms_norm backward", "o backward",
         "attention, rope backward", "qkv backward", "rms_norm backward"},
        shape_.layers);
    add({"sum of squares", "adamw"}, 1);
    return step;
  }

  // The same microbatch again, with tables of its own. The one before it may still be under way.
  void NextBatch() {
    batch_before_ = std::move(batch_);
    batch_ = backend_->PrepareBatch({ids_, segments_, loss_rows_});
  }

  TensorView Activation(int64_t columns) {
    return Filled(options_.tokens, columns, backend_->activation_dtype(), 1);
  }

  // Random, of that standard deviation: timing on zeros would flatter.
  TensorView Filled(int64_t rows, int64_t columns, DType dtype, float size) {
    const TensorView view = arena_->Matrix(rows, columns, dtype);
    cuda::FillRandom(view, size, ++seed_);
    LORAD_CUDA_CHECK(cudaDeviceSynchronize());  // the backend's stream does not wait
    return view;
  }

  // Kept as long as what is recorded.
  Linear& Weight(int64_t outputs, int64_t inputs) {
    Linear& linear = *linears_.emplace_back(backend_->MakeLinear(outputs, inputs, false, *arena_));
    float* rows = backend_->MapRows(linear, 0, outputs);
    uint64_t state = ++seed_;
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      int32_t sum = 0;  // of four uniforms
      for (int part = 0; part < 4; ++part) sum += static_cast<int16_t>(state >> 16 * part);
      rows[i] = kWeightSize * 0x1p-15f * 0.8660254f * static_cast<float>(sum);
    }
    backend_->Unmap(linear);
    return linear;
  }

  // Gives memory and targets of an operation's benchmark to the next one.
  void Release(int64_t mark, int32_t group = -1) {
    if (options_.Recorded()) return;
    for (int32_t slot = 0; group >= 0 && slot < options_.adapters; ++slot) {
      backend_->SetTargets(*table_, slot, group, {});
    }
    arena_->Rewind(mark);
  }

  // Times `run`, `count` times a step, or records it. The limit: FLOPs at the product's speed plus
  // bytes at the copy's.
  void Time(const std::string& name, int64_t count, double flops, double bytes,
            const std::function<void()>& run) {
    if (options_.Recorded()) {
      recorded_.push_back({name, count, run});
      return;
    }
    const double ms = MedianMs(*backend_, run);
    const double limit = flops / ceilings_.product_flops * 1e3 + bytes / ceilings_.copy_bytes * 1e3;
    total_ms_ += ms * static_cast<double>(count);
    limit_ms_ += limit * static_cast<double>(count);
    std::printf("%-24s %6ld %9.4f %9.3f %9.3f %7.3f\n", name.c_str(), static_cast<long>(count), ms,
                ms * static_cast<double>(count), limit * static_cast<double>(count), limit / ms);
  }

  // What a linear is followed by, or follows.
  enum class Kind { kRope, kResidual, kGateUp, kDown };

  TensorView Angles() {
    const TensorView angles = arena_->Matrix(options_.sequence, shape_.head_size);
    const std::vector<float> frequencies(static_cast<size_t>(shape_.head_size / 2), 0.1f);
    backend_->FillRope(frequencies, 1, angles);
    return angles;
  }

  void LoraGroup(const std::string& name, int32_t group, int64_t inputs,
                 const std::vector<Part>& parts, Kind kind) {
    const int64_t mark = arena_->used();
    const int64_t outputs = parts.back().first + parts.back().outputs;
    const Linear& linear = Weight(outputs, inputs);
    for (int32_t slot = 0; slot < options_.adapters; ++slot) {
      backend_->SetTargets(*table_, slot, group, Targets(inputs, parts));
    }
    const TensorView x = Activation(inputs);
    const TensorView y = Activation(outputs);
    const TensorView dx = Activation(inputs);
    const TensorView saved =
        Activation(LoraSavedColumns(static_cast<int64_t>(parts.size()), options_.rank));
    const double flops = 2.0 * static_cast<double>(options_.tokens * inputs * outputs);
    if (kind == Kind::kGateUp) {
      const TensorView gated = Activation(outputs / 2);
      Time(name + ", swiglu", shape_.layers, flops, 0, [=, this, &linear] {
        backend_->LoraLinearSwiGlu(*batch_, linear, *table_, group, Gate::kSilu, x, y, gated,
                                   saved);
      });
    } else if (kind == Kind::kRope) {
      const TensorView angles = Angles();
      const int64_t rotated = parts.back().first;
      Time(name + ", rope", shape_.layers, flops, 0, [=, this, &linear] {
        backend_->LoraLinearRope(*batch_, linear, *table_, group, x, angles, rotated, y, saved);
      });
    } else {
      const TensorView residual = Activation(outputs);
      Time(name, shape_.layers, flops, 0, [=, this, &linear] {
        backend_->LoraLinear(*batch_, linear, *table_, group, x, residual, y, saved);
      });
    }
    if (kind == Kind::kDown) {
      const TensorView gate_up = Activation(2 * inputs);
      const TensorView dgate_up = Activation(2 * inputs);
      Time(name + ", swiglu backward", shape_.layers, flops, 0, [=, this, &linear] {
        backend_->LoraLinearSwiGluBackward(*batch_, linear, *table_, group, Gate::kSilu, gate_up, x,
                                           y, dx, dgate_up, saved);
      });
    } else {
      Time(name + " backward", shape_.layers, flops, 0, [=, this, &linear] {
        backend_->LoraLinearBackward(*batch_, linear, *table_, group, x, y, dx, saved);
      });
    }
    Release(mark, group);
  }

  std::vector<LoraTarget> Targets(int64_t inputs, const std::vector<Part>& parts) {
    std::vector<LoraTarget> targets;
    const DType dtype = backend_->activation_dtype();
    for (const Part& part : parts) {
      const TensorView a = Filled(options_.rank, inputs, DType::kFloat32, kWeightSize);
      const TensorView b = Filled(part.outputs, options_.rank, DType::kFloat32, kWeightSize);
      LoraTarget target = {.first_output = part.first,
                           .outputs = part.outputs,
                           .rank = options_.rank,
                           .a = a.f32(),
                           .b = b.f32(),
                           .scale = 2,
                           .dropout = static_cast<float>(options_.dropout),
                           .target = static_cast<int32_t>(targets.size()),
                           .da = arena_->Allocate<int64_t>(a.elements()),
                           .db = arena_->Allocate<int64_t>(b.elements())};
      if (dtype != DType::kFloat32) {
        target.a_copy = arena_->Matrix(PaddedRank(options_.rank), inputs, dtype);
        target.b_copy = arena_->Matrix(part.outputs, PaddedRank(options_.rank), dtype);
        backend_->Cast(a, target.a_copy);
        backend_->Cast(b, target.b_copy);
      }
      targets.push_back(target);
    }
    return targets;
  }

  void Attention(int64_t q, int64_t kv) {
    const int64_t mark = arena_->used();
    const AttentionShape shape = {.heads = shape_.heads,
                                  .kv_heads = shape_.kv_heads,
                                  .head_size = shape_.head_size,
                                  .scale = 0.125f};
    const TensorView qkv = Activation(q + 2 * kv);
    const TensorView dqkv = Activation(q + 2 * kv);
    const TensorView out = Activation(q);
    const TensorView dout = Activation(q);
    const TensorView lse = arena_->Matrix(options_.tokens, shape_.heads);
    const auto part = [=](const TensorView& view, int i) {
      return view.Columns(i == 0 ? 0 : q + (i - 1) * kv, i == 0 ? q : kv);
    };
    // Half of the scores: causal.
    const double flops = 2.0 * static_cast<double>(options_.tokens * options_.sequence * q);
    const auto forward = [=, this] {
      backend_->Attention(*batch_, shape, part(qkv, 0), part(qkv, 1), part(qkv, 2), out, lse);
    };
    Time("attention", shape_.layers, flops, 0, forward);
    const TensorView angles = Angles();
    Time("attention, rope backward", shape_.layers, 2.5 * flops, 0, [=, this] {
      backend_->AttentionRopeBackward(*batch_, shape, angles, part(qkv, 0), part(qkv, 1),
                                      part(qkv, 2), out, lse, dout, part(dqkv, 0), part(dqkv, 1),
                                      part(dqkv, 2));
    });
    Release(mark);
  }

  static double Bytes(const TensorView& view) {
    return static_cast<double>(view.elements() * BytesOf(view.dtype));
  }

  void Rowwise(int64_t layers) {
    const int64_t mark = arena_->used();
    const TensorView x = Activation(shape_.hidden);
    const TensorView y = Activation(shape_.hidden);
    const TensorView dy = Activation(shape_.hidden);
    const TensorView weight = Filled(1, shape_.hidden, DType::kFloat32, 1);
    Time("rms_norm", 2 * layers + 1, 0, 2 * Bytes(x),
         [=, this] { backend_->RmsNorm(*batch_, x, weight, 1e-5f, y); });
    Time("rms_norm backward", 2 * layers + 1, 0, 4 * Bytes(x),
         [=, this] { backend_->RmsNormBackward(*batch_, x, weight, 1e-5f, dy, y); });
    Release(mark);
  }

  void Head() {
    const int64_t mark = arena_->used();
    const TensorView x = Activation(shape_.hidden);
    const TensorView dx = Activation(shape_.hidden);
    const TensorView unit = Activation(shape_.hidden);
    const TensorView log_p = arena_->Matrix(1, options_.tokens);
    const Linear& head = Weight(shape_.vocabulary, shape_.hidden);
    Time("embed", 1, 0, 2 * Bytes(x), [=, this, &head] { backend_->Embed(*batch_, head, 1, x); });
    const double flops =
        2.0 * static_cast<double>(options_.tokens * shape_.vocabulary * shape_.hidden);
    Time("head and loss", 1, 2 * flops, 0,
         [=, this, &head] { backend_->LinearLoss(*batch_, x, head, 0, log_p, unit); });
    const std::vector<float> weights(static_cast<size_t>(options_.tokens), -1e-3f);
    Time("loss backward", 1, 0, 2 * Bytes(x),
         [=, this] { backend_->LossBackward(*batch_, weights, unit, dx); });
    Release(mark);
  }

  // A and B of seven targets.
  static constexpr int64_t kMatricesOfLayer = 14;

  // Of all adapters once a step: the case of one microbatch a step.
  void Optimizer() {
    const int64_t mark = arena_->used();
    std::vector<NormRequest> norms;
    std::vector<StepRequest> steps;
    const int64_t matrices = kMatricesOfLayer * shape_.layers;
    readings_ = *backend_->MakeHostArena(
        ArenaBytes(matrices * static_cast<int64_t>(sizeof(double))) * options_.adapters);
    int64_t elements = 0;
    for (int32_t adapter = 0; adapter < options_.adapters; ++adapter) {
      const std::vector<OptimizerTensor> tensors = AdapterTensors();
      for (const OptimizerTensor& tensor : tensors) elements += tensor.elements;
      optimizers_.push_back(backend_->MakeOptimizer(tensors));
      norms.push_back({optimizers_.back().get(), readings_->Allocate<double>(matrices)});
      steps.push_back({optimizers_.back().get(), {.learning_rate = 1e-4}});
    }
    const double all = static_cast<double>(elements);
    Time("sum of squares", 1, 0, 8 * all, [=, this] { backend_->SumsOfSquares(norms); });
    Time("adamw", 1, 0, 42 * all, [=, this] { backend_->AdamW(steps); });
    Release(mark);
  }

  std::vector<OptimizerTensor> AdapterTensors() {
    const int64_t h = shape_.hidden;
    const int64_t f = shape_.feed_forward;
    const int64_t q = shape_.heads * shape_.head_size;
    const int64_t kv = shape_.kv_heads * shape_.head_size;
    std::vector<OptimizerTensor> tensors;
    const auto add = [&](int64_t rows, int64_t columns) {
      OptimizerTensor tensor = {.elements = rows * columns, .columns = columns};
      tensor.parameter = Filled(rows, columns, DType::kFloat32, kWeightSize).f32();
      tensor.exp_avg = Filled(rows, columns, DType::kFloat32, 1e-3f).f32();
      const TensorView exp_avg_sq = arena_->Matrix(rows, columns);
      backend_->Zero(exp_avg_sq);
      tensor.exp_avg_sq = exp_avg_sq.f32();
      // Two random floats are a random accumulator below the limit.
      tensor.gradient =
          static_cast<int64_t*>(Filled(rows, 2 * columns, DType::kFloat32, kWeightSize).data);
      if (backend_->activation_dtype() != DType::kFloat32) {
        tensor.copy = arena_->Matrix(rows, columns, backend_->activation_dtype());
      }
      tensors.push_back(tensor);
    };
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (const auto& [inputs, outputs] :
           {std::pair(h, q), {h, kv}, {h, kv}, {q, h}, {h, f}, {h, f}, {f, h}}) {
        add(options_.rank, inputs);
        add(outputs, options_.rank);
      }
    }
    return tensors;
  }

  const Options options_;
  const ModelShape shape_;
  Ceilings ceilings_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  std::vector<int32_t> ids_;
  std::vector<Segment> segments_;
  std::vector<LossRow> loss_rows_;
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<Batch> batch_before_;
  std::unique_ptr<AdapterTable> table_;
  std::vector<std::unique_ptr<Linear>> linears_;
  std::vector<std::unique_ptr<kernels::Optimizer>> optimizers_;
  std::unique_ptr<Arena> readings_;
  std::vector<SustainedOperation> recorded_;
  uint64_t seed_ = 0;
  double total_ms_ = 0;
  double limit_ms_ = 0;
};

int Main(int argc, char** argv) {
  CLI::App app("Times of a step's operations on a GPU, beside their limits");
  Options options;
  app.add_option("--shape", options.shape, "tinyllama-1.1b, qwen2.5-3b or llama-3.1-8b")
      ->capture_default_str();
  app.add_option("--device", options.device, "Index of the GPU")->capture_default_str();
  app.add_option("--tokens", options.tokens, "Of the microbatch")->capture_default_str();
  app.add_option("--sequence", options.sequence, "Tokens of a sequence")->capture_default_str();
  app.add_option("--adapters", options.adapters, "Each with an equal share of the sequences")
      ->capture_default_str();
  app.add_option("--rank", options.rank, "Of all seven linears")->capture_default_str();
  app.add_option("--dropout", options.dropout, "Of all adapters")->capture_default_str();
  app.add_option("--sustained", options.sustained_seconds,
                 "Run whole steps for so many seconds, and their frozen products alone as long");
  app.add_option("--energy", options.energy_seconds,
                 "Run every operation, and every frozen product by cuBLASLt and by our own kernel, "
                 "alone for so many seconds, and print its power and energy");
  CLI11_PARSE(app, argc, argv);
  const auto shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                  [&](const auto& known) { return options.shape == known.name; });
  if (shape == std::end(kShapes)) {
    std::fprintf(stderr, "no shape %s\n", options.shape.c_str());
    return 2;
  }
  const auto facts = ProbeCudaDevice(options.device);
  auto backend = MakeCudaBackend(options.device);
  if (!facts.ok() || !backend.ok()) {
    std::printf("skipped: no GPU (%s)\n", backend.status().ToString().c_str());
    return 0;
  }
  std::printf("%s\n%s\n%s, %ld tokens in sequences of %ld, %d adapters of rank %ld, dropout %g\n",
              Describe(*facts).c_str(), (*backend)->NumericsId().c_str(), shape->name,
              static_cast<long>(options.tokens), static_cast<long>(options.sequence),
              options.adapters, static_cast<long>(options.rank), options.dropout);
  Bench(options, *shape, *std::move(backend)).Run();
  return 0;
}

}  // namespace
}  // namespace lorad::bench

int main(int argc, char** argv) { return lorad::bench::Main(argc, argv); }
