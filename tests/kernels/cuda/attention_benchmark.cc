// Times of attention on the GPU beside what ENGINE's anchors say of cuDNN alone, and of a copy of
// the same bytes. Checks nothing: attention_test does.
#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/kernels/cuda/attention_rig.h"

namespace lorad::kernels::cuda::testing {
namespace {

struct Case {
  int64_t sequences;
  int64_t rows;
  double anchor_ms;        // N = 32, G = 8, D = 128, forward + backward, deterministic; 0: none
  int64_t tokens_max = 0;  // what is planned for; 0: no more than there are
};

double TeraflopPerSecond(const AttentionShape& shape, const std::vector<int64_t>& lengths,
                         double ms, double products) {
  double pairs = 0;
  for (const int64_t rows : lengths) {
    pairs += static_cast<double>(rows * (rows + 1) / 2 * shape.heads);
  }
  return 2 * products * pairs * static_cast<double>(shape.head_size) / ms / 1e9;
}

AttentionRig::Times TimesOf(const AttentionShape& shape, const AttentionOptions& options,
                            const std::vector<int64_t>& lengths) {
  Limits limits = {.heads = shape.heads, .kv_heads = shape.kv_heads, .head_size = shape.head_size};
  std::vector<Sequence> sequences;
  for (const int64_t rows : lengths) {
    limits.tokens += rows;
    limits.longest_segment = std::max(limits.longest_segment, rows);
    sequences.push_back({.seed = 1, .rows = rows});
  }
  AttentionRig rig(DType::kBfloat16, options, limits);
  return rig.Measure(sequences, shape);
}

struct Load {
  const char* name;
  AttentionShape shape;
  std::vector<int64_t> lengths;
};

// Our backward and cuDNN's, of the same sequences in turn.
void BesideCudnn(const std::vector<Load>& loads) {
  std::printf("%-34s %10s %8s %10s %8s %8s\n", "backward", "own ms", "Tf/s", "cuDNN ms", "Tf/s",
              "speed");
  for (const Load& load : loads) {
    const double own = TimesOf(load.shape, {}, load.lengths).backward_ms;
    const double cudnn = TimesOf(load.shape, {.own_backward = false}, load.lengths).backward_ms;
    std::printf("%-34s %10.3f %8.0f %10.3f %8.0f %8.2f\n", load.name, own,
                TeraflopPerSecond(load.shape, load.lengths, own, 5), cudnn,
                TeraflopPerSecond(load.shape, load.lengths, cudnn, 5), cudnn / own);
    std::fflush(stdout);
  }
}

void Table(const AttentionShape& shape, const AttentionOptions& options,
           const std::vector<Case>& cases) {
  std::printf("N %ld G %ld D %ld, backward's probabilities at most %ld MiB\n", shape.heads,
              shape.kv_heads, shape.head_size, options.score_bytes_max >> 20);
  std::printf("%16s %10s %10s %10s %8s %8s %8s %10s %10s %8s\n", "sequences x rows", "forward",
              "backward", "both ms", "anchor", "Tf/s f", "Tf/s b", "work MiB", "cuDNN MiB",
              "ms/plan");
  for (const Case& c : cases) {
    const Limits limits = {.tokens = std::max(c.tokens_max, c.sequences * c.rows),
                           .longest_segment = c.rows,
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_size = shape.head_size};
    AttentionRig rig(DType::kBfloat16, options, limits);
    const std::vector<int64_t> lengths(static_cast<size_t>(c.sequences), c.rows);
    std::vector<Sequence> sequences;
    for (int64_t i = 0; i < c.sequences; ++i) {
      sequences.push_back({.seed = 1, .rows = c.rows});
    }
    const AttentionRig::Times times = rig.Measure(sequences, shape);
    std::printf("%9ld x %5ld %10.3f %10.3f %10.3f %8.2f %8.0f %8.0f %10.1f %10.1f %8.1f\n",
                c.sequences, c.rows, times.forward_ms, times.backward_ms,
                times.forward_ms + times.backward_ms, c.anchor_ms,
                TeraflopPerSecond(shape, lengths, times.forward_ms, 2),
                TeraflopPerSecond(shape, lengths, times.backward_ms, 5),
                static_cast<double>(rig.workspace_bytes()) / (1 << 20),
                static_cast<double>(rig.operation().cudnn_bytes_max()) / (1 << 20),
                rig.operation().plans_ms() / static_cast<double>(rig.operation().plans()));
    std::fflush(stdout);
  }
}

// What a window saves: both directions with it, beside all keys.
void WithWindows(const std::vector<Load>& loads) {
  std::printf("%-40s %10s %10s %10s %10s %8s\n", "window", "forward", "backward", "all: fwd",
              "all: bwd", "of all");
  for (const Load& load : loads) {
    AttentionShape all = load.shape;
    all.window = 0;
    const AttentionRig::Times within = TimesOf(load.shape, {}, load.lengths);
    const AttentionRig::Times whole = TimesOf(all, {}, load.lengths);
    std::printf("%-40s %10.3f %10.3f %10.3f %10.3f %8.2f\n", load.name, within.forward_ms,
                within.backward_ms, whole.forward_ms, whole.backward_ms,
                (within.forward_ms + within.backward_ms) / (whole.forward_ms + whole.backward_ms));
    std::fflush(stdout);
  }
}

// all: more than our backward beside cuDNN's.
void Run(bool all) {
  const AttentionShape llama = {.heads = 32, .kv_heads = 8, .head_size = 128, .scale = 0.088f};
  const AttentionShape tiny = {.heads = 32, .kv_heads = 4, .head_size = 64, .scale = 0.125f};
  const AttentionShape qwen = {.heads = 16, .kv_heads = 2, .head_size = 128, .scale = 0.088f};
  const auto equal = [](size_t sequences, int64_t rows) {
    return std::vector<int64_t>(sequences, rows);
  };
  const std::vector<int64_t> mixed = {2048, 17, 900, 333, 130, 1024, 64, 511, 77, 1500, 260, 1328};
  BesideCudnn({{"8 x 1024, N 32 G 4 D 64", tiny, equal(8, 1024)},
               {"4 x 1024, N 32 G 8 D 128", llama, equal(4, 1024)},
               {"8 x 1024, N 32 G 8 D 128", llama, equal(8, 1024)},
               {"8 x 1024, N 16 G 2 D 128", qwen, equal(8, 1024)},
               {"12 of 17 to 2048, N 32 G 4 D 64", tiny, mixed},
               {"12 of 17 to 2048, N 32 G 8 D 128", llama, mixed},
               {"1 x 8192, N 32 G 4 D 64", tiny, equal(1, 8192)},
               {"1 x 8192, N 32 G 8 D 128", llama, equal(1, 8192)},
               {"64 x 128, N 32 G 4 D 64", tiny, equal(64, 128)},
               {"64 x 128, N 32 G 8 D 128", llama, equal(64, 128)},
               {"16 x 512, N 32 G 4 D 64", tiny, equal(16, 512)},
               {"1 x 1024, N 32 G 8 D 128", llama, equal(1, 1024)}});
  AttentionShape mistral = llama;
  mistral.window = 4096;
  const AttentionShape gemma = {
      .heads = 16, .kv_heads = 8, .head_size = 256, .scale = 0.0625f, .window = 1024};
  WithWindows({{"1 x 8192, N 32 G 8 D 128, window 4096", mistral, equal(1, 8192)},
               {"2 x 4096, N 16 G 8 D 256, window 1024", gemma, equal(2, 4096)}});
  if (!all) return;
  const std::vector<Case> cases = {{64, 128, 0.45},    {16, 512, 0.58},    {8, 1024, 0.83},
                                   {4, 1024, 0},       {4, 1024, 0, 8192}, {1, 1024, 0},
                                   {1, 1024, 0, 8192}, {4, 2048, 1.33},    {1, 8192, 4.44}};
  const AttentionOptions cudnn = {.own_backward = false};
  Table(llama, cudnn, cases);
  Table(llama, {.score_bytes_max = int64_t{2} << 30, .own_backward = false},
        {{4, 2048, 1.33}, {1, 8192, 4.44}});
  Table(tiny, cudnn, {{64, 128, 0}, {16, 512, 0}, {8, 1024, 0.63}, {8, 512, 0}});
  Table(qwen, cudnn, {{8, 1024, 0}});
  Table(tiny, {.cudnn = false, .own_backward = false}, {{8, 512, 0}});
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing

// Argument "all": tables of cuDNN's too.
int main(int count, char** arguments) {
  if (lorad::kernels::cuda::testing::DeviceCount() == 0) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  lorad::kernels::cuda::testing::Run(count > 1 && std::string(arguments[1]) == "all");
}
