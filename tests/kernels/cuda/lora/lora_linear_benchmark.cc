// usage: lora_linear_benchmark [lora [NAME]|swiglu|rope]
// The operator table of docs/benchmarks/history.md: forward and backward of the multi-adapter LoRA linear
// over forward and backward of the frozen linear alone (cuBLASLt, and our own product), in the same
// run, as CUDA graphs; and each skinny kernel beside a copy of the bytes that it reads.
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <functional>
#include <string_view>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/lora/kernels.h"
#include "kernels/cuda/rowwise/rowwise.h"
#include "tests/kernels/cuda/lora/world.h"

namespace lorad::kernels::cuda::testing {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int64_t kSequence = 512;
// As many tokens: four sequences of each of four adapters, log-normal around 300.
constexpr int64_t kMixedLengths[] = {432,  1023, 1046, 319, 327, 162, 563, 151,
                                     1344, 125,  308,  81,  160, 960, 336, 855};
constexpr int kRuns = 15;

// Median microseconds of one replay of what `enqueue` puts into the stream.
double Microseconds(cudaStream_t stream, const std::function<void()>& enqueue) {
  enqueue();
  LORAD_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  LORAD_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  LORAD_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  LORAD_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  LORAD_CUDA_CHECK(cudaEventCreate(&begin));
  LORAD_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int run = 0; run < kRuns + 3; ++run) {
    float ms = 0;
    LORAD_CUDA_CHECK(cudaEventRecord(begin, stream));
    LORAD_CUDA_CHECK(cudaGraphLaunch(replay, stream));
    LORAD_CUDA_CHECK(cudaEventRecord(end, stream));
    LORAD_CUDA_CHECK(cudaEventSynchronize(end));
    LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (run >= 3) times.push_back(ms);
  }
  LORAD_CUDA_CHECK(cudaEventDestroy(begin));
  LORAD_CUDA_CHECK(cudaEventDestroy(end));
  LORAD_CUDA_CHECK(cudaGraphExecDestroy(replay));
  LORAD_CUDA_CHECK(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return 1000.0 * static_cast<double>(times[times.size() / 2]);
}

struct Setting {
  const char* name;
  int64_t inputs;
  std::vector<int64_t> outputs;  // of each target
  int32_t adapters;
  std::vector<int64_t> ranks;  // adapter i has ranks[i % size]
  float dropout;
  bool mixed = false;  // kMixedLengths instead of equal ones
};

std::vector<HostTarget> Targets(Generator& random, const Setting& setting, int64_t rank) {
  std::vector<HostTarget> targets;
  int64_t first = 0;
  for (const int64_t outputs : setting.outputs) {
    HostTarget target;
    target.shape = {.first_output = first,
                    .outputs = outputs,
                    .rank = rank,
                    .scale = 2,
                    .dropout = setting.dropout,
                    .layer = 3,
                    .target = static_cast<int32_t>(targets.size())};
    target.a = RandomValues(random, rank * setting.inputs, 0.02f);
    target.b = RandomValues(random, outputs * rank, 0.02f);
    targets.push_back(std::move(target));
    first += outputs;
  }
  return targets;
}

// What one setting runs on; the large tensors are filled with random bf16 values.
struct Bench {
  explicit Bench(const Setting& setting)
      : outputs(0),
        dtype(DType::kBfloat16),
        inputs(setting.inputs),
        world(dtype, LimitsOf(setting), setting.inputs, SumOf(setting.outputs), setting.adapters),
        x(kTokens, setting.inputs, dtype, 0),
        dy(kTokens, SumOf(setting.outputs), dtype, 0),
        y(kTokens, SumOf(setting.outputs), dtype, 0),
        dx(kTokens, setting.inputs, dtype, 0),
        saved(kTokens, RankOf(setting) * static_cast<int64_t>(setting.outputs.size()), dtype, 0) {
    outputs = SumOf(setting.outputs);
    Generator random(1);
    Fill(random, world.weight(), 0.02f);
    Fill(random, x, 1);
    Fill(random, dy, 1);
    for (int32_t slot = 0; slot < setting.adapters; ++slot) {
      const int64_t rank = setting.ranks[static_cast<size_t>(slot) % setting.ranks.size()];
      adapters.push_back(
          std::make_unique<DeviceAdapter>(inputs, dtype, Targets(random, setting, rank)));
      world.table().SetTargets(slot, 0, adapters.back()->targets());
    }
    BatchOf rows;
    constexpr int64_t kSequences = kTokens / kSequence;
    static_assert(kSequences == std::size(kMixedLengths));
    for (int64_t i = 0; i < kSequences; ++i) {
      rows.Append(setting.mixed ? kMixedLengths[i] : kSequence,
                  static_cast<int32_t>(i * setting.adapters / kSequences), Mode::kTrain,
                  {.seed = 1, .step = 1, .sequence = static_cast<uint32_t>(i)});
    }
    assert(rows.tokens() == kTokens);
    batch = std::make_unique<CudaBatch>(world.context(), rows.description());
  }

  static int64_t SumOf(const std::vector<int64_t>& values) {
    int64_t sum = 0;
    for (const int64_t value : values) sum += value;
    return sum;
  }
  static int64_t RankOf(const Setting& setting) {
    return PaddedRank(*std::max_element(setting.ranks.begin(), setting.ranks.end()));
  }
  static Limits LimitsOf(const Setting& setting) {
    return {.tokens = kTokens,
            .features = std::max(setting.inputs, SumOf(setting.outputs)),
            .rank = RankOf(setting),
            .slots = setting.adapters,
            .targets_in_group = static_cast<int64_t>(setting.outputs.size())};
  }
  // Values of one random block again and again.
  static void Fill(Generator& random, DeviceMatrix& matrix, float size) {
    const int64_t count = std::min<int64_t>(matrix.view().elements(), (1 << 20) - 3);
    const std::vector<float> values = RandomValues(random, count, size);
    std::vector<uint16_t> halves(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = Rounded(values[i], DType::kBfloat16);
      std::memcpy(&halves[i], reinterpret_cast<const char*>(&value) + 2, 2);
    }
    for (int64_t at = 0; at < matrix.view().elements(); at += count) {
      const int64_t left = std::min(count, matrix.view().elements() - at);
      LORAD_CUDA_CHECK(cudaMemcpy(static_cast<uint16_t*>(matrix.view().data) + at, halves.data(),
                                  static_cast<size_t>(left) * 2, cudaMemcpyHostToDevice));
    }
  }

  int64_t outputs;
  const DType dtype;
  const int64_t inputs;
  LoraWorld world;
  DeviceMatrix x, dy, y, dx, saved;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters;
  std::unique_ptr<CudaBatch> batch;
};

// FNV-1a.
uint64_t Hash(uint64_t hash, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 0x100000001B3;
  return hash;
}

// Of every gradient of one forward and backward, and of some rows of y and dx.
uint32_t BitsOf(Bench& bench, const std::function<void()>& run) {
  for (const auto& adapter : bench.adapters) adapter->ClearGradients();
  run();
  uint64_t hash = 0xCBF29CE484222325;
  for (const auto& adapter : bench.adapters) {
    for (size_t target = 0; target < adapter->host().size(); ++target) {
      for (const DeviceSums* sums : {&adapter->da(target), &adapter->db(target)}) {
        const std::vector<int64_t> values = sums->Read();
        hash = Hash(hash, values.data(), values.size() * sizeof(int64_t));
      }
    }
  }
  for (const DeviceMatrix* matrix : {&bench.y, &bench.dx}) {
    const TensorView rows = matrix->view().Rows(kTokens - 64, 64);
    std::vector<uint16_t> values(static_cast<size_t>(rows.elements()));
    LORAD_CUDA_CHECK(
        cudaMemcpy(values.data(), rows.data, values.size() * 2, cudaMemcpyDeviceToHost));
    hash = Hash(hash, values.data(), values.size() * 2);
  }
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

double CopyMicroseconds(cudaStream_t stream, const DeviceMatrix& from, const DeviceMatrix& to) {
  const size_t bytes = static_cast<size_t>(std::min(from.view().elements(), to.view().elements()) *
                                           BytesOf(from.view().dtype));
  const double us = Microseconds(stream, [&] {
    LORAD_CUDA_CHECK(
        cudaMemcpyAsync(to.view().data, from.view().data, bytes, cudaMemcpyDeviceToDevice, stream));
  });
  return us * static_cast<double>(from.view().elements() * 2) / static_cast<double>(bytes) / 2;
}

void Run(const Setting& setting) {
  Bench bench(setting);
  LoraWorld& world = bench.world;
  const cudaStream_t stream = world.context().stream.get();
  const LoraContext lora = world.lora();
  const TensorView x = bench.x.view(), dy = bench.dy.view(), saved = bench.saved.view();
  const LoraPlan& plan =
      PlanOf(world.context(), world.memory(), *bench.batch, world.table(), 0, bench.inputs);
  const TensorView shared = {world.memory().shared, kTokens,          plan.tables().columns,
                             plan.tables().columns, DType::kBfloat16, Device::kCuda};
  const LoraScratch scratch = {world.memory().partial, world.memory().partial_bytes,
                               world.memory().counters};
  const auto frozen = [&](Gemm& gemm) {
    return Microseconds(stream, [&] {
      gemm.Run({.product = Product::kForward,
                .x = x,
                .weight = world.weight().view(),
                .y = bench.y.view()},
               world.gemm_workspace(), stream);
      gemm.Run({.product = Product::kInputGradient,
                .x = dy,
                .weight = world.weight().view(),
                .y = bench.dx.view()},
               world.gemm_workspace(), stream);
    });
  };
  Gemm library(GemmOptions{.own_kernel = false});
  const double frozen_library = frozen(library);
  const double frozen_own = frozen(world.gemm());
  const auto run = [&] {
    LoraLinear(lora, *bench.batch, world.linear(), world.table(), 0, x, {}, bench.y.view(), saved);
    LoraLinearBackward(lora, *bench.batch, world.linear(), world.table(), 0, x, dy, bench.dx.view(),
                       saved);
  };
  const uint32_t bits = BitsOf(bench, run);
  const double whole = Microseconds(stream, run);
  const double input =
      Microseconds(stream, [&] { ProjectInput(plan.tables(), x, saved, shared, scratch, stream); });
  const double output = Microseconds(
      stream, [&] { ProjectOutput(plan.tables(), dy, saved, shared, scratch, stream); });
  const double gradient = Microseconds(stream, [&] {
    GradientA(plan.tables(), x, shared, MaskRowBytes(bench.inputs), false, stream);
  });
  const double copy_x = CopyMicroseconds(stream, bench.x, bench.dx);
  const double copy_dy = CopyMicroseconds(stream, bench.dy, bench.y);
  const double products = whole - input - output - gradient;
  std::printf(
      "%-34s %8.0f %8.0f %8.0f | %6.3f %6.3f | %7.1f %7.1f /%6.1f %7.1f /%6.1f | %8.0f | %08x\n",
      setting.name, frozen_library, frozen_own, whole, whole / frozen_library, whole / frozen_own,
      input, gradient, copy_x, output, copy_dy, products, bits);
  std::fflush(stdout);
}

// Those whose name has `wanted` in it.
void RunAll(std::string_view wanted) {
  std::printf(
      "%lld tokens, microseconds. floor: half of a copy's time, the reading. bits: of what "
      "was computed.\n",
      static_cast<long long>(kTokens));
  std::printf("%-34s %8s %8s %8s | %6s %6s | %7s %7s /%6s %7s /%6s | %8s | %8s\n", "setting",
              "cuBLAS", "own", "LoRA", "/cuBL", "/own", "S", "dA", "floor", "dS,dB", "floor",
              "products", "bits");
  const std::vector<Setting> settings = {
      {"4096x4096, 1", 4096, {4096}, 1, {16}, 0},
      {"4096x4096, 4", 4096, {4096}, 4, {16}, 0},
      {"4096x4096, 16", 4096, {4096}, 16, {16}, 0},
      {"4096x4096, 4, dropout", 4096, {4096}, 4, {16}, 0.1f},
      {"4096x14336, 1", 4096, {14336}, 1, {16}, 0},
      {"4096x14336, 4", 4096, {14336}, 4, {16}, 0},
      {"4096x14336, 16", 4096, {14336}, 16, {16}, 0},
      {"4096x14336, 4, dropout", 4096, {14336}, 4, {16}, 0.1f},
      {"14336x4096, 1", 14336, {4096}, 1, {16}, 0},
      {"14336x4096, 4", 14336, {4096}, 4, {16}, 0},
      {"14336x4096, 16", 14336, {4096}, 16, {16}, 0},
      {"14336x4096, 4, dropout", 14336, {4096}, 4, {16}, 0.1f},
      {"4096x4096, 4, ranks 8-64", 4096, {4096}, 4, {8, 16, 32, 64}, 0},
      {"4096x4096, 4, ranks 8-64, dropout", 4096, {4096}, 4, {8, 16, 32, 64}, 0.1f},
      {"4096x(4096,1024,1024), 4", 4096, {4096, 1024, 1024}, 4, {16}, 0},
      {"4096x(4096,1024,1024), 4, dropout", 4096, {4096, 1024, 1024}, 4, {16}, 0.1f},
      {"4096x(14336,14336), 4", 4096, {14336, 14336}, 4, {16}, 0},
      {"4096x(14336,14336), 4, dropout", 4096, {14336, 14336}, 4, {16}, 0.1f},
      {"4096x4096, mixed lengths", 4096, {4096}, 4, {16}, 0, true},
      {"14336x4096, mixed lengths", 14336, {4096}, 4, {16}, 0, true},
      {"4096x(4096,1024,1024), mixed", 4096, {4096, 1024, 1024}, 4, {16}, 0, true},
      {"4096x(14336,14336), mixed", 4096, {14336, 14336}, 4, {16}, 0, true},
      {"4096x4096, mixed, dropout", 4096, {4096}, 4, {16}, 0.1f, true},
      {"14336x4096, mixed, dropout", 14336, {4096}, 4, {16}, 0.1f, true},
      {"4096x(4096,1024,1024), mixed, drop", 4096, {4096, 1024, 1024}, 4, {16}, 0.1f, true},
      {"4096x(14336,14336), mixed, dropout", 4096, {14336, 14336}, 4, {16}, 0.1f, true},
      {"2048x2048, 8", 2048, {2048}, 8, {16}, 0},
      {"2048x2048, 8, dropout", 2048, {2048}, 8, {16}, 0.1f},
  };
  for (const Setting& setting : settings) {
    if (std::string_view(setting.name).find(wanted) != std::string_view::npos) Run(setting);
  }
}

// Of some rows of a matrix, after `run` into it.
uint64_t BitsOf(DeviceMatrix& matrix, const std::function<void()>& run) {
  matrix.Poison();
  run();
  const std::vector<uint16_t> rows = matrix.RawRows(kTokens - 512, 512);
  return Hash(0xCBF29CE484222325, rows.data(), rows.size() * 2);
}

// An operation by a pass of its own, and as the product's last step; without: the product alone.
void ComparePasses(const char* name, cudaStream_t stream, DeviceMatrix& out,
                   const std::function<void()>& without, const std::function<void()>& pass,
                   const std::function<void()>& fused) {
  const bool equal = BitsOf(out, pass) == BitsOf(out, fused);
  // In turns, so that all run at the clock that the power allows.
  constexpr int kRounds = 4;
  const std::function<void()>* runs[] = {&without, &pass, &fused};
  double us[3] = {};
  for (int round = 0; round < kRounds; ++round) {
    // There and back: what runs before another decides at which clock that one begins.
    for (int i = 0; i < 3; ++i) {
      const int at = round % 2 == 0 ? i : 2 - i;
      us[at] += Microseconds(stream, *runs[at]) / kRounds;
    }
  }
  std::printf("%-34s %8.0f %8.0f %8.0f | %6.3f | %s\n", name, us[0], us[1], us[2], us[2] / us[1],
              equal ? "equal" : "DIFFERENT");
  std::fflush(stdout);
}

// gate,up forward.
void RunSwiGlu(const Setting& setting) {
  Bench bench(setting);
  LoraWorld& world = bench.world;
  const cudaStream_t stream = world.context().stream.get();
  const LoraContext lora = world.lora();
  if (!FusesSwiGlu(lora, world.linear())) return;
  DeviceMatrix gated(kTokens, bench.outputs / 2, bench.dtype, 0);
  const auto run = [&](const TensorView& to) {
    LoraLinear(lora, *bench.batch, world.linear(), world.table(), 0, bench.x.view(), {},
               bench.y.view(), bench.saved.view(), to);
  };
  ComparePasses(
      setting.name, stream, gated, [&] { run({}); },
      [&] {
        run({});
        SwiGlu(stream, bench.y.view(), gated.view());
      },
      [&] { run(gated.view()); });
}

// The backward of `down`.
void RunSwiGluBackward(const Setting& setting) {
  Bench bench(setting);
  LoraWorld& world = bench.world;
  const cudaStream_t stream = world.context().stream.get();
  const LoraContext lora = world.lora();
  const TensorView saved = bench.saved.view();
  if (!FusesSwiGluBackward(lora, *bench.batch, world.linear(), world.table(), 0)) return;
  DeviceMatrix gate_up(kTokens, 2 * bench.inputs, bench.dtype, 0);
  DeviceMatrix dgate_up(kTokens, 2 * bench.inputs, bench.dtype, 0);
  Generator random(2);
  Bench::Fill(random, gate_up, 2);
  LoraLinear(lora, *bench.batch, world.linear(), world.table(), 0, bench.x.view(), {},
             bench.y.view(), saved);
  const auto run = [&](const TensorView& dx, const TensorView& of) {
    LoraLinearBackward(lora, *bench.batch, world.linear(), world.table(), 0, bench.x.view(),
                       bench.dy.view(), dx, saved, of);
  };
  ComparePasses(
      setting.name, stream, dgate_up, [&] { run(bench.dx.view(), {}); },
      [&] {
        run(bench.dx.view(), {});
        SwiGluBackward(stream, gate_up.view(), bench.dx.view(), dgate_up.view());
      },
      [&] { run(dgate_up.view(), gate_up.view()); });
}

void RunAllSwiGlu() {
  std::printf("%-34s %8s %8s %8s | %6s | %s\n", "SwiGLU, setting", "without", "a pass", "fused",
              "/pass", "bits");
  for (const Setting& setting : std::vector<Setting>{
           {"gate,up of Llama-3.1-8B, 4", 4096, {14336, 14336}, 4, {16}, 0},
           {"gate,up of Qwen2.5-3B, 8", 2048, {11008, 11008}, 8, {16}, 0},
           {"gate,up of TinyLlama, 8", 2048, {5632, 5632}, 8, {16}, 0},
       }) {
    RunSwiGlu(setting);
  }
  for (const Setting& setting : std::vector<Setting>{
           {"down of Llama-3.1-8B, 4, backward", 14336, {4096}, 4, {16}, 0},
           {"down of Qwen2.5-3B, 8, backward", 11008, {2048}, 8, {16}, 0},
           {"down of TinyLlama, 8, backward", 5632, {2048}, 8, {16}, 0},
           {"down of Llama-3.1-8B, dropout", 14336, {4096}, 4, {16}, 0.1f},
           {"down of Qwen2.5-3B, dropout", 11008, {2048}, 8, {16}, 0.1f},
           {"down of TinyLlama, dropout", 5632, {2048}, 8, {16}, 0.1f},
       }) {
    RunSwiGluBackward(setting);
  }
}

// q, k, v forward, of which the last part is not turned.
void RunRope(const Setting& setting, int64_t head_size, bool has_bias) {
  Bench bench(setting);
  LoraWorld& world = bench.world;
  const cudaStream_t stream = world.context().stream.get();
  Generator random(2);
  DeviceMatrix bias(1, bench.outputs, bench.dtype, 0);
  Bench::Fill(random, bias, 1);
  world.linear().has_bias = has_bias;
  if (has_bias) world.linear().bias = bias.view();
  DeviceMatrix angles(kSequence, head_size, DType::kFloat32, 0);
  angles.Write(RandomValues(random, angles.view().elements(), 1));
  const int64_t rotated = bench.outputs - setting.outputs.back();
  const GemmRope rope = RopeOf(*bench.batch, angles.view(), rotated);
  if (!FusesRope(world.lora(), world.linear(), rope)) return;
  const auto run = [&](const GemmRope& with) {
    LoraLinear(world.lora(), *bench.batch, world.linear(), world.table(), 0, bench.x.view(), {},
               bench.y.view(), bench.saved.view(), {}, with);
  };
  ComparePasses(
      setting.name, stream, bench.y, [&] { run({}); },
      [&] {
        run({});
        Rope(stream, bench.batch->tables, angles.view(), 1, bench.y.view().Columns(0, rotated));
      },
      [&] { run(rope); });
}

void RunAllRope() {
  std::printf("%-34s %8s %8s %8s | %6s | %s\n", "rope, setting", "without", "a pass", "fused",
              "/pass", "bits");
  RunRope({"q,k,v of Llama-3.1-8B, 4", 4096, {4096, 1024, 1024}, 4, {16}, 0}, 128, false);
  RunRope({"q,k,v of Qwen2.5-3B, 8", 2048, {2048, 256, 256}, 8, {16}, 0}, 128, true);
  RunRope({"q,k,v of TinyLlama, 8", 2048, {2048, 256, 256}, 8, {16}, 0}, 64, false);
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing

int main(int argc, char** argv) {
  namespace testing = lorad::kernels::cuda::testing;
  if (!testing::HaveGpu()) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  const std::string_view part = argc > 1 ? argv[1] : "";
  if (part.empty() || part == "lora") testing::RunAll(argc > 2 ? argv[2] : "");
  if (part.empty() || part == "swiglu") testing::RunAllSwiGlu();
  if (part.empty() || part == "rope") testing::RunAllRope();
}
