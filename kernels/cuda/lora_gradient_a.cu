// dA += dS^T (D o x), see lora_kernels.h.
//
// GradientA: a block takes a chunk of 256 rows, up to 64 ranks of one party and 512 features, dS
// [256, ranks] in shared memory, a warp 64 features. GradientABeside: a few blocks for the whole
// work, made of warps that share nothing and take a chunk and 64 features at a time.
#include <cassert>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lora_gradient_a.cuh"
#include "kernels/cuda/lora_kernels.h"

namespace lorad::kernels::cuda {
namespace gradient_a {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kBlockFeatures = kWarps * kWarpFeatures;

template <int kUnits, bool kDropout>
__global__ void __launch_bounds__(kThreads, kUnits == 1 ? 2 : 1)
    GradientAKernel(const Arguments arguments) {
  if (static_cast<int>(blockIdx.y) >= arguments.tables.input_count) return;
  extern __shared__ __align__(128) unsigned char memory[];
  const LoraInputItem item = arguments.tables.input_items[blockIdx.y];
  if (item.units == 0 || item.rows.train == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int first_feature = static_cast<int>(blockIdx.x) * kBlockFeatures + warp * kWarpFeatures;
  const uint32_t coefficients = SharedAddress(memory);
  unsigned char* ring_memory = memory + CoefficientBytes<kUnits>() + warp * kWarpBytes;
  const uint32_t ring = SharedAddress(ring_memory);

  Prefetch(arguments, item, first_feature, ring);
  LoadCoefficients<kUnits, kThreads>(arguments, item, coefficients, static_cast<int>(threadIdx.x));
  CommitCopies();
  Mask masks[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + unit].pair];
    masks[unit] = {pair.word0, pair.threshold, pair.mask};
  }
  WaitCopies<0>();
  __syncthreads();  // dS is there
  if (first_feature >= arguments.tables.inputs) return;
  float c[kUnits][8][4] = {};
  Walk<kUnits, kDropout>(arguments, item, masks, first_feature, ring, coefficients, c);
  AddUnits<kUnits>(arguments, item, first_feature, c, reinterpret_cast<float*>(ring_memory));
}

// Warps of a block that takes as much of a multiprocessor's shared memory as there is.
template <int kUnits>
constexpr int BesideWarps() {
  return 200 * 1024 / (CoefficientBytes<kUnits>() + kWarpBytes);
}
constexpr int kBesideCluster = 2;  // so that what is left of the device is whole pairs

template <int kUnits>
__global__ void __launch_bounds__(BesideWarps<kUnits>() * kWarpLanes, 1)
    GradientABesideKernel(const Arguments arguments) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  unsigned char* mine = memory + warp * (CoefficientBytes<kUnits>() + kWarpBytes);
  const uint32_t coefficients = SharedAddress(mine);
  const uint32_t ring = coefficients + CoefficientBytes<kUnits>();
  const int columns = (arguments.tables.inputs + kWarpFeatures - 1) / kWarpFeatures;
  const int count = columns * arguments.tables.input_count;
  const Mask masks[kUnits] = {};
  // Neighbouring warps of all blocks take neighbouring features.
  for (int work = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x); work < count;
       work += BesideWarps<kUnits>() * static_cast<int>(gridDim.x)) {
    const LoraInputItem item = arguments.tables.input_items[work / columns];
    if (item.units == 0 || item.rows.train == 0) continue;
    const int first_feature = work % columns * kWarpFeatures;
    LoadCoefficients<kUnits, kWarpLanes>(arguments, item, coefficients,
                                         static_cast<int>(threadIdx.x) % kWarpLanes);
    CommitCopies();
    Prefetch(arguments, item, first_feature, ring);
    float c[kUnits][8][4] = {};
    Walk<kUnits, false>(arguments, item, masks, first_feature, ring, coefficients, c);
    AddUnits<kUnits>(arguments, item, first_feature, c,
                     reinterpret_cast<float*>(mine + CoefficientBytes<kUnits>()));
  }
}

template <int kUnits, bool kDropout>
void Launch(const Arguments& arguments, cudaStream_t stream) {
  constexpr int kBytes = CoefficientBytes<kUnits>() + kWarps * kWarpBytes;
  const auto kernel = GradientAKernel<kUnits, kDropout>;
  LORAD_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(
      static_cast<unsigned>((arguments.tables.inputs + kBlockFeatures - 1) / kBlockFeatures),
      static_cast<unsigned>(arguments.tables.input_count));
  kernel<<<grid, kThreads, kBytes, stream>>>(arguments);
  LORAD_CUDA_LAUNCHED();
}

template <bool kDropout>
void LaunchUnits(const Arguments& arguments, cudaStream_t stream) {
  if (arguments.tables.block_units <= 1) return Launch<1, kDropout>(arguments, stream);
  if (arguments.tables.block_units == 2) return Launch<2, kDropout>(arguments, stream);
  Launch<4, kDropout>(arguments, stream);
}

template <int kUnits>
void LaunchBeside(const Arguments& arguments, int blocks, cudaStream_t stream) {
  constexpr int kBytes = BesideWarps<kUnits>() * (CoefficientBytes<kUnits>() + kWarpBytes);
  const auto kernel = GradientABesideKernel<kUnits>;
  LORAD_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBesideCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(BesideWarps<kUnits>() * kWarpLanes);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  LORAD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments));
}

Arguments ArgumentsOf(const LoraTables& tables, const TensorView& x, const TensorView& ds,
                      int64_t mask_row_bytes) {
  assert(x.dtype == DType::kBfloat16 && x.columns == tables.inputs && x.row_stride % 8 == 0);
  return {.tables = tables,
          .x = static_cast<const __nv_bfloat16*>(x.data),
          .x_stride = x.row_stride,
          .ds = static_cast<const __nv_bfloat16*>(ds.data),
          .ds_stride = ds.row_stride,
          .mask_row_bytes = mask_row_bytes};
}

}  // namespace
}  // namespace gradient_a

void GradientA(const LoraTables& tables, const TensorView& x, const TensorView& ds,
               int64_t mask_row_bytes, cudaStream_t stream) {
  if (tables.input_count == 0 || tables.any_train == 0) return;
  const auto arguments = gradient_a::ArgumentsOf(tables, x, ds, mask_row_bytes);
  if (tables.any_dropout != 0) return gradient_a::LaunchUnits<true>(arguments, stream);
  gradient_a::LaunchUnits<false>(arguments, stream);
}

bool CanGradientABeside(const LoraTables& tables) {
  return tables.any_dropout == 0 && tables.block_units <= 2;
}

void GradientABeside(const LoraTables& tables, const TensorView& x, const TensorView& ds,
                     int blocks, cudaStream_t stream) {
  if (tables.input_count == 0 || tables.any_train == 0) return;
  assert(CanGradientABeside(tables) && blocks % gradient_a::kBesideCluster == 0);
  const auto arguments = gradient_a::ArgumentsOf(tables, x, ds, 0);
  if (tables.block_units == 2) return gradient_a::LaunchBeside<2>(arguments, blocks, stream);
  gradient_a::LaunchBeside<1>(arguments, blocks, stream);
}

}  // namespace lorad::kernels::cuda
