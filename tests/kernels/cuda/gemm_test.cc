// Products on the GPU against a float64 reference on random ragged microbatches, with poisoned
// outputs inside sentinels; equal rows give equal bits: alone, among others, by every tile shape,
// at every repeat. `--rng-seed N` draws other microbatches. Needs a GPU.
#include "kernels/cuda/gemm/gemm.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/gemm/hopper_plan.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/gemm_problem.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::kernels::cuda {
namespace {

struct Shape {
  const char* group;
  int64_t outputs;
  int64_t inputs;
};
// The linear groups of the models that we measure, and one that fits no tile.
struct Model {
  const char* name;
  std::vector<Shape> shapes;
};
const Model kSmolLm2 = {
    "SmolLM2-135M",
    {{"q,k,v", 960, 576}, {"o", 576, 576}, {"gate,up", 3072, 576}, {"down", 576, 1536}}};
const Model kTinyLlama = {
    "TinyLlama",
    {{"q,k,v", 2560, 2048}, {"o", 2048, 2048}, {"gate,up", 11264, 2048}, {"down", 2048, 5632}}};
const Model kQwen3B = {"Qwen2.5-3B", {{"gate,up", 22016, 2048}, {"down", 2048, 11008}}};
const Model kLlama8B = {
    "Llama-3.1-8B",
    {{"q,k,v", 6144, 4096}, {"o", 4096, 4096}, {"gate,up", 28672, 4096}, {"down", 4096, 14336}}};
const Model kOdd = {"odd", {{"of no tile", 200, 328}}};
const Model kFew = {"few", {kLlama8B.shapes[2], kLlama8B.shapes[3], kOdd.shapes[0]}};

struct Verdict {
  int cases = 0;
  int64_t wrong = 0;  // samples
  int64_t samples = 0;
  int64_t broken = 0;    // sentinels, or elements never written
  int64_t alone = 0;     // elements that differ alone from among others
  int64_t together = 0;  // between tile shapes
  int64_t turns = 0;     // of those in turns
  double worst = 0;      // error over tolerance
  double error = 0;      // sums of squares
  double norm = 0;
};

// Rounding to the type of y (the library's before the terms too, where the sum may be larger), and
// sums in fp32 of exact products (relative to the sum of their magnitudes: the matrix units
// truncate).
double Tolerance(const Expected& expected, DType dtype, bool two_roundings) {
  const double rounding = dtype == DType::kBfloat16 ? 0x1p-8 : 0x1p-22;
  return 1e-6 + (two_roundings ? 2 : 1) * rounding * std::fabs(expected.value) +
         (two_roundings ? rounding * 0.3 : 0) * expected.magnitude + 4e-6 * expected.magnitude;
}

class Tester {
 public:
  explicit Tester(const GemmOptions& options)
      : own_(options.own_kernel), gemm_(options), workspace_(Gemm::WorkspaceBytes()) {}

  Verdict RunShape(const Shape& shape, Product product, DType dtype, uint64_t seed) {
    Verdict verdict;
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    const int64_t rows[] = {1, draw(2, 127), draw(128, 512), draw(513, 2048), draw(2049, 8200)};
    for (const int64_t m : rows) {
      ProblemOptions options;
      options.product = product;
      options.dtype = dtype;
      options.rows = m;
      options.outputs = shape.outputs;
      options.inputs = shape.inputs;
      options.longest_segment = draw(0, 1) == 0 ? 64 : 1500;
      options.terms = draw(0, 4) > 0;
      RunCase(options, random(), verdict);
    }
    return verdict;
  }

 private:
  void RunCase(const ProblemOptions& options, uint64_t seed, Verdict& verdict) {
    Problem problem(gemm_, options, seed);
    gemm_.Run(problem.Prepare(), workspace_.data(), nullptr);
    LORAD_CUDA_CHECK(cudaDeviceSynchronize());
    ++verdict.cases;
    verdict.broken += problem.y().CountBroken();
    CheckSamples(problem, options, verdict);
    if (own_) {
      CheckVariants(problem, options, verdict);
      for (int i = 0; i < 2; ++i) {
        const size_t index = (seed >> (8 * i)) % problem.segments().size();
        if (!problem.segments()[index].finite) continue;
        verdict.alone += problem.CountDifferentAlone(gemm_, workspace_.data(), index);
      }
    }
  }

  void CheckSamples(Problem& problem, const ProblemOptions& options, Verdict& verdict) {
    const std::vector<Sample> samples = problem.Samples(300);
    if (samples.empty()) return;
    Fenced result(options.rows, problem.y().view().columns, options.dtype);
    CopyMatrix(problem.y().view(), result.view());
    GemmArguments arguments = problem.Prepare();
    arguments.y = result.view();
    for (const Expected& expected : Compare(arguments, problem.residual(), samples)) {
      const double error = std::fabs(expected.got - expected.value);
      const double over = error / Tolerance(expected, options.dtype, !own_);
      ++verdict.samples;
      if (!(over <= 1)) ++verdict.wrong;
      verdict.worst = std::isnan(over) ? INFINITY : std::max(verdict.worst, over);
      verdict.error += error * error;
      verdict.norm += expected.value * expected.value;
    }
    CopyMatrix(result.view(), problem.y().view());
  }

  // y again by every tile shape.
  void CheckVariants(Problem& problem, const ProblemOptions& options, Verdict& verdict) {
    Fenced first(options.rows, problem.y().view().columns, options.dtype);
    CopyMatrix(problem.y().view(), first.view());
    for (int i = 0; i < 5; ++i) {
      const GemmArguments arguments = problem.Prepare();
      const HopperTile tile = kHopperTiles[i % 4];
      // The last time on a part of the device, so that tiles are shared out otherwise.
      LaunchHopper(options.product, tile, PlanHopper(arguments, tile), i < 4 ? 66 : 7, nullptr);
      const int64_t different = CountDifferent(first.view(), problem.y().view());
      (InTurns(tile) ? verdict.turns : verdict.together) += different;
      verdict.broken += problem.y().CountBroken();
    }
    LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  }

  const bool own_;
  Gemm gemm_;
  DeviceMemory workspace_;
};

void CheckModel(const Model& model, const GemmOptions& options, DType dtype) {
  if (testing::DeviceCount() == 0) {
    WARN("skipped: no GPU");
    return;
  }
  Tester tester(options);
  uint64_t seed = 1 + Catch::rngSeed();
  for (const Shape& shape : model.shapes) {
    for (const Product product : {Product::kForward, Product::kInputGradient}) {
      const bool forward = product == Product::kForward;
      const Verdict v = tester.RunShape(shape, product, dtype, seed++);
      std::printf("%-14s %-10s %-8s cases %2d  samples %5lld  worst %.2f  rel.error %.1e\n",
                  model.name, shape.group, forward ? "forward" : "gradient", v.cases,
                  static_cast<long long>(v.samples), v.worst, std::sqrt(v.error / v.norm));
      std::fflush(stdout);
      INFO(model.name << " " << shape.group << (forward ? ", forward" : ", gradient"));
      CHECK(v.samples > 0);
      CHECK(v.wrong == 0);
      CHECK(v.broken == 0);
      CHECK(v.alone == 0);
      CHECK(v.together == 0);
      CHECK(v.turns == 0);
    }
  }
}

constexpr GemmOptions kOwn = {.own_kernel = true};
constexpr GemmOptions kLibrary = {.own_kernel = false};

TEST_CASE("Products of a shape that fits no tile") { CheckModel(kOdd, kOwn, DType::kBfloat16); }
TEST_CASE("Products of SmolLM2-135M") { CheckModel(kSmolLm2, kOwn, DType::kBfloat16); }
TEST_CASE("Products of TinyLlama-1.1B") { CheckModel(kTinyLlama, kOwn, DType::kBfloat16); }
TEST_CASE("Products of Qwen2.5-3B") { CheckModel(kQwen3B, kOwn, DType::kBfloat16); }
TEST_CASE("Products of Llama-3.1-8B") { CheckModel(kLlama8B, kOwn, DType::kBfloat16); }
TEST_CASE("Products by the library") { CheckModel(kFew, kLibrary, DType::kBfloat16); }
TEST_CASE("Products in float32") { CheckModel(kFew, kLibrary, DType::kFloat32); }

}  // namespace
}  // namespace lorad::kernels::cuda
