// How the product kernel (hopper.h) finishes tiles of gate and up, and of their gradients.
#pragma once

#include "kernels/cuda/gemm/hopper_consumer.cuh"
#include "kernels/cuda/rowwise/swiglu.cuh"

namespace lorad::kernels::cuda {

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishSwiGlu(const Sums& sums) {
  static_assert(Shape::kBufferCount == 1);
#pragma unroll
  for (int result = 0; result < Shape::kResults; ++result) {
    // Without a branch the compiler makes all of a tile before the first is sent off, and spills.
    if (row_ + RowOf(result) >= arguments_.rows) break;
    if (Elected()) ptx::WaitStoresRead<0>();
    Sync();
    FinishSwiGluBox(sums[result / Shape::kOutBoxes], result);
    ptx::FenceSharedWrites();
    Sync();
    if (Elected()) {
      const int column = column_ + ColumnOf(result);
      const int row = row_ + RowOf(result);
      ptx::StoreBox(&arguments_.gate, column, row, Buffer(result, 0));
      ptx::StoreBox(&arguments_.up, column, row, Buffer(result, 1));
      ptx::StoreBox(&arguments_.y, column, row, Buffer(result, 2));
      ptx::CommitStores();
    }
  }
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishSwiGluBox(const float (&sums)[Shape::kColumns / 2],
                                                           int result) const {
  // As FinishBox, but of 64 bytes a row: 16 of them lie at their number xor the row pair's.
  const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
  const uint32_t offset = row * Shape::kOutBox * 2 + ((lane_ / 16) ^ (row / 2 % 4)) * 16;
#pragma unroll
  for (int j = 0; j < Shape::kOutBox / 8; j += 2) {
    uint32_t gate[4];
    uint32_t up[4];
    uint32_t gated[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = ColumnOf(result) / 2 + j * 4 + 2 * i;
      gate[i] = Pack(sums[at], sums[at + 1]);
      up[i] = Pack(sums[Shape::kOuts / 2 + at], sums[Shape::kOuts / 2 + at + 1]);
      const float2 g = Unpack(gate[i]);  // as they are in memory
      const float2 u = Unpack(up[i]);
      gated[i] = Pack(SwiGluOf<Shape::kGate>(g.x, u.x), SwiGluOf<Shape::kGate>(g.y, u.y));
    }
    const uint32_t place = offset ^ (j * 16);
    ptx::StoreMatrices(Buffer(result, 0) + place, gate);
    ptx::StoreMatrices(Buffer(result, 1) + place, up);
    ptx::StoreMatrices(Buffer(result, 2) + place, gated);
  }
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishSwiGluBackward(const Sums& sums) {
  static_assert(Shape::kBufferCount == 2);
#pragma unroll
  for (int result = 0; result < Shape::kResults; ++result) {
    // The first two are there or on their way. From then on the other buffer is filled for the
    // next, as soon as what was made in it has been read.
    if (result > 0 && result + 1 < Shape::kResults && Elected()) {
      ptx::WaitStoresRead<0>();
      RequestResidual(result + 1);
    }
    __syncwarp();
    ptx::Wait(ResidualBarrier(result), residual_parity_ ^ (result / 2 % 2));
    FinishSwiGluBackwardBox(sums[result / Shape::kOutBoxes], result);
    ptx::FenceSharedWrites();
    Sync();
    if (Elected()) {
      const int column = column_ + ColumnOf(result);
      const int row = row_ + RowOf(result);
      ptx::StoreBox(&arguments_.dgate, column, row, Buffer(result, 0));
      ptx::StoreBox(&arguments_.dup, column, row, Buffer(result, 1));
      ptx::CommitStores();
    }
  }
  residual_parity_ ^= Shape::kResults / 2 % 2;
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishSwiGluBackwardBox(
    const float (&sums)[Shape::kColumns / 2], int result) const {
  const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
  const uint32_t offset = row * kBox * 2 + ((lane_ / 16) ^ (lane_ % 8)) * 16;
  uint32_t d[kBox / 4];  // rounded as they would be in memory
#pragma unroll
  for (int i = 0; i < kBox / 4; ++i) {
    const int at = ColumnOf(result) / 2 + 2 * i;
    d[i] = Pack(sums[at], sums[at + 1]);
  }
  // Unrolled, a tile's instructions would not fit their cache.
#pragma unroll 1
  for (int j = 0; j < kBox / 8; j += 2) {
    const uint32_t gate_place = (Buffer(result, 0) + offset) ^ (j * 16);
    const uint32_t up_place = (Buffer(result, 1) + offset) ^ (j * 16);
    uint32_t gate[4];
    uint32_t up[4];
    ptx::LoadMatrices(gate_place, gate);
    ptx::LoadMatrices(up_place, up);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 dy = Unpack(d[i]);
      const float2 g = Unpack(gate[i]);
      const float2 u = Unpack(up[i]);
      const SwiGluGradients low = SwiGluGradientsOf<Shape::kGate>(g.x, u.x, dy.x);
      const SwiGluGradients high = SwiGluGradientsOf<Shape::kGate>(g.y, u.y, dy.y);
      gate[i] = Pack(low.gate, high.gate);
      up[i] = Pack(low.up, high.up);
    }
    ptx::StoreMatrices(gate_place, gate);
    ptx::StoreMatrices(up_place, up);
#pragma unroll
    for (int i = 0; i + 4 < kBox / 4; ++i) d[i] = d[i + 4];
  }
}

}  // namespace lorad::kernels::cuda
