// usage: gemm_benchmark [--small|swiglu]
// Speed of the products of kernels/cuda/gemm/gemm.h beside cuBLASLt's in the same run: its first
// algorithm and the fastest of its first eight, random data, buffers that rotate so that no input
// is in the cache. Then what low-rank terms add, and SwiGLU as a product's last step. Needs a GPU.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/hopper_plan.h"
#include "tests/kernels/cuda/gemm_peer.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::kernels::cuda {
namespace {

using Launch = std::function<void(int set)>;

// One product's matrices, several times over.
class Matrices {
 public:
  Matrices(Product product, int64_t rows, int64_t outputs, int64_t inputs) : product_(product) {
    const bool forward = product == Product::kForward;
    const int64_t inner = forward ? inputs : outputs;
    const int64_t outer = forward ? outputs : inputs;
    const double bytes = 2.0 * static_cast<double>(rows * (inner + outer) + outputs * inputs);
    const int sets = std::clamp(static_cast<int>(200e6 / bytes) + 1, 2, 8);
    for (int i = 0; i < sets; ++i) {
      x_.push_back(std::make_unique<OwnedMatrix>(rows, inner));
      weight_.push_back(std::make_unique<OwnedMatrix>(outputs, inputs));
      y_.push_back(std::make_unique<OwnedMatrix>(rows, outer));
      FillRandom(x_.back()->view, 1, static_cast<uint64_t>(3 * i + 1));
      FillRandom(weight_.back()->view, 0.02f, static_cast<uint64_t>(3 * i + 2));
    }
  }
  int sets() const { return static_cast<int>(x_.size()); }
  GemmArguments Arguments(int set) const {
    const auto i = static_cast<size_t>(set);
    GemmArguments arguments;
    arguments.product = product_;
    arguments.x = x_[i]->view;
    arguments.weight = weight_[i]->view;
    arguments.y = y_[i]->view;
    return arguments;
  }

 private:
  const Product product_;
  std::vector<std::unique_ptr<OwnedMatrix>> x_, weight_, y_;
};

// Times single launches, in random order without pauses: the device's clock follows its power with
// a delay, so that what is compared must run under the same clock.
class Timer {
 public:
  // Median microseconds of `each` launches.
  static std::vector<double> Run(const std::vector<Launch>& launches, int sets, size_t each) {
    std::vector<size_t> order;
    for (size_t i = 0; i < each * launches.size(); ++i) order.push_back(i % launches.size());
    std::mt19937_64 random(1);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<cudaEvent_t> events(order.size() + 1);
    for (cudaEvent_t& event : events) LORAD_CUDA_CHECK(cudaEventCreate(&event));
    int next = 0;
    const auto launch = [&](size_t i) { launches[i](next++ % sets); };
    for (size_t i = 0; i < launches.size(); ++i) launch(i);
    for (const size_t i : order) launch(i);
    LORAD_CUDA_CHECK(cudaEventRecord(events[0]));
    for (size_t i = 0; i < order.size(); ++i) {
      launch(order[i]);
      LORAD_CUDA_CHECK(cudaEventRecord(events[i + 1]));
    }
    LORAD_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<std::vector<double>> times(launches.size());
    for (size_t i = 0; i < order.size(); ++i) {
      float ms = 0;
      LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
      times[order[i]].push_back(1000.0 * ms);
    }
    for (const cudaEvent_t event : events) LORAD_CUDA_CHECK(cudaEventDestroy(event));
    std::vector<double> medians;
    for (auto& t : times) {
      std::sort(t.begin(), t.end());
      medians.push_back(t[t.size() / 2]);
    }
    return medians;
  }
};

struct Shape {
  int64_t outputs;
  int64_t inputs;
};

const char* NameOf(Product product) {
  return product == Product::kForward ? "forward" : "gradient";
}

void BenchProduct(Product product, int64_t rows, const Shape& shape, int clusters,
                  LibraryPeer& peer) {
  const Matrices matrices(product, rows, shape.outputs, shape.inputs);
  const auto own = [&](HopperTile tile) -> Launch {
    return [&, tile](int set) {
      LaunchHopper(product, tile, PlanHopper(matrices.Arguments(set), tile), clusters, nullptr);
    };
  };
  const auto algorithms = peer.Algorithms(matrices.Arguments(0));
  std::vector<Launch> all;
  for (const auto& algorithm : algorithms) {
    all.push_back([&](int set) { peer.Run(matrices.Arguments(set), algorithm); });
  }
  const std::vector<double> tried = Timer::Run(all, matrices.sets(), 5);
  const auto fastest =
      static_cast<size_t>(std::min_element(tried.begin(), tried.end()) - tried.begin());
  const std::vector<double> t =
      Timer::Run({all[0], all[fastest], own(kHopperTiles[0]), own(kHopperTiles[1]),
                  own(kHopperTiles[2]), own(kHopperTiles[3])},
                 matrices.sets(), 25);
  const double operations =
      2e-6 * static_cast<double>(rows) * static_cast<double>(shape.outputs * shape.inputs);
  const GemmArguments& arguments = matrices.Arguments(0);
  std::printf("%-8s M %5lld O %5lld K %5lld  TFLOP/s: library %4.0f  its best %4.0f  tiles:",
              NameOf(product), static_cast<long long>(rows), static_cast<long long>(shape.outputs),
              static_cast<long long>(shape.inputs), operations / t[0], operations / t[1]);
  for (const HopperTile tile : kHopperTiles) {
    std::printf(" %s%d %4.0f", InTurns(tile) ? "turns " : "", ColumnsOf(tile),
                operations / t[2 + static_cast<size_t>(tile)]);
  }
  for (const bool turns : {false, true}) {
    const HopperTile chosen =
        ChooseTile(rows, arguments.y.columns, arguments.x.columns, clusters, turns);
    const double ours = t[2 + static_cast<size_t>(chosen)];
    std::printf("  %s (%d): over library %.3f, its best %.3f", turns ? "in turns" : "together",
                ColumnsOf(chosen), t[0] / ours, std::min(t[0], t[1]) / ours);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// `adapters` of rank 16 over equal parts of the rows, `targets` side by side.
class Terms {
 public:
  Terms(const Gemm& gemm, Product product, int64_t rows, const Shape& shape, int adapters,
        int targets, bool masked) {
    const bool forward = product == Product::kForward;
    constexpr int64_t kRank = 16;
    coefficients_ = std::make_unique<OwnedMatrix>(rows, kRank * adapters * targets);
    FillConstant(coefficients_->view, 0);
    const int64_t outer = forward ? shape.outputs : shape.inputs;
    const int64_t words = (outer + kMaskColumns - 1) / kMaskColumns * (kMaskColumns / 32);
    std::vector<LowRankTerm> terms;
    for (int target = 0; target < targets; ++target) {
      DropMask mask;
      if (masked) {
        masks_.push_back(std::make_unique<DeviceMemory>(rows * words * 4));
        auto* bits = static_cast<uint32_t*>(masks_.back()->data());
        FillRandomBits(bits, rows * words, 7);
        mask = {.words = bits, .row_words = words, .scale = 1.1f};
      }
      for (int adapter = 0; adapter < adapters; ++adapter) {
        const int64_t outputs = shape.outputs / targets;
        const int64_t column = kRank * (target * adapters + adapter);
        factors_.push_back(std::make_unique<OwnedMatrix>(forward ? outputs : kRank,
                                                         forward ? kRank : shape.inputs));
        FillRandom(factors_.back()->view, 0.1f, 5);
        FillRandom(coefficients_->view.Rows(rows / adapters * adapter, rows / adapters)
                       .Columns(column, kRank),
                   1, 9);
        terms.push_back(gemm.MakeTerm(product, factors_.back()->view, column,
                                      forward ? outputs * target : 0, mask));
      }
    }
    std::vector<int32_t> first = {0};
    std::vector<int32_t> list;
    for (int64_t row = 0; row < rows; row += kTermTileRows) {
      const int64_t per_adapter = rows / adapters;
      const int64_t last = std::min(rows, row + kTermTileRows) - 1;
      for (int64_t adapter = row / per_adapter; adapter <= last / per_adapter; ++adapter) {
        for (int target = 0; target < targets; ++target) {
          list.push_back(static_cast<int32_t>(target * adapters + adapter));
        }
      }
      first.push_back(static_cast<int32_t>(list.size()));
    }
    terms_ = std::make_unique<DeviceArray<LowRankTerm>>(terms);
    first_ = std::make_unique<DeviceArray<int32_t>>(first);
    list_ = std::make_unique<DeviceArray<int32_t>>(list);
    count_ = static_cast<int32_t>(terms.size());
  }
  void AddTo(GemmArguments& arguments) const {
    arguments.coefficients = coefficients_->view;
    arguments.terms = {
        .terms = terms_->data(), .first = first_->data(), .list = list_->data(), .count = count_};
  }

 private:
  std::unique_ptr<OwnedMatrix> coefficients_;
  std::vector<std::unique_ptr<OwnedMatrix>> factors_;
  std::vector<std::unique_ptr<DeviceMemory>> masks_;
  std::unique_ptr<DeviceArray<LowRankTerm>> terms_;
  std::unique_ptr<DeviceArray<int32_t>> first_, list_;
  int32_t count_ = 0;
};

void BenchTerms(const Gemm& gemm, Product product, int64_t rows, const Shape& shape, int targets,
                int clusters) {
  const Matrices matrices(product, rows, shape.outputs, shape.inputs);
  std::vector<std::unique_ptr<Terms>> cases;
  for (const int adapters : {1, 4, 16, 64}) {
    cases.push_back(std::make_unique<Terms>(gemm, product, rows, shape, adapters, targets, false));
  }
  if (product == Product::kInputGradient) {
    cases.push_back(std::make_unique<Terms>(gemm, product, rows, shape, 4, targets, true));
  }
  OwnedMatrix residual(rows, matrices.Arguments(0).y.columns);
  FillRandom(residual.view, 1, 11);
  std::vector<Launch> launches;
  const auto run = [&](const Terms* terms, bool with_residual) {
    launches.push_back([&, terms, with_residual](int set) {
      GemmArguments arguments = matrices.Arguments(set);
      if (terms != nullptr) terms->AddTo(arguments);
      if (with_residual) arguments.residual = residual.view;
      const HopperTile tile = ChooseTile(rows, arguments.y.columns, arguments.x.columns, clusters,
                                         product == Product::kForward);
      LaunchHopper(product, tile, PlanHopper(arguments, tile), clusters, nullptr);
    });
  };
  run(nullptr, false);
  run(nullptr, true);
  for (const auto& terms : cases) run(terms.get(), false);
  const std::vector<double> t = Timer::Run(launches, matrices.sets(), 25);
  std::printf(
      "%-8s M %5lld O %5lld K %5lld targets %d  plain %7.1f us  residual %.3f  "
      "adapters 1: %.3f  4: %.3f  16: %.3f  64: %.3f",
      NameOf(product), static_cast<long long>(rows), static_cast<long long>(shape.outputs),
      static_cast<long long>(shape.inputs), targets, t[0], t[1] / t[0], t[2] / t[0], t[3] / t[0],
      t[4] / t[0], t[5] / t[0]);
  if (t.size() > 6) std::printf("  4 with dropout: %.3f", t[6] / t[0]);
  std::printf("\n");
  std::fflush(stdout);
}

// Products of a model's feed-forward with SwiGLU, or its gradient, as their last step, beside the
// same products alone, also in turns.
void BenchSwiGlu(int64_t rows, int64_t hidden, int64_t size, int clusters) {
  constexpr size_t kLaunches = 600;  // of each: seconds at the power limit
  const Matrices gate_up(Product::kForward, rows, 2 * size, hidden);
  const Matrices down(Product::kInputGradient, rows, hidden, size);
  const OwnedMatrix gated(rows, size), old(rows, 2 * size), gradient(rows, 2 * size);
  FillRandom(old.view, 2, 11);
  const auto run = [&](const GemmArguments& arguments, HopperTile tile) {
    LaunchHopper(arguments.product, tile, PlanHopper(arguments, tile), clusters, nullptr);
  };
  const std::vector<double> forward =
      Timer::Run({[&](int set) { run(gate_up.Arguments(set), HopperTile::kInTurns192); },
                  [&](int set) {
                    GemmArguments arguments = gate_up.Arguments(set);
                    arguments.gated = gated.view;
                    run(arguments, HopperTile::kSwiGlu192);
                  }},
                 gate_up.sets(), kLaunches);
  const std::vector<double> backward =
      Timer::Run({[&](int set) { run(down.Arguments(set), HopperTile::kInTurns192); },
                  [&](int set) {
                    GemmArguments arguments = down.Arguments(set);
                    arguments.gate_up = old.view;
                    arguments.y = gradient.view;
                    run(arguments, HopperTile::kSwiGluBackward192);
                  }},
                 down.sets(), kLaunches);
  std::printf(
      "M %5lld hidden %5lld F %5lld, us  gate,up %7.1f  with SwiGLU %7.1f (%.3f)  dx of down "
      "%7.1f  with SwiGLU's gradient %7.1f (%.3f)\n",
      static_cast<long long>(rows), static_cast<long long>(hidden), static_cast<long long>(size),
      forward[0], forward[1], forward[1] / forward[0], backward[0], backward[1],
      backward[1] / backward[0]);
  std::fflush(stdout);
}

void BenchAllSwiGlu(int clusters) {
  BenchSwiGlu(4096, 4096, 14336, clusters);  // Llama-3.1-8B
  BenchSwiGlu(8192, 2048, 11008, clusters);  // Qwen2.5-3B
  BenchSwiGlu(8192, 2048, 5632, clusters);   // TinyLlama
}

int Main(std::string_view part) {
  cudaDeviceProp device;
  LORAD_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  const int clusters = device.multiProcessorCount / 2;
  std::printf("%s, cuBLASLt %zu\n", device.name, cublasLtGetVersion());
  if (part == "swiglu") {
    BenchAllSwiGlu(clusters);
    return 0;
  }
  LibraryPeer peer;
  const Gemm gemm(GemmOptions{});
  constexpr Shape kShapes[] = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {28672, 4096},
                               {6144, 4096}, {2048, 2048},  {2560, 2048},  {11264, 2048},
                               {2048, 5632}, {22016, 2048}, {2048, 11008}};
  for (const int64_t rows : {8192, 4096}) {
    for (const Shape& shape : kShapes) {
      for (const Product product : {Product::kForward, Product::kInputGradient}) {
        BenchProduct(product, rows, shape, clusters, peer);
      }
      if (part == "--small") return 0;
    }
  }
  for (const Shape& shape : {kShapes[0], kShapes[1], kShapes[2]}) {
    for (const Product product : {Product::kForward, Product::kInputGradient}) {
      BenchTerms(gemm, product, 8192, shape, 1, clusters);
    }
  }
  for (const Product product : {Product::kForward, Product::kInputGradient}) {
    BenchTerms(gemm, product, 8192, {6144, 4096}, 3, clusters);
  }
  BenchAllSwiGlu(clusters);
  return 0;
}

}  // namespace
}  // namespace lorad::kernels::cuda

int main(int argc, char** argv) { return lorad::kernels::cuda::Main(argc > 1 ? argv[1] : ""); }
