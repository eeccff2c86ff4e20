// How the product kernel (hopper.h) finishes tiles whose heads are turned (gemm.h: GemmRope). A
// tile is of the same 32 pairs of three heads: whatever the size of heads, both of a pair are sums
// of one thread, and its angles are read once for the three.
#pragma once

#include "kernels/cuda/gemm/hopper_consumer.cuh"
#include "kernels/cuda/rowwise/rope.cuh"

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
    positions.of[i] = row < arguments_.rows ? __ldg(arguments_.rope.tables.positions + row) : 0;
  }
  return positions;
}

// Of the tile's pairs.
template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::LoadAngles(const Positions& positions,
                                                      Angles (&angles)[kRopePairs / 8]) const {
  const RopeTables& rope = arguments_.rope.tables;
  const int first = (column_ & (rope.head_size - 1)) + 2 * (lane_ % 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* from = rope.angles + int64_t{positions.of[i]} * rope.angle_stride + first;
#pragma unroll
    for (int part = 0; part < kRopePairs / 8; ++part) {
      angles[part].cosine[i] = ptx::LoadPair(from + part * 8);
      angles[part].sine[i] = ptx::LoadPair(from + rope.head_size / 2 + part * 8);
    }
  }
}

// Sums and bias of columns [first, first + kOuts), rounded as they would be in memory: half the
// registers.
template <Product kProduct, typename Shape>
template <bool kBias>
__device__ void Consumer<kProduct, Shape>::PackSums(const Sums& sums, int first,
                                                    Packed (&packed)[Shape::kRowBlocks]) const {
  uint32_t bias[Shape::kOuts / 8] = {};
#pragma unroll
  for (int i = 0; kBias && i < Shape::kOuts / 8; ++i) {
    const int head = i * 8 / kRopePairs;
    const int column = (first == 0 ? LowColumn(head) : HighColumn(head)) + i * 8 % kRopePairs;
    const auto* from = static_cast<const __nv_bfloat16*>(arguments_.bias) + 2 * (lane_ % 4);
    if (column < arguments_.columns) {  // as are the seven after it
      bias[i] = __ldg(reinterpret_cast<const uint32_t*>(from + column));
    }
  }
#pragma unroll
  for (int at = first / 8; at < (first + Shape::kOuts) / 8; ++at) {
    const float2 add = Unpack(bias[at - first / 8]);
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float2 value = {sums[block][at * 4 + 2 * i], sums[block][at * 4 + 2 * i + 1]};
        if (kBias) value = {value.x + add.x, value.y + add.y};
        packed[block][at * 2 + i] = Pack(value.x, value.y);
      }
    }
  }
}

// The `part`-th eight pairs of a head.
template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishPairs(const Packed& packed, int result, int part,
                                                       bool turned, const Angles& angles) const {
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
  static_assert(Shape::kBufferCount == 1 && Shape::kOutBox == kRopePairs);
  constexpr int kParts = kRopePairs / 8;
  Packed packed[Shape::kRowBlocks];
  PackSums<kBias>(sums, 0, packed);
  PackSums<kBias>(sums, Shape::kOuts, packed);
#pragma unroll
  for (int block = 0; block < Shape::kRowBlocks; ++block) wgmma::Pin(packed[block]);
  Positions positions[Shape::kRowBlocks];
#pragma unroll
  for (int block = 0; block < Shape::kRowBlocks; ++block) positions[block] = LoadPositions(block);
  Angles angles[Shape::kRowBlocks][kParts];
#pragma unroll
  for (int result = 0; result < Shape::kResults; ++result) {
    const int block = result / Shape::kOutBoxes;
    const int head = result % Shape::kOutBoxes;
    const bool turned = LowColumn(head) < arguments_.rope.columns;
    if (Elected()) ptx::WaitStoresRead<0>();
    Sync();
    // The first block's when sums have left their registers, another's while one before it is made.
    if (result == 0) LoadAngles(positions[0], angles[0]);
    if (head == 1 && block + 1 < Shape::kRowBlocks) {
      LoadAngles(positions[block + 1], angles[block + 1]);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      FinishPairs(packed[block], result, part, turned, angles[block][part]);
    }
    ptx::FenceSharedWrites();
    Sync();
    if (Elected()) {
      const int row = row_ + RowOf(result);
      ptx::StoreBox(&arguments_.y, LowColumn(head), row, Buffer(result, 0));
      ptx::StoreBox(&arguments_.y, HighColumn(head), row, Buffer(result, 1));
      ptx::CommitStores();
    }
  }
}

}  // namespace lorad::kernels::cuda
