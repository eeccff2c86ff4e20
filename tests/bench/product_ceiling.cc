#include "tests/bench/product_ceiling.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/thread_pool.h"

namespace lorad::bench {
namespace {

constexpr double kRoundSeconds = 0.03;
constexpr int kRounds = 6;

void Multiply(const Product& product, const float* x, const float* w, float* y) {
  using kernels::cpu::MultiplyNN;
  using kernels::cpu::MultiplyNT;
  if (product.backward) {
    MultiplyNN(product.rows, product.inputs, product.outputs, 1, x, product.outputs, w,
               product.inputs, 0, y, product.inputs);
  } else {
    MultiplyNT(product.rows, product.outputs, product.inputs, 1, x, product.inputs, w,
               product.inputs, 0, y, product.outputs);
  }
}

}  // namespace

int64_t ModelShape::LinearParameters() const {
  const int64_t attention =
      (heads + 2 * kv_heads) * head_size * hidden + hidden * heads * head_size;
  return layers * (attention + 3 * hidden * feed_forward) + vocabulary * hidden;
}

double ModelShape::TrainingFlopsPerToken(int64_t sequence_length) const {
  const double context = static_cast<double>(sequence_length + 1) / 2;
  const double attention =
      7 * 2 * static_cast<double>(heads * head_size) * context * static_cast<double>(layers);
  return 4 * static_cast<double>(LinearParameters()) + attention;
}

ModelShape SmolLm2() {
  return {.layers = 30,
          .hidden = 576,
          .heads = 9,
          .kv_heads = 3,
          .head_size = 64,
          .feed_forward = 1536,
          .vocabulary = 49152};
}

std::vector<Product> ProductsOf(const ModelShape& shape) {
  constexpr int64_t kRows = 256;
  const int64_t q = shape.heads * shape.head_size;
  const int64_t qkv = q + 2 * shape.kv_heads * shape.head_size;
  std::vector<Product> products;
  for (const bool backward : {false, true}) {
    products.push_back({kRows, qkv, shape.hidden, backward});
    products.push_back({kRows, shape.hidden, q, backward});
    products.push_back({kRows, 2 * shape.feed_forward, shape.hidden, backward});
    products.push_back({kRows, shape.hidden, shape.feed_forward, backward});
  }
  return products;
}

double Seconds(int threads) {
  timespec now = {};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double MeasureProduct(const Product& product, int threads) {
  struct Operands {
    std::vector<float> x, w, y;
  };
  const size_t row_floats =
      static_cast<size_t>(product.rows * std::max(product.outputs, product.inputs));
  const size_t weight_floats = static_cast<size_t>(product.outputs * product.inputs);
  const Operands filled = {std::vector<float>(row_floats, 0.5f),
                           std::vector<float>(weight_floats, 0.25f),
                           std::vector<float>(row_floats)};
  std::vector<Operands> operands(static_cast<size_t>(threads), filled);
  kernels::cpu::ThreadPool pool(threads);
  const auto round = [&](int64_t repeats) {
    const double begin = Seconds(threads);
    pool.Run(threads, [&](int64_t item, int) {
      Operands& mine = operands[static_cast<size_t>(item)];
      for (int64_t i = 0; i < repeats; ++i) {
        Multiply(product, mine.x.data(), mine.w.data(), mine.y.data());
      }
    });
    return Seconds(threads) - begin;
  };
  round(1);
  const int64_t repeats = std::max<int64_t>(1, static_cast<int64_t>(kRoundSeconds / round(1)));
  double best = round(repeats);
  for (int i = 1; i < kRounds; ++i) best = std::min(best, round(repeats));
  return product.Flops() * static_cast<double>(repeats * threads) / best;
}

ProductCeiling MeasureProductCeiling(const ModelShape& shape, int threads) {
  double flops = 0;
  double seconds = 0;
  for (const Product& product : ProductsOf(shape)) {
    flops += product.Flops();
    seconds += product.Flops() / MeasureProduct(product, threads);
  }
  return {.large_flops = MeasureProduct({1024, 2048, 2048, false}, threads),
          .model_flops = flops / seconds};
}

}  // namespace lorad::bench
