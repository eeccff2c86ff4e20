// dA += dS^T (D o x), see lora_kernels.h.
//
// A block takes a chunk of 256 rows, up to 64 ranks of one party and 512 features, dS [256, ranks]
// in shared memory; a warp 64 features.
#include <cassert>

#include "kernels/cuda/check.h"
#include "kernels/cuda/launch.h"
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
  const uint32_t coefficients = ptx::SharedAddress(memory);
  unsigned char* ring_memory = memory + CoefficientBytes<kUnits>() + warp * kWarpBytes;
  const uint32_t ring = ptx::SharedAddress(ring_memory);

  Prefetch(arguments, item, first_feature, ring);
  ptx::AwaitPreviousKernel();  // of all that is read, only dS is of the kernel before this one
  ptx::AllowNextLaunch();
  LoadCoefficients<kUnits, kThreads>(arguments, item, coefficients, static_cast<int>(threadIdx.x));
  ptx::CommitCopies();
  Mask masks[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + unit].pair];
    masks[unit] = {pair.word0, pair.threshold, pair.mask};
  }
  ptx::WaitCopies<0>();
  __syncthreads();  // dS is there
  if (first_feature >= arguments.tables.inputs) return;
  float c[kUnits][8][4] = {};
  Walk<kUnits, kDropout>(arguments, item, masks, first_feature, ring, coefficients, c);
  AddUnits<kUnits>(arguments, item, first_feature, c, reinterpret_cast<float*>(ring_memory));
}

template <int kUnits, bool kDropout>
void Launch(const Arguments& arguments, bool early, cudaStream_t stream) {
  constexpr int kBytes = CoefficientBytes<kUnits>() + kWarps * kWarpBytes;
  const dim3 grid(
      static_cast<unsigned>((arguments.tables.inputs + kBlockFeatures - 1) / kBlockFeatures),
      static_cast<unsigned>(arguments.tables.input_count));
  LaunchKernel(GradientAKernel<kUnits, kDropout>,
               {.grid = grid, .threads = kThreads, .shared_bytes = kBytes, .early = early},
               arguments, stream);
}

template <bool kDropout>
void LaunchUnits(const Arguments& arguments, bool early, cudaStream_t stream) {
  if (arguments.tables.input_units <= 1) return Launch<1, kDropout>(arguments, early, stream);
  if (arguments.tables.input_units == 2) return Launch<2, kDropout>(arguments, early, stream);
  Launch<4, kDropout>(arguments, early, stream);
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
               int64_t mask_row_bytes, bool early, cudaStream_t stream) {
  if (tables.input_count == 0 || tables.any_train == 0) return;
  const auto arguments = gradient_a::ArgumentsOf(tables, x, ds, mask_row_bytes);
  if (tables.any_dropout != 0) return gradient_a::LaunchUnits<true>(arguments, early, stream);
  gradient_a::LaunchUnits<false>(arguments, early, stream);
}

}  // namespace lorad::kernels::cuda
