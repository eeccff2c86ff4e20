#include <algorithm>
#include <cassert>

#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/attention/backward.h"
#include "kernels/cuda/attention/backward_keys.cuh"
#include "kernels/cuda/attention/backward_queries.cuh"
#include "kernels/cuda/device/launch.h"

namespace lorad::kernels::cuda {
namespace backward {
namespace {

constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;
static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= 65536 / kWarpgroup);

float* PairsOf(const AttentionBackwardCall& call) {
  return call.scratch + sizes::kBackwardTakenFloats;
}

// ---- delta and lse ----

struct DeltaArguments {
  const AttentionUnit* units;
  const __nv_bfloat16* out;
  const __nv_bfloat16* dout;
  const float* lse;
  int64_t out_stride, dout_stride, lse_stride;
  int32_t* taken;  // [2], to zero
  float* pairs;    // AttentionBackwardArguments
  int64_t scratch_stride;
  int32_t heads;
};

constexpr int kDeltaThreads = 256;
constexpr int kDeltaColumns = 256;  // of a block: 8 a lane
constexpr int kDeltaRows = 4;       // of a warp at a time

__device__ float DotPairs(const uint4& x, const uint4& y) {
  const uint32_t a[4] = {x.x, x.y, x.z, x.w};
  const uint32_t b[4] = {y.x, y.y, y.z, y.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = Unpack(a[i]);
    const float2 v = Unpack(b[i]);
    sum = fmaf(u.x, v.x, sum);
    sum = fmaf(u.y, v.y, sum);
  }
  return sum;
}

// Grid: (units, groups of heads). kD / 8 lanes have a head's part of a row.
template <int kD>
__global__ void __launch_bounds__(kDeltaThreads) DeltaKernel(const DeltaArguments a) {
  constexpr int kLanes = kD / 8;
  ptx::TakeTurn();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < 2) a.taken[threadIdx.x] = 0;
  const int4 unit = __ldg(reinterpret_cast<const int4*>(a.units) + blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(blockIdx.y) * kDeltaColumns + lane * 8;
  const int head = column / kD;
  const bool mine = head < a.heads;
  const int end = min(unit.y, unit.z + kBackwardRows);
  constexpr int kWarpRows = kBackwardRows / (kDeltaThreads / 32);
  const int first = unit.z + static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  for (int row = first; row < min(end, first + kWarpRows); row += kDeltaRows) {
    uint4 out[kDeltaRows] = {};
    uint4 dout[kDeltaRows] = {};
#pragma unroll
    for (int i = 0; i < kDeltaRows; ++i) {
      if (!mine || row + i >= end) continue;
      const int64_t at = unit.x + row + i;
      out[i] = *reinterpret_cast<const uint4*>(a.out + at * a.out_stride + column);
      dout[i] = *reinterpret_cast<const uint4*>(a.dout + at * a.dout_stride + column);
    }
#pragma unroll
    for (int i = 0; i < kDeltaRows; ++i) {
      float sum = DotPairs(out[i], dout[i]);
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, step);
      }
      if (!mine || row + i >= end || lane % kLanes != 0) continue;
      const int64_t at = head * a.scratch_stride + unit.w + row + i;
      float* to = a.pairs + at / 2 * kPairFloats + at % 2;
      to[0] = kLog2E * a.lse[(unit.x + row + i) * a.lse_stride + head];
      to[2] = sum;
    }
  }
}

template <int kD>
void LaunchDelta(const AttentionBackwardCall& call, cudaStream_t stream) {
  const AttentionArguments& from = call.arguments;
  const DeltaArguments arguments = {.units = call.query_units,
                                    .out = static_cast<const __nv_bfloat16*>(from.out),
                                    .dout = static_cast<const __nv_bfloat16*>(from.dout),
                                    .lse = from.lse,
                                    .out_stride = from.strides.out,
                                    .dout_stride = from.strides.dout,
                                    .lse_stride = from.strides.lse,
                                    .taken = reinterpret_cast<int32_t*>(call.scratch),
                                    .pairs = PairsOf(call),
                                    .scratch_stride = call.scratch_stride,
                                    .heads = from.heads};
  const int columns = from.heads * kD;
  const dim3 grid(static_cast<unsigned>(call.unit_count),
                  static_cast<unsigned>((columns + kDeltaColumns - 1) / kDeltaColumns));
  LaunchKernel(DeltaKernel<kD>, {.grid = grid, .threads = kDeltaThreads, .early = true}, stream,
               arguments);
}

// ---- gradients ----

template <Part kPart, typename S>
__global__ void __launch_bounds__(kThreads, 1)
    Kernel(const __grid_constant__ AttentionBackwardArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Memory<S>*>(memory);
  // The same in all lanes, and the compiler shall know it.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  if constexpr (kPart == Part::kKeys) ptx::TakeTurn();
  if (warp < kWarpgroup / 32) {
    ptx::GiveRegisters<kProducerRegisters>();
    if (warp == 0) Producer<kPart, S>(arguments, shared).Run();
    // That of the keys, which waited for delta: nothing here needs its results, so its last blocks
    // share the device with this one's first. What comes after waits for both.
    if constexpr (kPart == Part::kQueries) ptx::AwaitPreviousKernel();
  } else {
    ptx::TakeRegisters<kConsumerRegisters>();
    const int group = warp / (kWarpgroup / 32) - 1;
    if constexpr (kPart == Part::kKeys) {
      KeyConsumer<S>(arguments, shared, group).Run();
    } else {
      QueryConsumer<S>(arguments, shared, group).Run();
    }
  }
}

template <Part kPart, typename S>
void LaunchPart(AttentionBackwardArguments arguments, const AttentionBackwardCall& call,
                cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Memory<S>));
  static_assert(kBytes <= 227 * 1024);
  constexpr bool kKeys = kPart == Part::kKeys;
  arguments.units = kKeys ? call.key_units : call.query_units;
  arguments.taken += kKeys ? 0 : 1;
  const int items = arguments.unit_count * (kKeys ? arguments.kv_heads : arguments.heads);
  LaunchKernel(Kernel<kPart, S>,
               {.grid = dim3(static_cast<unsigned>(std::min(items, call.multiprocessors))),
                .threads = kThreads,
                .shared_bytes = kBytes,
                .early = true},
               stream, arguments);
}

template <typename Keys, typename Queries>
void Launch(const AttentionBackwardArguments& arguments, const AttentionBackwardCall& call,
            cudaStream_t stream) {
  LaunchDelta<Keys::kD>(call, stream);
  LaunchPart<Part::kKeys, Keys>(arguments, call, stream);
  LaunchPart<Part::kQueries, Queries>(arguments, call, stream);
}

}  // namespace
}  // namespace backward

namespace {

TensorMap MapRows(const void* data, int64_t rows, int64_t columns, int64_t stride) {
  return MapBoxes({.data = const_cast<void*>(data),
                   .rows = rows,
                   .columns = columns,
                   .row_stride = stride,
                   .dtype = DType::kBfloat16,
                   .device = Device::kCuda},
                  kBackwardBox);
}

AttentionBackwardArguments Plan(const AttentionBackwardCall& call) {
  const AttentionArguments& from = call.arguments;
  const int64_t q_columns = int64_t{from.heads} * from.head_size;
  const int64_t kv_columns = int64_t{from.kv_heads} * from.head_size;
  return {.q = MapRows(from.q, call.tokens, q_columns, from.strides.q),
          .k = MapRows(from.k, call.tokens, kv_columns, from.strides.k),
          .v = MapRows(from.v, call.tokens, kv_columns, from.strides.v),
          .dout = MapRows(from.dout, call.tokens, q_columns, from.strides.dout),
          .units = nullptr,
          .taken = reinterpret_cast<int32_t*>(call.scratch),
          .pairs = backward::PairsOf(call),
          .scratch_stride = call.scratch_stride,
          .dq = from.dq,
          .dk = from.dk,
          .dv = from.dv,
          .dq_stride = from.strides.dq,
          .dk_stride = from.strides.dk,
          .dv_stride = from.strides.dv,
          .unit_count = static_cast<int32_t>(call.unit_count),
          .heads = from.heads,
          .kv_heads = from.kv_heads,
          .scale = from.scale,
          .window = from.window,
          .positions = call.rope.positions,
          .angles = call.rope.angles,
          .angle_stride = call.rope.angle_stride};
}

}  // namespace

namespace {

template <bool kWindow>
void LaunchHeads(const AttentionBackwardCall& call, cudaStream_t stream) {
  using backward::Shape;
  if (call.arguments.head_size == 64) {
    backward::Launch<Shape<64, 64, 6, 2, kWindow>, Shape<64, 64, 8, 1, kWindow>>(Plan(call), call,
                                                                                 stream);
  } else {
    backward::Launch<Shape<128, 64, 3, 2, kWindow>, Shape<128, 64, 5, 1, kWindow>>(Plan(call), call,
                                                                                   stream);
  }
}

}  // namespace

bool HopperBackwardTakes(const AttentionArguments& arguments) {
  return sizes::OwnBackwardTakes(arguments.head_size) && arguments.cap == 0 &&
         RowsAreAligned(arguments);
}

void LaunchAttentionBackwardHopper(const AttentionBackwardCall& call, cudaStream_t stream) {
  assert(HopperBackwardTakes(call.arguments));
  assert(call.rope.empty() ||
         (call.rope.head_size == call.arguments.head_size && call.rope.angle_stride % 2 == 0));
  call.arguments.window > 0 ? LaunchHeads<true>(call, stream) : LaunchHeads<false>(call, stream);
}

}  // namespace lorad::kernels::cuda
