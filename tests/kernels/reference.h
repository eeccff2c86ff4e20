// The operations in float64, written for clarity.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {

// qkv [T, (N + 2G) D]; returns out [T, N D], and lse [T, N] unless null.
Matrix AttentionReference(const BatchData& data, const AttentionShape& shape, const Matrix& qkv,
                          Matrix* lse);

// One LoRA target with its matrices.
struct Target {
  int64_t first_output = 0;
  int64_t outputs = 0;
  int64_t rank = 0;
  double scale = 0;
  double dropout = 0;
  int32_t layer = 0;
  int32_t target = 0;
  Matrix a;  // [R, K]
  Matrix b;  // [O, R]
};
using Adapter = std::vector<Target>;

// One row's mask: is feature `feature` of the input of `target` kept?
bool Kept(const DropoutKey& key, const Target& target, int64_t position, int64_t feature);

// y [T, O] = x W^T + bias + sum over targets; bias may have no rows. adapters by slot.
Matrix LoraReference(const BatchData& data, const Matrix& x, const Matrix& weight,
                     const Matrix& bias, const std::vector<Adapter>& adapters);

// Row i: the logits of x's row rows[i], capped where cap is not 0.  head [V, H]; returns [n, V].
Matrix LogitsReference(const Matrix& x, const std::vector<int32_t>& rows, const Matrix& head,
                       double cap = 0);

// log p of every loss row, logits capped where cap is not 0.  x [T, H], head [V, H]; returns [1, n].
Matrix LossReference(const BatchData& data, const Matrix& x, const Matrix& head, double cap = 0);

}  // namespace lorad::kernels::testing
