// What the matrix-product library reaches on this machine: the limit that training is measured
// against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lorad::bench {

// The linear layers of a model, for ceilings and utilization.
struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t feed_forward = 0;
  int64_t vocabulary = 0;

  // Weights that take part in products, the head included (tied or not).
  int64_t LinearParameters() const;
  // Forward and input gradient of every linear and the head: 4 * linear parameters; plus
  // attention's products at a mean context of half the sequence (forward 2, backward 5, of 2 *
  // heads * head_size * context FLOP each).
  double TrainingFlopsPerToken(int64_t sequence_length) const;
};

ModelShape SmolLm2();

struct Product {
  int64_t rows = 0;       // M
  int64_t outputs = 0;    // O
  int64_t inputs = 0;     // K
  bool backward = false;  // dY W [M, K] instead of X W^T [M, O]

  double Flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(outputs) *
           static_cast<double>(inputs);
  }
};

// The products of one chunk of 256 tokens of the model, forward and backward, one of each kind.
std::vector<Product> ProductsOf(const ModelShape& shape);

// A clock for measurements: the process's CPU time where one thread works (other processes disturb
// it less), else the wall's.
double Seconds(int threads);

// FLOP/s of `product` with `threads` threads each computing it on operands of its own; the best of
// several rounds.
double MeasureProduct(const Product& product, int threads);

struct ProductCeiling {
  double large_flops = 0;  // 1024 x 2048 x 2048, FLOP/s over all threads
  double model_flops = 0;  // the model's own products, weighted by their FLOPs
};

ProductCeiling MeasureProductCeiling(const ModelShape& shape, int threads);

}  // namespace lorad::bench
