// The consumers of the product kernel (gemm_hopper.h): two warpgroups that multiply what the ring
// brings and send off the results.
#ifndef LORAD_KERNELS_CUDA_GEMM_HOPPER_CONSUMER_CUH_
#define LORAD_KERNELS_CUDA_GEMM_HOPPER_CONSUMER_CUH_

#include <cuda_bf16.h>

#include "kernels/cuda/gemm_hopper.cuh"

namespace lorad::kernels::cuda {

__device__ inline uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float2 Unpack(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

template <Product kProduct, typename Shape>
class Consumer {
 public:
  // `group`: 0 or 1, the 64 rows of the block that are this warpgroup's.
  __device__ Consumer(const HopperArguments& arguments, SharedMemory<Shape>& shared, int group)
      : arguments_(arguments),
        shared_(shared),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        lane_(thread_ % 32),
        block_row_(static_cast<int>(ptx::ClusterRank()) * kBlockRows + group * 64) {}

  __device__ void Run() {
    const int tiles = arguments_.row_tiles * arguments_.column_tiles;
    for (int tile = FirstTile(); tile < tiles; tile += TileStride()) {
      const TilePosition position = PositionOf(tile, arguments_);
      row_ = position.row_tile * kClusterRows + block_row_;
      column_ = position.column_tile * Shape::kColumns;
      float sums[Shape::kColumns / 2];
      Accumulate(sums);
      Finish(sums);
    }
    if (Elected()) ptx::WaitStoresRead<0>();
  }

 private:
  using Sums = float[Shape::kColumns / 2];
  static constexpr auto kB =
      kProduct == Product::kForward ? wgmma::Contiguous::kInner : wgmma::Contiguous::kOuter;

  __device__ bool Elected() const { return thread_ == 0; }
  // Among the threads of this warpgroup.
  __device__ void Sync() const { ptx::SyncThreads(1 + group_, kWarpgroup); }

  __device__ uint64_t OperandX(int stage) const {
    return wgmma::Descriptor<wgmma::Contiguous::kInner>(ptx::SharedAddress(shared_.stages[stage]) +
                                                        group_ * 64 * kBox * 2);
  }
  __device__ uint64_t OperandW(int stage) const {
    return wgmma::Descriptor<kB>(ptx::SharedAddress(shared_.stages[stage]) + Shape::kXBytes);
  }
  __device__ void AwaitStage() const {
    ptx::Wait(ptx::SharedAddress(&shared_.full[ring_.stage]), ring_.parity);
  }
  // Both blocks write into the stage, so both must know.
  __device__ void Release(int stage) const {
    if (lane_ < 2) ptx::ArriveAt(ptx::SharedAddress(&shared_.empty[stage]), lane_);
  }

  // Starts the products of a stage over x, into fresh sums or onto what they hold.
  template <bool kFresh>
  __device__ void MultiplyStage(Sums& sums) {
    const uint64_t x = OperandX(ring_.stage);
    const uint64_t w = OperandW(ring_.stage);
    wgmma::Fence();
#pragma unroll
    for (int i = 0; i < kBox / 16; ++i) {
      const uint64_t x_part = x + i * wgmma::Step(wgmma::Contiguous::kInner);
      const uint64_t w_part = w + i * wgmma::Step(kB);
      if (kFresh && i == 0) {
        wgmma::Start<kB>(sums, x_part, w_part);
      } else {
        wgmma::Add<kB>(sums, x_part, w_part);
      }
    }
    wgmma::Commit();
  }

  // The products of a stage over a term without a mask: as many as its rank asks for.
  __device__ void MultiplyTerm(Sums& sums) {
    const int products = shared_.notes[ring_.stage].products;
    const uint64_t x = OperandX(ring_.stage);
    const uint64_t w = OperandW(ring_.stage);
#pragma unroll
    for (int i = 0; i < kBox / 16; ++i) {
      if (i >= products) break;
      wgmma::Fence();
      wgmma::Add<kB>(sums, x + i * wgmma::Step(wgmma::Contiguous::kInner), w + i * wgmma::Step(kB));
      wgmma::Commit();
    }
    wgmma::WaitGroups<0>();
  }

  __device__ void Accumulate(Sums& sums) {
    AwaitStage();
    const int term_steps = shared_.notes[ring_.stage].term_steps;
    const int masked_steps = shared_.notes[ring_.stage].masked_steps;
    MultiplyStage<true>(sums);
    RequestResiduals();
    int unreleased = ring_.stage;
    ring_.Next();
    for (int step = 1; step < arguments_.inner_steps; ++step) {
      AwaitStage();
      MultiplyStage<false>(sums);
      // The stage before this one is no longer read.
      wgmma::WaitGroups<1>();
      Release(unreleased);
      unreleased = ring_.stage;
      ring_.Next();
    }
    wgmma::WaitGroups<0>();
    Release(unreleased);
    for (int step = 0; step < term_steps; ++step) {
      AwaitStage();
      MultiplyTerm(sums);
      Release(ring_.stage);
      ring_.Next();
    }
    if constexpr (kProduct == Product::kInputGradient) {
      wgmma::Pin(sums);
      for (int step = 0; step < masked_steps; ++step) {
        AwaitStage();
        MultiplyMasked(sums);
        Release(ring_.stage);
        ring_.Next();
      }
    }
  }

  // sums += mask o (S_t A_t), 16 columns at a time by products of single warps: their results take
  // few registers and lie as the warpgroup's do.
  __device__ void MultiplyMasked(Sums& sums) {
    const StageNote note = shared_.notes[ring_.stage];
    const LowRankTerm& term = arguments_.terms.terms[note.term];
    const float scale = term.mask_scale;
    // Lane l names row l % 8 of matrix l / 8.
    const int half = lane_ / 8 % 2 * 8 + lane_ % 8;
    const uint32_t stage = ptx::SharedAddress(shared_.stages[ring_.stage]);
    const uint32_t s_row = stage + (group_ * 64 + thread_ / 32 * 16 + half) * kBox * 2;
    const uint32_t a_row = stage + Shape::kXBytes + half * kBox * 2;
    uint32_t s[kBox / 16][4];
#pragma unroll
    for (int k = 0; k < kBox / 16; ++k) {
      ptx::LoadMatrices(s_row + (((2 * k + lane_ / 16) ^ (lane_ % 8)) * 16), s[k]);
    }
#pragma unroll
    for (int first = 0; first < Shape::kColumns; first += 16) {
      const uint32_t place = a_row + first / kBox * wgmma::kBoxBytes +
                             (((first % kBox / 8 + lane_ / 16) ^ (lane_ % 8)) * 16);
      float part[2][4] = {};
#pragma unroll
      for (int k = 0; k < kBox / 16; ++k) {
        if (k >= note.products) break;
        uint32_t a[4];
        ptx::LoadMatricesTransposed(place + k * 16 * kBox * 2, a);
        ptx::MultiplyOfWarp(part[0], s[k], a[0], a[1]);
        ptx::MultiplyOfWarp(part[1], s[k], a[2], a[3]);
      }
      const uint32_t words[2] = {MaskWord(term, first, 0), MaskWord(term, first, 8)};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int bit = first % 32 + i / 4 * 8 + i % 2;
        const bool kept = (words[i / 2 % 2] >> bit) & 1;
        if (kept) sums[first / 2 + i] += scale * part[i / 4][i % 4];
      }
    }
    __syncwarp();
  }

  // Mask bits of 32 columns around `column` of the tile, this thread's first column lowest, in its
  // first row plus `row`.
  __device__ uint32_t MaskWord(const LowRankTerm& term, int column, int row) const {
    row += row_ + thread_ / 32 * 16 + lane_ / 4;
    column += column_;
    if (row >= arguments_.rows || column >= arguments_.columns) return 0;
    return __ldg(term.mask_words + row * term.mask_row_words + column / 32) >> (2 * (lane_ % 4));
  }

  __device__ uint32_t Buffer(int box) const {
    return ptx::SharedAddress(shared_.results[group_][box % Shape::kBufferCount]);
  }
  __device__ uint32_t ResidualBarrier(int box) const {
    return ptx::SharedAddress(&shared_.residual[group_][box % Shape::kBufferCount]);
  }

  // By the elected thread: the residual of box `box` to where its results will be made.
  __device__ void RequestResidual(int box) const {
    ptx::ArriveExpect(ResidualBarrier(box), wgmma::kBoxBytes);
    ptx::LoadBox(Buffer(box), &arguments_.residual, column_ + box * kBox, row_,
                 ResidualBarrier(box));
  }
  __device__ void RequestResiduals() const {
    if (arguments_.has_residual == 0) return;
    if (Elected()) {
      ptx::WaitStoresRead<0>();
      for (int box = 0; box < Shape::kBufferCount; ++box) RequestResidual(box);
    }
    __syncwarp();
  }

  // Bias and residual, rounding, and off they go: kRoundBoxes boxes at a time.
  __device__ void Finish(const Sums& sums) {
    constexpr int kRound = Shape::kRoundBoxes;
#pragma unroll
    for (int first = 0; first < Shape::kBoxes; first += kRound) {
      if (Elected()) {
        ptx::WaitStoresRead<Shape::kBufferCount / kRound - 1>();
        if (arguments_.has_residual != 0 && first >= Shape::kBufferCount) {
#pragma unroll
          for (int box = first; box < first + kRound; ++box) RequestResidual(box);
        }
      }
      Sync();
#pragma unroll
      for (int box = first; box < first + kRound; ++box) FinishBox(sums, box);
      ptx::FenceSharedWrites();
      Sync();
      if (Elected()) {
#pragma unroll
        for (int box = first; box < first + kRound; ++box) {
          ptx::StoreBox(&arguments_.y, column_ + box * kBox, row_, Buffer(box));
        }
        ptx::CommitStores();
      }
    }
    if (arguments_.has_residual != 0 && Shape::kBoxes / Shape::kBufferCount % 2 == 1) {
      residual_parity_ ^= 1;
    }
  }

  __device__ void FinishBox(const Sums& sums, int box) {
    const bool residual = arguments_.has_residual != 0;
    if (residual) {
      ptx::Wait(ResidualBarrier(box), residual_parity_ ^ (box / Shape::kBufferCount % 2));
    }
    // Lane l names row l % 8 of matrix l / 8: two of rows, then two of columns.
    const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
    const uint32_t address = Buffer(box) + row * kBox * 2;
#pragma unroll
    for (int j = 0; j < kBox / 8; j += 2) {
      const uint32_t place = address + (((j + lane_ / 16) ^ (lane_ % 8)) * 16);
      uint32_t old[4] = {};
      if (residual) ptx::LoadMatrices(place, old);
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 value = {sums[box * 32 + j * 4 + 2 * i], sums[box * 32 + j * 4 + 2 * i + 1]};
        if (arguments_.bias != nullptr) AddBias(column_ + box * kBox + (j + i / 2) * 8, value);
        if (residual) {
          const float2 before = Unpack(old[i]);
          value = {value.x + before.x, value.y + before.y};
        }
        packed[i] = Pack(value.x, value.y);
      }
      ptx::StoreMatrices(place, packed);
    }
  }

  // column: of the first of 8.
  __device__ void AddBias(int column, float2& value) const {
    const auto* bias = static_cast<const __nv_bfloat16*>(arguments_.bias);
    column += 2 * (lane_ % 4);
    if (column < arguments_.columns) value.x += __bfloat162float(bias[column]);
    if (column + 1 < arguments_.columns) value.y += __bfloat162float(bias[column + 1]);
  }

  const HopperArguments& arguments_;
  SharedMemory<Shape>& shared_;
  const int group_;
  const int thread_;  // of the warpgroup
  const int lane_;
  const int block_row_;  // in the cluster's tile
  int row_ = 0;          // of the tile's part that is this warpgroup's
  int column_ = 0;       // of the tile
  uint32_t residual_parity_ = 0;
  Ring<Shape> ring_;
};

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_GEMM_HOPPER_CONSUMER_CUH_
