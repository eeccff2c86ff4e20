// dA += dS^T (D o x), see kernels.h.
//
// A warp takes a chunk of 256 rows, up to 64 ranks of one party and 64 features; the 8 warps of a
// block 512 features of one chunk, 256 of two or 128 of four. Chunks of one party are added up, in
// fixed point, before they go to memory: a quarter of the 8-byte additions in the L2 cache where
// there are four. dS [256, ranks] of each chunk is in shared memory.
#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/lora/gradient_a.cuh"
#include "kernels/cuda/lora/kernels.h"

namespace lorad::kernels::cuda {
namespace gradient_a {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
// By a block that takes as many chunks.
__host__ __device__ constexpr int BlockFeatures(int chunks) {
  return kWarps / chunks * kWarpFeatures;
}

template <int kUnits, bool kDropout>
__global__ void __launch_bounds__(kThreads, kUnits == 1 ? 2 : 1)
    GradientAKernel(const Arguments arguments) {
  extern __shared__ __align__(128) unsigned char memory[];
  const LoraGradientItem& group = arguments.tables.gradient_items[blockIdx.y];
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int chunks = group.chunks;
  const Place place = {.chunks = chunks, .chunk = warp % chunks, .column = warp / chunks};
  const int block_feature = static_cast<int>(blockIdx.x) * BlockFeatures(chunks);
  if (block_feature >= arguments.tables.inputs) return;
  const int first_feature = block_feature + place.column * kWarpFeatures;
  const LoraInputItem item = arguments.tables.input_items[group.items[place.chunk]];
  // In shared memory: the warps' rings, then dS of each chunk.
  unsigned char* ring_memory = memory + warp * kWarpBytes<kUnits, kDropout>;
  const uint32_t ring = ptx::SharedAddress(ring_memory);
  const uint32_t coefficients = ptx::SharedAddress(memory) + kWarps * kWarpBytes<kUnits, kDropout> +
                                place.chunk * CoefficientBytes<kUnits>();

  Loader loader(arguments, item, first_feature);
  Prefetch<kUnits, kDropout>(loader, ring);
  Mask masks[kUnits];
  if (kDropout) FindMasks(arguments, item, first_feature, masks);
  ptx::AwaitPreviousKernel();  // of all that is read, only dS is of the kernel before this one
  ptx::AllowNextLaunch();
  LoadCoefficients<kUnits>(arguments, item, coefficients,
                           place.column * kWarpLanes + static_cast<int>(threadIdx.x) % kWarpLanes,
                           kThreads / chunks);
  ptx::CommitCopies();
  ptx::WaitCopies<0>();
  __syncthreads();                                       // dS is there
  if (first_feature >= arguments.tables.inputs) return;  // with all warps of the column
  float c[kUnits][8][4] = {};
  Walk<kUnits, kDropout>(arguments, item, masks, first_feature, loader, ring, coefficients, c);
  AddUnits<kUnits, kDropout>(arguments, item, place, first_feature, c,
                             ring_memory - place.chunk * kWarpBytes<kUnits, kDropout>);
}

template <int kUnits, bool kDropout>
void Launch(const Arguments& arguments, bool early, cudaStream_t stream) {
  const int chunks = arguments.tables.gradient_chunks;
  const int bytes = kWarps * kWarpBytes<kUnits, kDropout> + chunks * CoefficientBytes<kUnits>();
  static_assert(kWarps * kWarpBytes<kUnits, kDropout> + kGroupChunks * CoefficientBytes<kUnits>() <=
                227 * 1024);
  const int block_features = BlockFeatures(chunks);
  const dim3 grid(
      static_cast<unsigned>((arguments.tables.inputs + block_features - 1) / block_features),
      static_cast<unsigned>(arguments.tables.gradient_count));
  LaunchKernel(GradientAKernel<kUnits, kDropout>,
               {.grid = grid, .threads = kThreads, .shared_bytes = bytes, .early = early}, stream,
               arguments);
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
  if (tables.gradient_count == 0) return;
  const auto arguments = gradient_a::ArgumentsOf(tables, x, ds, mask_row_bytes);
  if (tables.any_dropout != 0) return gradient_a::LaunchUnits<true>(arguments, early, stream);
  gradient_a::LaunchUnits<false>(arguments, early, stream);
}

}  // namespace lorad::kernels::cuda
