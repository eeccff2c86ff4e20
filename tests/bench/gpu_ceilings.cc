#include "tests/bench/gpu_ceilings.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/optimizer/optimizer.h"
#include "kernels/cuda/rowwise/rowwise.h"

namespace lorad::bench {
namespace {

using namespace kernels;

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one run: the median of 5 groups of as many as take about 20 ms.
template <typename Run, typename Wait>
double MedianSeconds(Run&& run, Wait&& wait) {
  run();
  wait();
  const double begin = SecondsNow();
  run();
  wait();
  const double once = SecondsNow() - begin;
  const int repeats = static_cast<int>(std::clamp(0.02 / once, 1.0, 500.0));
  std::vector<double> seconds;
  for (int group = 0; group < 5; ++group) {
    const double start = SecondsNow();
    for (int i = 0; i < repeats; ++i) run();
    wait();
    seconds.push_back((SecondsNow() - start) / repeats);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

struct DeviceMemory {
  explicit DeviceMemory(int64_t bytes) {
    LORAD_CUDA_CHECK(cudaMalloc(&data, static_cast<size_t>(bytes)));
  }
  ~DeviceMemory() { static_cast<void>(cudaFree(data)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data = nullptr;
};

TensorView View(const DeviceMemory& memory, int64_t rows, int64_t columns, DType dtype) {
  return {.data = memory.data,
          .rows = rows,
          .columns = columns,
          .row_stride = columns,
          .dtype = dtype,
          .device = Device::kCuda};
}

}  // namespace

Ceilings MeasureCeilings() {
  constexpr int64_t kSize = 8192;
  constexpr int64_t kCopyBytes = int64_t{2} << 30;
  const cuda::Stream stream;
  const auto wait = [&] { LORAD_CUDA_CHECK(cudaStreamSynchronize(stream.get())); };
  Ceilings ceilings;
  {
    const DeviceMemory random(kSize * kSize * 4), x(kSize * kSize * 2), w(kSize * kSize * 2);
    const DeviceMemory y(kSize * kSize * 2), scratch(cuda::Gemm::WorkspaceBytes());
    const TensorView values = View(random, kSize, kSize, DType::kFloat32);
    cuda::GemmArguments arguments = {.x = View(x, kSize, kSize, DType::kBfloat16),
                                     .weight = View(w, kSize, kSize, DType::kBfloat16),
                                     .y = View(y, kSize, kSize, DType::kBfloat16)};
    cuda::InitializeA(stream.get(), 1, 0, 0, values);
    cuda::Cast(stream.get(), values, arguments.x);
    cuda::InitializeA(stream.get(), 2, 0, 0, values);
    cuda::Cast(stream.get(), values, arguments.weight);
    cuda::Gemm library({.own_kernel = false});
    const double seconds =
        MedianSeconds([&] { library.Run(arguments, scratch.data, stream.get()); }, wait);
    ceilings.product_flops = 2.0 * kSize * kSize * kSize / seconds;
  }
  const DeviceMemory from(kCopyBytes), to(kCopyBytes);
  const double seconds = MedianSeconds(
      [&] {
        LORAD_CUDA_CHECK(cudaMemcpyAsync(to.data, from.data, kCopyBytes, cudaMemcpyDeviceToDevice,
                                         stream.get()));
      },
      wait);
  ceilings.copy_bytes = 2.0 * static_cast<double>(kCopyBytes) / seconds;
  std::printf("ceilings: large product %.0f TFLOP/s, copy %.2f TB/s\n",
              ceilings.product_flops * 1e-12, ceilings.copy_bytes * 1e-12);
  return ceilings;
}

double MedianMs(Backend& backend, const std::function<void()>& run) {
  return MedianSeconds(run, [&] { backend.Synchronize(); }) * 1e3;
}

}  // namespace lorad::bench
