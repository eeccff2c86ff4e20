// Head and loss on the GPU: against float64, and row by row the same bits in any company.
#include "kernels/cuda/loss/linear_loss.h"

#include <algorithm>
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

struct LossCase {
  const char* name;
  DType dtype;
  bool own_kernel;
  LossLimits limits;
  double long_log_p;  // limit of log_p where H is 4,096
};
const LossCase kLossCases[] = {
    // G or exponentials rounded to bf16, the gradient too; logits from bf16 operands are exact in
    // float32. Long sums are less so: matrix units truncate, 16 products at a time.
    {"bf16", DType::kBfloat16, true, {5e-5, 5e-3}, 2e-4},
    {"bf16, library", DType::kBfloat16, false, {5e-5, 5e-3}, 2e-4},
    // A logit of 16 times 2^-23, summed over H in another order.
    {"fp32", DType::kFloat32, false, {2e-5, 1e-5}, 1e-4},
};

// Largest errors of log_p and of units.
LossLimits ErrorsOf(const LinearLossRig& rig, const std::vector<LossSequence>& sequences,
                    const std::vector<LossResults>& results) {
  LossLimits errors = {0, 0};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const LossReference want = rig.ReferenceOf(sequences[i]);
    for (size_t row = 0; row < want.log_p.size(); ++row) {
      const double error = std::abs(static_cast<double>(results[i].log_p[row]) - want.log_p[row]);
      errors.log_p = std::isfinite(error) ? std::max(errors.log_p, error) : INFINITY;
    }
    if (sequences[i].mode == Mode::kTrain) {
      errors.unit = std::max(errors.unit, RelativeError(want.unit, results[i].unit));
    } else {
      // As it was.
      for (const float value : results[i].unit) REQUIRE(std::isnan(value));
    }
  }
  return errors;
}

void CheckAgainstReference(const LossCase& test, int64_t vocabulary, int64_t hidden, float size,
                           const std::vector<LossSequence>& sequences) {
  LinearLossRig rig(test.dtype, vocabulary, hidden, 2000, size, {},
                    {.own_kernel = test.own_kernel});
  const std::vector<LossResults> results = rig.Run(sequences);
  const std::vector<LossResults> without = rig.Run(sequences, false);
  for (size_t i = 0; i < sequences.size(); ++i) {
    CHECK(SameBits(results[i].log_p, without[i].log_p));
  }
  const LossLimits errors = ErrorsOf(rig, sequences, results);
  std::printf("loss %-13s V=%ld H=%ld, logits of %g: log_p %.1e unit %.1e\n", test.name, vocabulary,
              hidden, static_cast<double>(size), errors.log_p, errors.unit);
  INFO(test.name << ", V " << vocabulary << ", H " << hidden << ", logits of " << size);
  CHECK(errors.log_p < test.limits.log_p);
  CHECK(errors.unit < test.limits.unit);
}

TEST_CASE("Head and loss against float64") {
  if (NoDevice()) return;
  const std::vector<LossSequence> sequences = {
      {.seed = 1, .rows = 40},
      {.seed = 2, .rows = 300, .mode = Mode::kEvaluate, .every_row = false},
      {.seed = 3, .rows = 1},
      {.seed = 4, .rows = 333, .every_row = false},
      {.seed = 5, .rows = 5, .mode = Mode::kReference}};
  for (LossCase test : kLossCases) {
    // Parts of 192 words: less than one, one and a word, many and a ragged end.
    for (const auto& [vocabulary, hidden] :
         {std::pair<int64_t, int64_t>{8, 8}, {193, 64}, {1000, 64}, {2999, 48}, {4096, 256}}) {
      CheckAgainstReference(test, vocabulary, hidden, 4, sequences);
    }
    test.limits.log_p = test.long_log_p;
    CheckAgainstReference(test, 3000, 4096, 4, {{.seed = 6, .rows = 24}});
  }
}

TEST_CASE("Head and loss where targets are e^300 times less likely than other words") {
  if (NoDevice()) return;
  for (LossCase test : kLossCases) {
    // Logits of up to 500 times 2^-23, and what that is of p.
    test.limits.log_p = 1e-3;
    test.limits.unit = std::max(test.limits.unit, 1e-3);
    // Some rows of the chunk alone, and all of them.
    CheckAgainstReference(test, 2999, 64, 4,
                          {{.seed = 1, .rows = 40},
                           {.seed = 2, .rows = 3, .scale = 32},
                           {.seed = 3, .rows = 300, .mode = Mode::kEvaluate, .scale = 16}});
    CheckAgainstReference(test, 1000, 64, 128, {{.seed = 1, .rows = 300}});
  }
}

// Of the watched sequence behind others, all of it with the same bits as alone.
void CheckCompany(LinearLossRig& rig, const LossSequence& watched) {
  const LossResults alone = rig.Run({watched})[0];
  const std::vector<std::vector<LossSequence>> befores = {
      {{.seed = 10, .rows = 17}},
      {{.seed = 10, .rows = 3000}, {.seed = 11, .rows = 55, .mode = Mode::kEvaluate}},
      {{.seed = 12, .rows = 130, .scale = NAN}},
      {{.seed = 12, .rows = 9, .scale = INFINITY}, {.seed = 13, .rows = 900}},
      {{.seed = 12, .rows = 700}, {.seed = 13, .rows = 2, .scale = 64}}};
  for (size_t i = 0; i < befores.size(); ++i) {
    std::vector<LossSequence> sequences = befores[i];
    sequences.push_back(watched);
    sequences.push_back({.seed = 20, .rows = 333, .scale = i == 2 ? NAN : 1});
    const std::vector<LossResults> results = rig.Run(sequences);
    const LossResults& among = results[befores[i].size()];
    const bool log_p = SameBits(alone.log_p, among.log_p);
    const bool unit = SameBits(alone.unit, among.unit);
    if (!log_p || !unit) {
      std::printf("loss isolation, rows %ld, company %zu: log_p %d unit %d\n", watched.rows, i,
                  log_p, unit);
    }
    INFO("rows " << watched.rows << ", scale " << watched.scale << ", company " << i);
    CHECK(log_p);
    CHECK(unit);
    for (size_t j = 0; j < sequences.size(); ++j) {
      if (std::isfinite(sequences[j].scale)) continue;
      CHECK(std::ranges::none_of(results[j].log_p, [](float x) { return std::isfinite(x); }));
      CHECK(std::ranges::none_of(results[j].unit, [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST_CASE("Loss rows have the same bits alone and in any company") {
  if (NoDevice()) return;
  for (const bool own_kernel : {true, false}) {
    for (const int64_t chunk_rows : {0, 512}) {
      LinearLossRig rig(DType::kBfloat16, 32000, 512, 8192, 4, {.rows = chunk_rows},
                        {.own_kernel = own_kernel});
      for (const int64_t rows : {1, 40, 700}) CheckCompany(rig, {.seed = 3, .rows = rows});
      // Whose rows are done again.
      CheckCompany(rig, {.seed = 3, .rows = 40, .scale = 64});
    }
  }
}

TEST_CASE("Chunks of other sizes leave the same bits") {
  if (NoDevice()) return;
  const LossSequence watched = {.seed = 3, .rows = 3000, .every_row = false};
  std::vector<LossResults> results;
  for (const int64_t chunk_rows : {0, 256, 1024}) {
    LinearLossRig rig(DType::kBfloat16, 5003, 512, 4096, 4, {.rows = chunk_rows});
    results.push_back(rig.Run({watched})[0]);
    CHECK(SameBits(results[0].log_p, results.back().log_p));
    CHECK(SameBits(results[0].unit, results.back().unit));
  }
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing
