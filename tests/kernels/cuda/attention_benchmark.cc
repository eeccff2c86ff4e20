// Times of attention on the GPU beside what ENGINE's anchors say of cuDNN alone, and of a copy of
// the same bytes. Checks nothing: attention_test does.
#include <algorithm>
#include <cstdio>

#include "tests/kernels/cuda/attention_rig.h"

namespace lorad::kernels::cuda::testing {
namespace {

struct Case {
  int64_t sequences;
  int64_t rows;
  double anchor_ms;        // N = 32, G = 8, D = 128, forward + backward, deterministic; 0: none
  int64_t tokens_max = 0;  // what is planned for; 0: no more than there are
};

double TeraflopPerSecond(const AttentionShape& shape, int64_t sequences, int64_t rows, double ms,
                         double products) {
  const auto pairs = static_cast<double>(sequences * rows * (rows + 1) / 2 * shape.heads);
  return 2 * products * pairs * static_cast<double>(shape.head_size) / ms / 1e9;
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
    std::vector<Sequence> sequences;
    for (int64_t i = 0; i < c.sequences; ++i) {
      sequences.push_back({.seed = static_cast<uint64_t>(i), .rows = c.rows});
    }
    const AttentionRig::Times times = rig.Measure(sequences, shape);
    std::printf("%9ld x %5ld %10.3f %10.3f %10.3f %8.2f %8.0f %8.0f %10.1f %10.1f %8.1f\n",
                c.sequences, c.rows, times.forward_ms, times.backward_ms,
                times.forward_ms + times.backward_ms, c.anchor_ms,
                TeraflopPerSecond(shape, c.sequences, c.rows, times.forward_ms, 2),
                TeraflopPerSecond(shape, c.sequences, c.rows, times.backward_ms, 5),
                static_cast<double>(rig.workspace_bytes()) / (1 << 20),
                static_cast<double>(rig.operation().cudnn_bytes_max()) / (1 << 20),
                rig.operation().plans_ms() / static_cast<double>(rig.operation().plans()));
    std::fflush(stdout);
  }
}

void Run() {
  const AttentionShape llama = {.heads = 32, .kv_heads = 8, .head_size = 128, .scale = 0.088f};
  const AttentionShape tiny = {.heads = 32, .kv_heads = 4, .head_size = 64, .scale = 0.125f};
  const AttentionShape qwen = {.heads = 16, .kv_heads = 2, .head_size = 128, .scale = 0.088f};
  const std::vector<Case> cases = {{64, 128, 0.45},    {16, 512, 0.58},    {8, 1024, 0.83},
                                   {4, 1024, 0},       {4, 1024, 0, 8192}, {1, 1024, 0},
                                   {1, 1024, 0, 8192}, {4, 2048, 1.33},    {1, 8192, 4.44}};
  Table(llama, {}, cases);
  Table(llama, {.score_bytes_max = int64_t{2} << 30}, {{4, 2048, 1.33}, {1, 8192, 4.44}});
  Table(tiny, {}, {{64, 128, 0}, {16, 512, 0}, {8, 1024, 0.63}, {8, 512, 0}});
  Table(qwen, {}, {{8, 1024, 0}});
  Table(tiny, {.cudnn = false}, {{8, 512, 0}});
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing

int main() {
  if (lorad::kernels::cuda::testing::DeviceCount() == 0) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  lorad::kernels::cuda::testing::Run();
}
