// Prints what the matrix-product library reaches here: a large product, and the model's own, on 1
// and all threads.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "kernels/cpu/matmul.h"
#include "tests/bench/product_ceiling.h"

int main() {
  using namespace lorad::bench;
  const int all = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const ModelShape shape = SmolLm2();
  std::printf("%s; GFLOP/s, float32\n", lorad::kernels::cpu::MatmulId().c_str());
  std::printf("%-34s %10s %10s\n", "product", "1 thread", "all");
  for (const Product& product : ProductsOf(shape)) {
    std::printf("%-10s M %4ld  O %5ld  K %5ld %10.1f %10.1f\n", product.backward ? "dY W" : "X W^T",
                static_cast<long>(product.rows), static_cast<long>(product.outputs),
                static_cast<long>(product.inputs), MeasureProduct(product, 1) * 1e-9,
                MeasureProduct(product, all) * 1e-9);
  }
  const ProductCeiling one = MeasureProductCeiling(shape, 1);
  const ProductCeiling many = MeasureProductCeiling(shape, all);
  std::printf("%-34s %10.1f %10.1f\n", "1024 x 2048 x 2048", one.large_flops * 1e-9,
              many.large_flops * 1e-9);
  std::printf("%-34s %10.1f %10.1f\n", "SmolLM2's, weighted", one.model_flops * 1e-9,
              many.model_flops * 1e-9);
  const double flops = 4 * static_cast<double>(shape.LinearParameters());
  std::printf("%-34s %10.1f %10.1f\n", "tokens/s at the large product", one.large_flops / flops,
              many.large_flops / flops);
  return 0;
}
