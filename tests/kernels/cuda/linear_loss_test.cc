// Head and loss on the GPU: against float64, and row by row the same bits in any company.
#include "kernels/cuda/linear_loss.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>

#include "tests/kernels/cuda/linear_loss_rig.h"

namespace lorad::kernels::cuda::testing {
namespace {

bool NoDevice() {
  if (DeviceCount() > 0) return false;
  WARN("skipped: no GPU");
  return true;
}

struct LossLimits {
  double log_p;  // largest difference
  double unit;   // |got - want| / |want|
};

void CheckAgainstReference(DType dtype, int64_t vocabulary, int64_t hidden, DType logits,
                           const LossLimits& limits) {
  LinearLossRig rig(dtype, vocabulary, hidden, 2000, 4, {.logits = logits});
  const std::vector<LossSequence> sequences = {
      {.seed = 1, .rows = 40},
      {.seed = 2, .rows = 300, .mode = Mode::kEvaluate, .every_row = false},
      {.seed = 3, .rows = 1},
      {.seed = 4, .rows = 333, .every_row = false},
      {.seed = 5, .rows = 5, .mode = Mode::kReference}};
  const std::vector<LossResults> results = rig.Run(sequences);
  const std::vector<LossResults> without = rig.Run(sequences, false);
  double log_p_error = 0;
  double unit_error = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const LossReference want = rig.ReferenceOf(sequences[i]);
    for (size_t row = 0; row < want.log_p.size(); ++row) {
      const double error = std::abs(static_cast<double>(results[i].log_p[row]) - want.log_p[row]);
      log_p_error = std::isfinite(error) ? std::max(log_p_error, error) : INFINITY;
    }
    CHECK(SameBits(results[i].log_p, without[i].log_p));
    if (sequences[i].mode == Mode::kTrain) {
      unit_error = std::max(unit_error, RelativeError(want.unit, results[i].unit));
    } else {
      // As it was.
      for (const float value : results[i].unit) REQUIRE(std::isnan(value));
    }
  }
  std::printf("loss %s, logits %s, V=%ld H=%ld: log_p %.1e unit %.1e\n",
              dtype == DType::kFloat32 ? "fp32" : "bf16",
              logits == DType::kFloat32 ? "fp32" : "bf16", vocabulary, hidden, log_p_error,
              unit_error);
  CHECK(log_p_error < limits.log_p);
  CHECK(unit_error < limits.unit);
}

TEST_CASE("Head and loss against float64") {
  if (NoDevice()) return;
  // A logit of 16 times 2^-23, summed over H in another order.
  constexpr LossLimits kFloat32 = {2e-5, 1e-5};
  // G rounded to bf16, the gradient too; logits from bf16 operands are exact in float32.
  constexpr LossLimits kBfloat16 = {5e-5, 5e-3};
  // Logits of up to 16 rounded to bf16.
  constexpr LossLimits kBfloat16Logits = {1e-1, 3e-2};
  for (const auto& [vocabulary, hidden] :
       {std::pair<int64_t, int64_t>{1000, 64}, {2999, 48}, {4096, 256}, {8, 8}}) {
    CheckAgainstReference(DType::kBfloat16, vocabulary, hidden, DType::kFloat32, kBfloat16);
    CheckAgainstReference(DType::kBfloat16, vocabulary, hidden, DType::kBfloat16, kBfloat16Logits);
    CheckAgainstReference(DType::kFloat32, vocabulary, hidden, DType::kFloat32, kFloat32);
  }
}

TEST_CASE("Loss rows have the same bits alone and in any company") {
  if (NoDevice()) return;
  for (const DType logits : {DType::kFloat32, DType::kBfloat16}) {
    LinearLossRig rig(DType::kBfloat16, 32000, 512, 8192, 4, {.logits = logits});
    for (const int64_t rows : {1, 40, 700}) {
      const LossSequence watched = {.seed = 3, .rows = rows};
      const LossResults alone = rig.Run({watched})[0];
      const std::vector<std::vector<LossSequence>> befores = {
          {{.seed = 10, .rows = 17}},
          {{.seed = 10, .rows = 3000}, {.seed = 11, .rows = 55, .mode = Mode::kEvaluate}},
          {{.seed = 12, .rows = 130, .poisoned = true}}};
      for (size_t i = 0; i < befores.size(); ++i) {
        std::vector<LossSequence> sequences = befores[i];
        sequences.push_back(watched);
        sequences.push_back({.seed = 20, .rows = 333, .poisoned = i == 2});
        const LossResults among = rig.Run(sequences)[befores[i].size()];
        const bool log_p = SameBits(alone.log_p, among.log_p);
        const bool unit = SameBits(alone.unit, among.unit);
        if (!log_p || !unit) {
          std::printf("loss isolation, rows %ld, company %zu: log_p %d unit %d\n", rows, i, log_p,
                      unit);
        }
        INFO("rows " << rows << ", company " << i);
        CHECK(log_p);
        CHECK(unit);
      }
    }
  }
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing
