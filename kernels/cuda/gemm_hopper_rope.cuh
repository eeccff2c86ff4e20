// How the product kernel (gemm_hopper.h) finishes tiles whose heads are turned (gemm.h:
// RopeTables). A tile is of 96 pairs of a head's elements, counted over all heads: whatever the
// size of heads, both of a pair are sums of one thread.
#ifndef LORAD_KERNELS_CUDA_GEMM_HOPPER_ROPE_CUH_
#define LORAD_KERNELS_CUDA_GEMM_HOPPER_ROPE_CUH_

#include "kernels/cuda/gemm_hopper_consumer.cuh"
#include "kernels/cuda/rope.cuh"

namespace lorad::kernels::cuda {

// Of this thread's two rows of a block.
template <Product kProduct, typename Shape>
struct Consumer<kProduct, Shape>::Positions {
  int32_t of[2];
};

// What eight pairs are turned by: this thread's two of them, in its two rows of a block.
template <Product kProduct, typename Shape>
struct Consumer<kProduct, Shape>::Angles {
  float2 cosine[2];
  float2 sine[2];
};

template <Product kProduct, typename Shape>
__device__ auto Consumer<kProduct, Shape>::LoadPositions(int block) const -> Positions {
  Positions positions;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = ThreadRow(block, i);
    positions.of[i] = row < arguments_.rows ? __ldg(arguments_.rope.positions + row) : 0;
  }
  return positions;
}

// `first`: pair of the head, a multiple of 8.
template <Product kProduct, typename Shape>
__device__ auto Consumer<kProduct, Shape>::LoadAngles(const Positions& positions, int first) const
    -> Angles {
  const RopeTables& rope = arguments_.rope;
  Angles angles;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* from =
        rope.angles + int64_t{positions.of[i]} * rope.angle_stride + first + 2 * (lane_ % 4);
    angles.cosine[i] = __ldg(reinterpret_cast<const float2*>(from));
    angles.sine[i] = __ldg(reinterpret_cast<const float2*>(from + rope.head_size / 2));
  }
  return angles;
}

// Sums and bias, rounded as they would be in memory: half the registers.
template <Product kProduct, typename Shape>
template <bool kBias>
__device__ void Consumer<kProduct, Shape>::PackSums(const Sums& sums, Packed& packed) const {
#pragma unroll
  for (int column = 0; column < Shape::kColumns; column += 8) {
    float2 bias = {};
    if (kBias) {
      const PairBox box = PairsAt(column % Shape::kOuts / 32);
      bias = Bias((column < Shape::kOuts ? box.low : box.high) + column % 32);
    }
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float2 value = {sums[block][column / 2 + 2 * i], sums[block][column / 2 + 2 * i + 1]};
        if (kBias) value = {value.x + bias.x, value.y + bias.y};
        packed[block][column / 4 + i] = Pack(value.x, value.y);
      }
    }
  }
#pragma unroll
  for (int block = 0; block < Shape::kRowBlocks; ++block) wgmma::Pin(packed[block]);
}

// The `part`-th eight pairs of a box.
template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishPairs(
    const uint32_t (&packed)[Shape::kColumns / 4], int result, int part, bool turned,
    const Angles& angles) const {
  // Lane l names row l % 8 of matrix l / 8: two of rows of the lower halves, two of the upper. Of
  // the 64 bytes of a row, 16 lie at their number xor the row pair's.
  const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
  const uint32_t address =
      Buffer(result) + lane_ / 16 * Shape::kOutBytes + row * Shape::kOutBox * 2 + row / 2 % 4 * 16;
  const int at = (ColumnOf(result) + part * 8) / 4;
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[i] = packed[at + i];
    out[2 + i] = packed[Shape::kOuts / 4 + at + i];
    if (turned) {
      const float2 low = Unpack(out[i]);
      const float2 high = Unpack(out[2 + i]);
      const RopePair x = Rotated({low.x, high.x}, angles.cosine[i].x, angles.sine[i].x);
      const RopePair y = Rotated({low.y, high.y}, angles.cosine[i].y, angles.sine[i].y);
      out[i] = Pack(x.low, y.low);
      out[2 + i] = Pack(x.high, y.high);
    }
  }
  ptx::StoreMatrices(address ^ (part * 16), out);
}

template <Product kProduct, typename Shape>
template <bool kBias>
__device__ void Consumer<kProduct, Shape>::FinishRope(const Sums& sums) {
  static_assert(Shape::kBufferCount == 1 && Shape::kOutBox == 32);
  constexpr int kParts = Shape::kOutBox / 8;  // of a result
  constexpr int kAll = Shape::kResults * kParts;
  constexpr int kAhead = 6;  // parts whose angles are on their way while one is turned
  Positions positions[Shape::kRowBlocks];
#pragma unroll
  for (int block = 0; block < Shape::kRowBlocks; ++block) positions[block] = LoadPositions(block);
  Packed packed;
  PackSums<kBias>(sums, packed);
  Angles angles[kAll];
  const auto load = [&](int at) {
    angles[at] = LoadAngles(positions[at / kParts / Shape::kOutBoxes],
                            PairsAt(at / kParts % Shape::kOutBoxes).first + at % kParts * 8);
  };
#pragma unroll
  for (int at = 0; at < kAhead; ++at) load(at);
#pragma unroll
  for (int result = 0; result < Shape::kResults; ++result) {
    const PairBox box = PairsAt(result % Shape::kOutBoxes);
    const bool turned = box.low < arguments_.rope.columns;
    if (Elected()) ptx::WaitStoresRead<0>();
    Sync();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = result * kParts + part;
      if (at + kAhead < kAll) load(at + kAhead);
      FinishPairs(packed[result / Shape::kOutBoxes], result, part, turned, angles[at]);
    }
    ptx::FenceSharedWrites();
    Sync();
    if (Elected()) {
      const int row = row_ + RowOf(result);
      ptx::StoreBox(&arguments_.y, box.low, row, Buffer(result, 0));
      ptx::StoreBox(&arguments_.y, box.high, row, Buffer(result, 1));
      ptx::CommitStores();
    }
  }
}

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_GEMM_HOPPER_ROPE_CUH_
