#include <cmath>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/ptx_hopper.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "tests/kernels/cuda/matrix_units.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kRows = 64;  // of a warpgroup
constexpr int kGroups = 2;
constexpr int kColumns = 256;
constexpr int kInner = 64;
constexpr int kGroupThreads = 128;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr uint32_t kXBytes = kGroups * kRows * kInner * 2;
constexpr uint32_t kStageBytes = kXBytes + kColumns * kInner * 2;
static_assert(kStages * kStageBytes == kMatrixUnitsBytes);

// As the product kernel's inner loop (gemm/hopper_consumer.cuh) without its ring.
__global__ void __launch_bounds__(kThreads, 1)
    MatrixUnitsKernel(const uint4* operands, int64_t steps, float* sink) {
  extern __shared__ __align__(1024) unsigned char stages[];
  for (uint32_t i = threadIdx.x; i < kMatrixUnitsBytes / sizeof(uint4); i += kThreads) {
    reinterpret_cast<uint4*>(stages)[i] = operands[i];
  }
  ptx::FenceSharedWrites();
  __syncthreads();
  constexpr auto kB = wgmma::Contiguous::kInner;
  const uint32_t group = __shfl_sync(0xffffffff, threadIdx.x / kGroupThreads, 0);
  float sums[kColumns / 2] = {};
  for (int64_t step = 0; step < steps; ++step) {
    const uint32_t stage = ptx::SharedAddress(stages) + step % kStages * kStageBytes;
    const uint64_t x =
        wgmma::Descriptor<wgmma::Contiguous::kInner>(stage + group * kRows * kInner * 2);
    const uint64_t w = wgmma::Descriptor<kB>(stage + kXBytes);
    wgmma::Fence();
#pragma unroll
    for (int i = 0; i < kInner / 16; ++i) {
      wgmma::Add<kB>(sums, x + i * wgmma::Step(wgmma::Contiguous::kInner), w + i * wgmma::Step(kB));
    }
    wgmma::Commit();
    wgmma::WaitGroups<1>();
  }
  wgmma::WaitGroups<0>();
  wgmma::Pin(sums);
  float sum = 0;
#pragma unroll
  for (const float value : sums) sum += value;
  if (sum == INFINITY) *sink = sum;
}

int Attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  LORAD_CUDA_CHECK(cudaGetDevice(&device));
  LORAD_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

}  // namespace

bool HasMatrixUnits() { return Attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

void RunMatrixUnits(const void* operands, double operations, float* sink, cudaStream_t stream) {
  const int blocks = Attribute(cudaDevAttrMultiProcessorCount);
  const double of_step = 2.0 * kGroups * kRows * kColumns * kInner * blocks;
  LORAD_CUDA_CHECK(cudaFuncSetAttribute(MatrixUnitsKernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(kMatrixUnitsBytes)));
  MatrixUnitsKernel<<<static_cast<unsigned>(blocks), kThreads, kMatrixUnitsBytes, stream>>>(
      static_cast<const uint4*>(operands), std::llround(operations / of_step), sink);
  LORAD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace lorad::kernels::cuda
