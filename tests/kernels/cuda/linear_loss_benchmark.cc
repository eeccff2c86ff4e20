// Times of head and loss on the GPU (all of it; without a gradient; and what the gradient adds) and
// of their two products alone, bf16 to bf16. Checks nothing: linear_loss_test does.
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
  std::printf("%-28s %8s %8s %8s %8s %8s %8s %9s\n", "", "all ms", "Tf/s", "log_p", "unit", "x W^T",
              "G W", "work MiB");
  for (const Variant& variant : variants) {
    LinearLossRig rig(DType::kBfloat16, vocabulary, hidden, rows, 4, variant.options, variant.gemm);
    const LinearLossRig::Times times = rig.Measure(rows);
    std::printf("%-28s %8.3f %8.0f %8.3f %8.3f %8.3f %8.3f %9.0f\n", variant.name, times.all_ms,
                tera / times.all_ms * 1e3, times.forward_ms, times.all_ms - times.forward_ms,
                times.forward_product_ms, times.gradient_product_ms,
                static_cast<double>(rig.workspace_bytes()) / (1 << 20));
    std::fflush(stdout);
  }
}

void Run() {
  const std::vector<Variant> variants = {
      {"as chosen", {}},
      {"chunks of 1,024", {.rows = 1024}},
      {"chunks of 2,048", {.rows = 2048}},
      {"as chosen, again", {}},
      {"library's products", {}, {.own_kernel = false}},
  };
  Table(4096, 128256, 4096, variants);
  Table(8192, 32000, 2048, variants);
  Table(8192, 151936, 2048, variants);
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
