// usage: transfer_benchmark
// A product beside a tensor that is on its way to another stage (kernels/device_copies.h): to the
// host's pinned memory, from it, and into another GPU's memory where there are two. Beside copies
// that end before the product does it says so, and gives no figure. The bar is 1.03 times the time
// alone. Needs a GPU.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/gemm/gemm.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int64_t kRows = 8192;
constexpr int64_t kHidden = 5120;  // of Qwen2.5-14B, whose tensors cross
constexpr int64_t kTensorBytes = kRows * kHidden * 2;
constexpr int kRounds = 25;
constexpr int kProducts = 8;  // of a round
constexpr double kBar = 1.03;

struct Shape {
  const char* name;
  Product product;
  int64_t outputs, inputs;
};
constexpr Shape kShapes[] = {
    {"attention's output, forward", Product::kForward, kHidden, kHidden},
    {"gate and up, forward", Product::kForward, 2 * 13824, kHidden},
    {"down, gradient", Product::kInputGradient, kHidden, 13824},
};

// Where a tensor goes from and to.
struct Way {
  std::string name;
  const void* from;
  void* to;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Milliseconds of one of kProducts products on the default stream, from event to event.
class Products {
 public:
  Products(Gemm& gemm, const Shape& shape)
      : gemm_(gemm),
        forward_(shape.product == Product::kForward),
        x_(kRows, forward_ ? shape.inputs : shape.outputs, 1.0f),
        weight_(shape.outputs, shape.inputs, 0.02f),
        y_(kRows, forward_ ? shape.outputs : shape.inputs),
        workspace_(Gemm::WorkspaceBytes()) {
    arguments_.product = shape.product;
    arguments_.x = x_.view;
    arguments_.weight = weight_.view;
    arguments_.y = y_.view;
    LORAD_CUDA_CHECK(cudaEventCreate(&begin_));
    LORAD_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Products() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  double Ms() {
    LORAD_CUDA_CHECK(cudaEventRecord(begin_));
    for (int i = 0; i < kProducts; ++i) gemm_.Run(arguments_, workspace_.data(), nullptr);
    LORAD_CUDA_CHECK(cudaEventRecord(end_));
    LORAD_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms / kProducts;
  }

 private:
  Gemm& gemm_;
  const bool forward_;
  const OwnedMatrix x_, weight_, y_;
  const DeviceMemory workspace_;
  GemmArguments arguments_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Gigabytes a second of the way with nothing beside it, once it is warm.
double Speed(CopyLane& lane, const Way& way) {
  constexpr int kCopies = 16;
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) LORAD_CUDA_CHECK(cudaEventCreate(&event));
  auto* queue = static_cast<cudaStream_t>(lane.Queue());
  lane.Copy(way.from, way.to, kTensorBytes);
  LORAD_CUDA_CHECK(cudaEventRecord(events[0], queue));
  for (int i = 0; i < kCopies; ++i) lane.Copy(way.from, way.to, kTensorBytes);
  LORAD_CUDA_CHECK(cudaEventRecord(events[1], queue));
  lane.Wait();
  float ms = 0;
  LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, events[0], events[1]));
  for (const cudaEvent_t event : events) LORAD_CUDA_CHECK(cudaEventDestroy(event));
  return kCopies * static_cast<double>(kTensorBytes) / ms * 1e-6;
}

void Bench(Gemm& gemm, CopyLane& lane, const Way& way) {
  const double speed = Speed(lane, way);
  for (const Shape& shape : kShapes) {
    Products products(gemm, shape);
    const double expected_ms = kProducts * products.Ms();
    // Twice as many as end meanwhile: the products may slow the copies down, and not up.
    const int copies =
        2 + static_cast<int>(2 * expected_ms * 1e6 * speed / static_cast<double>(kTensorBytes));
    std::vector<double> alone, beside;
    int pending = 0;
    for (int round = 0; round < 2 * kRounds; ++round) {
      // In pairs that begin with one and the other in turn, each after products like it: a card at
      // its power limit is slower after work than after a rest.
      const bool copying = (round % 4 == 1 || round % 4 == 2);
      products.Ms();
      for (int i = 0; copying && i < copies; ++i) lane.Copy(way.from, way.to, kTensorBytes);
      (copying ? beside : alone).push_back(products.Ms());
      pending += copying && !lane.Done() ? 1 : 0;
      lane.Wait();
    }
    std::printf("%-28s %-28s %4.0f GB/s  alone %7.3f ms", way.name.c_str(), shape.name, speed,
                Median(alone));
    if (pending < kRounds) {
      std::printf("  the copies ended first in %d of %d rounds\n", kRounds - pending, kRounds);
      continue;
    }
    const double ratio = Median(beside) / Median(alone);
    std::printf("  beside %7.3f ms  %.3f times (bar %.2f%s)\n", Median(beside), ratio, kBar,
                ratio <= kBar ? "" : ": missed");
    std::fflush(stdout);
  }
}

int Main() {
  const auto facts = ProbeCudaDevice(0);
  if (!facts.ok()) {
    std::printf("skipped: %s\n", std::string(facts.status().message()).c_str());
    return 0;
  }
  const auto backend = *MakeCudaBackend(0);
  const auto copies = backend->MakeCopies();
  const auto lane = copies->MakeLane();
  const auto host = copies->MakeHostArena(2 * kTensorBytes);
  if (!host.ok()) {
    std::fprintf(stderr, "transfer_benchmark: %s\n", host.status().ToString().c_str());
    return 1;
  }
  const OwnedMatrix out(kRows, kHidden, 1.0f), in(kRows, kHidden);
  void* pinned = (*host)->Allocate<char>(kTensorBytes);
  Gemm gemm{GemmOptions()};
  Bench(gemm, *lane, {"to the host", out.view.data, pinned});
  Bench(gemm, *lane, {"from the host", pinned, in.view.data});
  if (!ProbeCudaDevice(1).ok()) {
    std::printf("into another GPU: skipped, there is one\n");
    return 0;
  }
  const auto other = *MakeCudaBackend(1);
  const auto others = other->MakeCopies();
  const auto shared = others->Share(kTensorBytes);
  auto opened = shared.ok() ? copies->Open((*shared)->name()) : shared.status();
  LORAD_CUDA_CHECK(cudaSetDevice(0));
  if (!opened.ok()) {
    std::printf("into another GPU: skipped, %s\n", opened.status().ToString().c_str());
    return 0;
  }
  Bench(gemm, *lane, {"into another GPU", out.view.data, (*opened)->address()});
  return 0;
}

}  // namespace
}  // namespace lorad::kernels::cuda

int main() { return lorad::kernels::cuda::Main(); }
