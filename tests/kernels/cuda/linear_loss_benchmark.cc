// Times of head and loss on the GPU beside their two products alone. Checks nothing:
// linear_loss_test does.
#include <cstdio>

#include "tests/kernels/cuda/linear_loss_rig.h"

namespace lorad::kernels::cuda::testing {
namespace {

struct Variant {
  const char* name;
  LinearLossOptions options;
  GemmOptions gemm = {};
};

void Table(int64_t rows, int64_t vocabulary, int64_t hidden, const std::vector<Variant>& variants) {
  const double tera = 4.0 * static_cast<double>(rows) * static_cast<double>(vocabulary) *
                      static_cast<double>(hidden) / 1e12;
  std::printf("%ld rows, V %ld, H %ld: %.2f TFLOP\n", rows, vocabulary, hidden, tera);
  std::printf("%-34s %8s %8s %8s %8s %8s %9s\n", "", "all ms", "products", "ratio", "Tf/s", "log_p",
              "work MiB");
  for (const Variant& variant : variants) {
    LinearLossRig rig(DType::kBfloat16, vocabulary, hidden, rows, 4, variant.options, variant.gemm);
    const LinearLossRig::Times times = rig.Measure(rows);
    std::printf("%-34s %8.3f %8.3f %8.3f %8.0f %8.3f %9.0f\n", variant.name, times.all_ms,
                times.products_ms, times.all_ms / times.products_ms, tera / times.all_ms * 1e3,
                times.forward_ms, static_cast<double>(rig.workspace_bytes()) / (1 << 20));
    std::fflush(stdout);
  }
}

void Run() {
  constexpr DType kBf16 = DType::kBfloat16;
  const std::vector<Variant> variants = {
      {"as chosen (fp32 logits)", {}},
      {"logits read twice", {.cluster = false}},
      {"chunks of 512 logits", {.logit_rows = 512}},
      {"bf16 logits", {.logits = kBf16}},
      {"bf16 logits, 132 rows at once", {.logits = kBf16, .rows_at_once = 132}},
      {"bf16 logits, 264 rows at once", {.logits = kBf16, .rows_at_once = 264}},
      {"as chosen, again", {}},
      {"library's products", {}, {.own_kernel = false}},
  };
  Table(4096, 128256, 4096, variants);
  Table(8192, 32000, 2048, variants);
  Table(8192, 151936, 2048, {variants[0], variants[1], variants[3]});
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
