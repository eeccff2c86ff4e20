#include "tests/bench/gpu_sustained.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/gemm/gemm.h"
#include "tests/bench/gpu_power.h"
#include "tests/kernels/cuda/gemm_peer.h"
#include "tests/kernels/cuda/gemm_reference.h"
#include "tests/kernels/cuda/matrix_units.h"

namespace lorad::bench {
namespace {

using namespace kernels;
using cuda::GemmArguments;
using cuda::OwnedMatrix;
using cuda::Product;

constexpr float kWeightSize = 0.02f;

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How steps are enqueued and waited for; two are under way at a time, told apart by their mark.
struct Steps {
  std::function<void()> enqueue;
  std::function<void(int mark)> mark;
  std::function<void(int mark)> wait;
};

// Milliseconds a step in the second half of `seconds`.
double Sustain(const Steps& steps, double seconds, PowerMeter& meter) {
  const double begin = SecondsNow();
  double half = 0;
  int64_t before_half = 0;
  for (int64_t done = 0;; ++done) {
    steps.enqueue();
    steps.mark(static_cast<int>(done % 2));
    if (done > 0) steps.wait(static_cast<int>((done - 1) % 2));
    const double now = SecondsNow();
    if (half == 0 && now - begin >= seconds / 2) {
      half = now;
      before_half = done;
      meter.Restart();
    } else if (half > 0 && now - begin >= seconds) {
      steps.wait(static_cast<int>(done % 2));
      return 1e3 * (now - half) / static_cast<double>(done - before_half);
    }
  }
}

void Print(const char* name, double ms, double flops, int64_t tokens, const PowerReading& power) {
  std::printf("%-28s %9.2f ms a step %9.0f tok/s", name, ms,
              1e3 * static_cast<double>(tokens) / ms);
  if (flops > 0) std::printf("  %4.0f TFLOP/s", flops / ms * 1e-9);
  if (power.samples > 0) std::printf("  %4.0f W  %5.0f MHz", power.watts, power.sm_mhz);
  std::printf("\n");
  std::fflush(stdout);
}

// Forward and input gradient of one weight, dy being what forward left in y.
class FrozenPair {
 public:
  FrozenPair(cuda::LibraryPeer& peer, int64_t tokens, const FrozenShape& shape)
      : peer_(peer),
        x_(tokens, shape.inputs, 1),
        dx_(tokens, shape.inputs, 1),
        y_(tokens, shape.outputs, 1),
        weight_(shape.outputs, shape.inputs, kWeightSize),
        forward_{.product = Product::kForward, .x = x_.view, .weight = weight_.view, .y = y_.view},
        backward_{.product = Product::kInputGradient,
                  .x = y_.view,
                  .weight = weight_.view,
                  .y = dx_.view},
        forward_algorithm_(Fastest(forward_)),
        backward_algorithm_(Fastest(backward_)),
        flops_(4.0 * static_cast<double>(tokens * shape.outputs * shape.inputs)) {}

  void Forward() { peer_.Run(forward_, forward_algorithm_); }
  void Backward() { peer_.Run(backward_, backward_algorithm_); }
  const GemmArguments& forward() const { return forward_; }
  const GemmArguments& backward() const { return backward_; }
  double flops() const { return flops_; }

 private:
  cublasLtMatmulAlgo_t Fastest(const GemmArguments& arguments) {
    constexpr int kRepeats = 5;
    cublasLtMatmulAlgo_t fastest = {};
    double fastest_seconds = 0;
    for (const cublasLtMatmulAlgo_t& algorithm : peer_.Algorithms(arguments)) {
      peer_.Run(arguments, algorithm);
      LORAD_CUDA_CHECK(cudaDeviceSynchronize());
      const double begin = SecondsNow();
      for (int i = 0; i < kRepeats; ++i) peer_.Run(arguments, algorithm);
      LORAD_CUDA_CHECK(cudaDeviceSynchronize());
      const double seconds = SecondsNow() - begin;
      if (fastest_seconds > 0 && seconds >= fastest_seconds) continue;
      fastest = algorithm;
      fastest_seconds = seconds;
    }
    return fastest;
  }

  cuda::LibraryPeer& peer_;
  const OwnedMatrix x_, dx_, y_, weight_;
  const GemmArguments forward_, backward_;
  const cublasLtMatmulAlgo_t forward_algorithm_, backward_algorithm_;
  const double flops_;
};

// Steps of kernels on the default stream.
class StreamSteps {
 public:
  StreamSteps() {
    for (cudaEvent_t& event : events_) {
      LORAD_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
  }
  ~StreamSteps() {
    for (const cudaEvent_t event : events_) LORAD_CUDA_CHECK(cudaEventDestroy(event));
  }
  StreamSteps(const StreamSteps&) = delete;
  StreamSteps& operator=(const StreamSteps&) = delete;

  Steps Of(std::function<void()> enqueue) const {
    return {.enqueue = std::move(enqueue),
            .mark = [this](int mark) { LORAD_CUDA_CHECK(cudaEventRecord(events_[mark])); },
            .wait = [this](int mark) { LORAD_CUDA_CHECK(cudaEventSynchronize(events_[mark])); }};
  }

 private:
  cudaEvent_t events_[2];
};

Steps StepsOf(Backend& backend, std::function<void()> enqueue) {
  return {.enqueue = std::move(enqueue),
          .mark = [&](int mark) { backend.Mark(mark); },
          .wait = [&](int mark) { backend.WaitFor(mark); }};
}

void SustainProducts(const FrozenProducts& products, double seconds, PowerMeter& meter) {
  cuda::LibraryPeer peer;
  std::vector<std::unique_ptr<FrozenPair>> layer;
  for (const FrozenShape& shape : products.of_layer) {
    layer.push_back(std::make_unique<FrozenPair>(peer, products.tokens, shape));
  }
  FrozenPair head(peer, products.tokens, products.head);
  double flops = head.flops();
  for (const auto& pair : layer) flops += static_cast<double>(products.layers) * pair->flops();
  const StreamSteps stream;
  const Steps steps = stream.Of([&] {
    for (int64_t i = 0; i < products.layers; ++i) {
      for (const auto& pair : layer) pair->Forward();
    }
    head.Forward();
    head.Backward();
    for (int64_t i = 0; i < products.layers; ++i) {
      for (size_t k = layer.size(); k-- > 0;) layer[k]->Backward();
    }
  });
  const double ms = Sustain(steps, seconds, meter);
  Print("frozen products, cuBLASLt", ms, flops, products.tokens, meter.Read());
}

// Calls that one mark stands for: few enough that two such groups are short beside a measurement.
constexpr int kGroup = 16;

struct Spent {
  double ms = 0;      // a step
  double joules = 0;  // a step
};

Spent PrintEnergy(const std::string& name, int64_t times, double group_ms,
                  const PowerReading& power) {
  const double ms = group_ms / kGroup;
  const double millijoules = ms * power.watts;
  const Spent spent = {ms * static_cast<double>(times),
                       1e-3 * millijoules * static_cast<double>(times)};
  std::printf("%-36s %6ld %9.4f %7.0f %7.0f %9.2f %9.2f %9.2f\n", name.c_str(),
              static_cast<long>(times), ms, power.watts, power.sm_mhz, millijoules, spent.ms,
              spent.joules);
  std::fflush(stdout);
  return spent;
}

std::function<void()> GroupOf(std::function<void()> run) {
  return [run = std::move(run)] {
    for (int i = 0; i < kGroup; ++i) run();
  };
}

// One shape's products by the library and by our own kernel.
void SpendOnProducts(const FrozenShape& shape, int64_t tokens, int64_t times, double seconds,
                     PowerMeter& meter) {
  cuda::LibraryPeer peer;
  cuda::Gemm own({});
  const cuda::DeviceMemory workspace(cuda::Gemm::WorkspaceBytes());
  FrozenPair pair(peer, tokens, shape);
  const StreamSteps stream;
  const auto spend = [&](const char* who, std::function<void()> run) {
    const std::string name =
        std::to_string(shape.inputs) + " x " + std::to_string(shape.outputs) + " " + who;
    const double ms = Sustain(stream.Of(GroupOf(std::move(run))), seconds, meter);
    PrintEnergy(name, times, ms, meter.Read());
  };
  spend("forward, cuBLASLt", [&] { pair.Forward(); });
  spend("forward, ours", [&] { own.Run(pair.forward(), workspace.data(), nullptr); });
  spend("dx, cuBLASLt", [&] { pair.Backward(); });
  spend("dx, ours", [&] { own.Run(pair.backward(), workspace.data(), nullptr); });
}

// As many operations as all the frozen products of a step, on numbers like theirs and on zeros.
void SpendOnMatrixUnits(const FrozenProducts& products, double seconds, PowerMeter& meter) {
  if (!cuda::HasMatrixUnits()) return;
  constexpr int64_t kParts = 64;  // of a step, a launch each
  double weights = static_cast<double>(products.head.outputs * products.head.inputs);
  for (const FrozenShape& shape : products.of_layer) {
    weights += static_cast<double>(products.layers * shape.outputs * shape.inputs);
  }
  const double operations = 4 * static_cast<double>(products.tokens) * weights / kParts;
  const OwnedMatrix operands(cuda::kMatrixUnitsBytes / 128, 64, 1);
  const cuda::DeviceMemory sink(sizeof(float));
  const StreamSteps stream;
  const auto spend = [&](const char* name) {
    const auto run = [&] {
      cuda::RunMatrixUnits(operands.view.data, operations, static_cast<float*>(sink.data()),
                           nullptr);
    };
    PrintEnergy(name, kParts, Sustain(stream.Of(GroupOf(run)), seconds, meter), meter.Read());
  };
  spend("matrix units alone, as many FLOPs");
  LORAD_CUDA_CHECK(cudaMemset(operands.view.data, 0, cuda::kMatrixUnitsBytes));
  spend("the same on zeros");
}

}  // namespace

void RunSustained(Backend& backend, const std::vector<std::function<void()>>& step,
                  const FrozenProducts& products, double seconds) {
  PowerMeter meter;
  SustainProducts(products, seconds, meter);
  const Steps steps = StepsOf(backend, [&] {
    for (const std::function<void()>& operation : step) operation();
  });
  const double ms = Sustain(steps, seconds, meter);
  Print("whole step", ms, 0, products.tokens, meter.Read());
}

void RunEnergy(Backend& backend, const std::vector<SustainedOperation>& operations,
               const FrozenProducts& products, double seconds) {
  PowerMeter meter;
  // The counter moves some ten times a second, on some cards half a second late: a shorter
  // measurement would know the power of the one before.
  seconds = std::max(seconds, 2.0);
  std::printf("%-36s %6s %9s %7s %7s %9s %9s %9s\n", "alone", "a step", "ms", "W", "MHz", "mJ",
              "ms a step", "J a step");
  Spent all;
  for (const SustainedOperation& operation : operations) {
    const double ms = Sustain(StepsOf(backend, GroupOf(operation.run)), seconds, meter);
    const Spent spent = PrintEnergy(operation.name, operation.times, ms, meter.Read());
    all.ms += spent.ms;
    all.joules += spent.joules;
  }
  std::printf("%-36s %60.2f %9.2f\n", "sum", all.ms, all.joules);
  for (const FrozenShape& shape : products.of_layer) {
    SpendOnProducts(shape, products.tokens, products.layers, seconds, meter);
  }
  SpendOnProducts(products.head, products.tokens, 1, seconds, meter);
  SpendOnMatrixUnits(products, seconds, meter);
}

}  // namespace lorad::bench
