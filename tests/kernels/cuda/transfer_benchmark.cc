// usage: transfer_benchmark
// A product beside a tensor that is on its way to another stage (kernels/device_copies.h): to the
// host's pinned memory, from it, and into another GPU's memory where there are two. The bar is 1.03
// times the time alone. Needs a GPU.
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
constexpr int kBlocks = 60;  // of products, one behind the other; each second one has copies beside
constexpr int kWarmUp = 10;  // of those: until the card is as warm as it gets
constexpr int kProducts = 16;      // of a block
constexpr double kOfABlock = 0.9;  // that copies take, for which there is time beside it
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

// The same product over and over, on the default stream.
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
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void EnqueueBlock() {
    for (int i = 0; i < kProducts; ++i) gemm_.Run(arguments_, workspace_.data(), nullptr);
  }

 private:
  Gemm& gemm_;
  const bool forward_;
  const OwnedMatrix x_, weight_, y_;
  const DeviceMemory workspace_;
  GemmArguments arguments_;
};

// Moments on a stream.
class Events {
 public:
  explicit Events(int count) : events_(count) {
    for (cudaEvent_t& event : events_) LORAD_CUDA_CHECK(cudaEventCreate(&event));
  }
  ~Events() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  cudaEvent_t operator[](int number) const { return events_[number]; }
  double Ms(int from, int to) const {
    float ms = 0;
    LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[from], events_[to]));
    return ms;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

// Gigabytes a second of the way with nothing beside it, once it is warm.
double Speed(CopyLane& lane, const Way& way) {
  constexpr int kCopies = 16;
  const Events events(2);
  auto* queue = static_cast<cudaStream_t>(lane.Queue());
  lane.Copy(way.from, way.to, kTensorBytes);
  LORAD_CUDA_CHECK(cudaEventRecord(events[0], queue));
  for (int i = 0; i < kCopies; ++i) lane.Copy(way.from, way.to, kTensorBytes);
  LORAD_CUDA_CHECK(cudaEventRecord(events[1], queue));
  lane.Wait();
  return kCopies * static_cast<double>(kTensorBytes) / events.Ms(0, 1) * 1e-6;
}

// Products without a rest, as in training: a card at its power limit would be faster behind one.
// Copies begin with each second block and end before it does.
void Bench(Gemm& gemm, CopyLane& lane, const Way& way) {
  const double speed = Speed(lane, way);
  for (const Shape& shape : kShapes) {
    Products products(gemm, shape);
    const Events first(2);
    products.EnqueueBlock();
    LORAD_CUDA_CHECK(cudaEventRecord(first[0]));
    products.EnqueueBlock();
    LORAD_CUDA_CHECK(cudaEventRecord(first[1]));
    LORAD_CUDA_CHECK(cudaEventSynchronize(first[1]));
    const auto copies = static_cast<int>(kOfABlock * first.Ms(0, 1) * 1e6 * speed /
                                         static_cast<double>(kTensorBytes));

    auto* queue = static_cast<cudaStream_t>(lane.Queue());
    const Events ends(kBlocks + 1), copied(2 * kBlocks);
    LORAD_CUDA_CHECK(cudaEventRecord(ends[0]));
    for (int block = 0; block < kBlocks; ++block) {
      if (block % 2 == 1) {
        LORAD_CUDA_CHECK(cudaStreamWaitEvent(queue, ends[block]));
        LORAD_CUDA_CHECK(cudaEventRecord(copied[2 * block], queue));
        for (int i = 0; i < copies; ++i) lane.Copy(way.from, way.to, kTensorBytes);
        LORAD_CUDA_CHECK(cudaEventRecord(copied[2 * block + 1], queue));
      }
      products.EnqueueBlock();
      LORAD_CUDA_CHECK(cudaEventRecord(ends[block + 1]));
    }
    lane.Wait();
    LORAD_CUDA_CHECK(cudaEventSynchronize(ends[kBlocks]));

    double alone = 0, beside = 0, copying = 0;
    for (int block = kWarmUp; block < kBlocks; ++block) {
      (block % 2 == 1 ? beside : alone) += ends.Ms(block, block + 1);
      if (block % 2 == 1) copying += copied.Ms(2 * block, 2 * block + 1);
    }
    constexpr int kOfEach = kProducts * (kBlocks - kWarmUp) / 2;
    const double ratio = beside / alone;
    std::printf(
        "%-28s %-28s %4.0f GB/s for %3.0f %% of the time  alone %7.3f ms  beside %7.3f ms  "
        "%.3f times (bar %.2f%s)\n",
        way.name.c_str(), shape.name, speed, 100 * copying / beside, alone / kOfEach,
        beside / kOfEach, ratio, kBar, ratio <= kBar ? "" : ": missed");
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
