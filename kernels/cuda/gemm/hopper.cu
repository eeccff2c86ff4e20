#include <algorithm>
#include <cassert>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/hopper.cuh"
#include "kernels/cuda/gemm/hopper.h"
#include "kernels/cuda/gemm/hopper_consumer.cuh"
#include "kernels/cuda/gemm/hopper_loss.cuh"
#include "kernels/cuda/gemm/hopper_producer.cuh"
#include "kernels/cuda/gemm/hopper_rope.cuh"
#include "kernels/cuda/gemm/hopper_swiglu.cuh"

namespace lorad::kernels::cuda {
namespace {

using Together256 = TileShape<Roles::kTogether, 256, 4, 2>;
using Together128 = TileShape<Roles::kTogether, 128, 6, 1>;
using InTurns192 = TileShape<Roles::kInTurns, 192, 5, 1>;
using InTurns128 = TileShape<Roles::kInTurns, 128, 6, 2>;
using SwiGlu192 = TileShape<Roles::kInTurns, 192, 5, 1, Finish::kSwiGlu>;
using SwiGluBackward192 = TileShape<Roles::kInTurns, 192, 4, 2, Finish::kSwiGluBackward>;
using GeGlu192 = TileShape<Roles::kInTurns, 192, 5, 1, Finish::kSwiGlu, Gate::kGeluTanh>;
using GeGluBackward192 =
    TileShape<Roles::kInTurns, 192, 4, 2, Finish::kSwiGluBackward, Gate::kGeluTanh>;
using Exponentials192 = TileShape<Roles::kInTurns, 192, 5, 1, Finish::kExponentials>;
using Rope192 = TileShape<Roles::kInTurns, 192, 5, 1, Finish::kRope>;

constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;
static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 65536 / kWarpgroup);

template <typename Shape>
__device__ void InitBarriers(SharedMemory<Shape>& shared) {
  constexpr int kWarpsOfConsumers = 2 * Shape::kConsumers * kWarpgroup / 32;  // of both blocks
  for (int i = 0; i < Shape::kStageCount; ++i) {
    ptx::InitBarrier(ptx::SharedAddress(&shared.full[i]), 1);
    ptx::InitBarrier(ptx::SharedAddress(&shared.empty[i]), kWarpsOfConsumers);
  }
  for (int group = 0; group < 2; ++group) {
    for (int i = 0; i < Shape::kBufferCount; ++i) {
      ptx::InitBarrier(ptx::SharedAddress(&shared.residual[group][i]), 1);
    }
  }
  ptx::InitBarrier(ptx::SharedAddress(&shared.terms_ready), 32);
  ptx::FenceBarrierInit();
}

template <Product kProduct, typename Shape>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    HopperKernel(const __grid_constant__ HopperArguments arguments) {
  if constexpr (Shape::kFinish == Finish::kExponentials) {
    const int32_t* needed = arguments.exponentials.needed;
    if (needed != nullptr) {
      ptx::AwaitPreviousKernel();
      if (*needed == 0) return;
    }
  }
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<SharedMemory<Shape>*>(memory);
  // The same in all lanes, and the compiler shall know it.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) InitBarriers(shared);
  ptx::ClusterSync();
  if (arguments.awaits_late == 0) ptx::AwaitPreviousKernel();

  if (warp < kWarpgroup / 32) {
    ptx::GiveRegisters<kProducerRegisters>();
    if (warp == 1) PrepareTerms(arguments, shared);
    if (threadIdx.x == 0) Producer<kProduct, Shape>(arguments, shared).Run();
    __syncwarp();
  } else {
    ptx::TakeRegisters<kConsumerRegisters>();
    Consumer<kProduct, Shape>(arguments, shared, warp / (kWarpgroup / 32) - 1).Run();
    __syncwarp();
  }
  // The other block may still arrive at barriers of this one, or send it a copy.
  ptx::ClusterSync();
}

template <Product kProduct, typename Shape>
void Launch(const HopperArguments& arguments, int clusters, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(SharedMemory<Shape>));
  static_assert(kBytes <= 227 * 1024);
  const int blocks = 2 * std::min(clusters, arguments.row_tiles * arguments.column_tiles);
  LaunchKernel(HopperKernel<kProduct, Shape>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .threads = kThreads,
                .shared_bytes = kBytes,
                .early = true},
               stream, arguments);
}

template <Product kProduct>
void LaunchTile(HopperTile tile, const HopperArguments& arguments, int clusters,
                cudaStream_t stream) {
  switch (tile) {
    case HopperTile::kTogether256:
      return Launch<kProduct, Together256>(arguments, clusters, stream);
    case HopperTile::kTogether128:
      return Launch<kProduct, Together128>(arguments, clusters, stream);
    case HopperTile::kInTurns192:
      return Launch<kProduct, InTurns192>(arguments, clusters, stream);
    case HopperTile::kInTurns128:
      return Launch<kProduct, InTurns128>(arguments, clusters, stream);
    case HopperTile::kSwiGlu192:
      if constexpr (kProduct == Product::kForward) {
        return Launch<kProduct, SwiGlu192>(arguments, clusters, stream);
      }
      assert(false);
      return;
    case HopperTile::kSwiGluBackward192:
      if constexpr (kProduct == Product::kInputGradient) {
        return Launch<kProduct, SwiGluBackward192>(arguments, clusters, stream);
      }
      assert(false);
      return;
    case HopperTile::kGeGlu192:
      if constexpr (kProduct == Product::kForward) {
        return Launch<kProduct, GeGlu192>(arguments, clusters, stream);
      }
      assert(false);
      return;
    case HopperTile::kGeGluBackward192:
      if constexpr (kProduct == Product::kInputGradient) {
        return Launch<kProduct, GeGluBackward192>(arguments, clusters, stream);
      }
      assert(false);
      return;
    case HopperTile::kExponentials192:
      if constexpr (kProduct == Product::kForward) {
        return Launch<kProduct, Exponentials192>(arguments, clusters, stream);
      }
      assert(false);
      return;
    case HopperTile::kRope192:
      if constexpr (kProduct == Product::kForward) {
        return Launch<kProduct, Rope192>(arguments, clusters, stream);
      }
      assert(false);
  }
}

}  // namespace

void LaunchHopper(Product product, HopperTile tile, const HopperArguments& arguments, int clusters,
                  cudaStream_t stream) {
  if (product == Product::kForward) {
    LaunchTile<Product::kForward>(tile, arguments, clusters, stream);
  } else {
    LaunchTile<Product::kInputGradient>(tile, arguments, clusters, stream);
  }
}

}  // namespace lorad::kernels::cuda
