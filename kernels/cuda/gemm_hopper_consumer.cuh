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
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

template <Product kProduct, typename Shape>
class Consumer {
 public:
  // `group`: 0 or 1.
  __device__ Consumer(const HopperArguments& arguments, SharedMemory<Shape>& shared, int group)
      : arguments_(arguments),
        shared_(shared),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        lane_(thread_ % 32),
        block_row_(static_cast<int>(ptx::ClusterRank()) * kBlockRows + (kTurns ? 0 : group * 64)) {}

  __device__ void Run() {
    const int tiles = arguments_.row_tiles * arguments_.column_tiles;
    int first = FirstTile();
    int stride = TileStride();
    if (kTurns) {
      first += group_ * stride;
      stride *= 2;
    }
    for (int tile = first; tile < tiles; tile += stride) {
      const TilePosition position = PositionOf(tile, arguments_);
      row_ = position.row_tile * kClusterRows + block_row_;
      column_ = position.column_tile * Shape::kOuts;
      if (kTurns && tile != FirstTile()) AwaitTurn();
      Sums sums;
      Accumulate(sums, tile + TileStride() < tiles);
      FinishTile(sums);
    }
    if (Elected()) ptx::WaitStoresRead<0>();
  }

 private:
  // Of 64 rows each.
  using Sums = float[Shape::kRowBlocks][Shape::kColumns / 2];
  static constexpr auto kB = kContiguousOf<kProduct>;
  static constexpr bool kTurns = Shape::kRoles == Roles::kInTurns;
  static constexpr bool kSwiGlu = Shape::kFinish == Finish::kSwiGlu;
  static constexpr bool kSwiGluBackward = Shape::kFinish == Finish::kSwiGluBackward;
  static constexpr bool kMasks = kProduct == Product::kInputGradient && !kSwiGluBackward;
  // Named barriers: of a warpgroup, and of taking turns.
  static constexpr int kGroupBarrier = 1;
  static constexpr int kTurnBarrier = 3;

  __device__ bool Elected() const { return thread_ == 0; }
  // Among the threads of this warpgroup.
  __device__ void Sync() const { ptx::SyncThreads(kGroupBarrier + group_, kWarpgroup); }

  // The other warpgroup has started its last products over x; this one goes on where its tile ends.
  __device__ void AwaitTurn() {
    ptx::SyncThreads(kTurnBarrier + group_, 2 * kWarpgroup);
    ring_.at = shared_.turns[1 - group_];
  }
  // A barrier's parity names a phase only while the one before it is done: so what is left of this
  // tile (less than the ring holds) must have arrived before the other warpgroup may await what
  // lies behind it.
  __device__ void GiveTurn(int stages_left) {
    Ring<Shape> end = ring_;
    for (int i = 0; i < stages_left; ++i) {
      AwaitStageAt(end.at);
      end.Next();
    }
    if (Elected()) shared_.turns[group_] = end.at;
    ptx::ArriveThreads(kTurnBarrier + 1 - group_, 2 * kWarpgroup);
  }

  // Rows 64 * block and on of this warpgroup's.
  __device__ uint64_t OperandX(int stage, int block) const {
    const int rows = (kTurns ? block : group_) * 64;
    return wgmma::Descriptor<wgmma::Contiguous::kInner>(ptx::SharedAddress(shared_.stages[stage]) +
                                                        rows * kBox * 2);
  }
  __device__ uint64_t OperandW(int stage) const {
    return wgmma::Descriptor<kB>(ptx::SharedAddress(shared_.stages[stage]) + Shape::kXBytes);
  }
  __device__ void AwaitStageAt(const RingPosition& at) const {
    ptx::Wait(ptx::SharedAddress(&shared_.full[at.stage]), at.parity);
  }
  __device__ void AwaitStage() const { AwaitStageAt(ring_.at); }
  // Both blocks write into the stage, so both must know.
  __device__ void Release(int stage) const {
    if (lane_ < 2) ptx::ArriveAt(ptx::SharedAddress(&shared_.empty[stage]), lane_);
  }

  // Starts the products of a stage over x, into fresh sums or onto what they hold.
  template <bool kFresh>
  __device__ void MultiplyStage(Sums& sums) {
    const uint64_t w = OperandW(ring_.at.stage);
    wgmma::Fence();
#pragma unroll
    for (int i = 0; i < kBox / 16; ++i) {
#pragma unroll
      for (int block = 0; block < Shape::kRowBlocks; ++block) {
        const uint64_t x_part =
            OperandX(ring_.at.stage, block) + i * wgmma::Step(wgmma::Contiguous::kInner);
        const uint64_t w_part = w + i * wgmma::Step(kB);
        if (kFresh && i == 0) {
          wgmma::Start<kB>(sums[block], x_part, w_part);
        } else {
          wgmma::Add<kB>(sums[block], x_part, w_part);
        }
      }
    }
    wgmma::Commit();
  }

  // The products of a stage over a term without a mask: as many as its rank asks for.
  __device__ void MultiplyTerm(Sums& sums) {
    const int products = shared_.notes[ring_.at.stage].products;
    const uint64_t w = OperandW(ring_.at.stage);
#pragma unroll
    for (int i = 0; i < kBox / 16; ++i) {
      if (i >= products) break;
      wgmma::Fence();
#pragma unroll
      for (int block = 0; block < Shape::kRowBlocks; ++block) {
        const uint64_t x = OperandX(ring_.at.stage, block);
        wgmma::Add<kB>(sums[block], x + i * wgmma::Step(wgmma::Contiguous::kInner),
                       w + i * wgmma::Step(kB));
      }
      wgmma::Commit();
    }
    wgmma::WaitGroups<0>();
  }

  // more: the other warpgroup has a tile after this one.
  __device__ void Accumulate(Sums& sums, bool more) {
    AwaitStage();
    const StageNote note = shared_.notes[ring_.at.stage];
    MultiplyStage<true>(sums);
    RequestResiduals();
    int unreleased = ring_.at.stage;
    ring_.Next();
    for (int step = 1; step < arguments_.inner_steps; ++step) {
      AwaitStage();
      MultiplyStage<false>(sums);
      // The stage before this one is no longer read.
      wgmma::WaitGroups<1>();
      Release(unreleased);
      unreleased = ring_.at.stage;
      ring_.Next();
    }
    int left = note.term_steps + note.masked_steps;
    bool given = !kTurns || !more;
    const auto give_turn = [&] {
      if (given || left >= Shape::kStageCount) return;
      GiveTurn(left);
      given = true;
    };
    const auto next = [&] {
      Release(ring_.at.stage);
      ring_.Next();
      --left;
      give_turn();
    };
    give_turn();
    wgmma::WaitGroups<0>();
    Release(unreleased);
    for (int step = 0; step < note.term_steps; ++step) {
      AwaitStage();
      MultiplyTerm(sums);
      next();
    }
    if constexpr (kMasks || kSwiGlu || kSwiGluBackward) {
#pragma unroll
      for (int block = 0; block < Shape::kRowBlocks; ++block) wgmma::Pin(sums[block]);
    }
    if constexpr (kMasks && kTurns) {
      for (int step = 0; step < note.masked_steps; ++step) {
        AwaitStage();
        MultiplyMaskedTerm(sums);
        next();
      }
    } else if constexpr (kMasks) {
      MultiplyMaskedTerms(sums[0], note.masked_steps);
    }
  }

  // A mask's bits in this thread's two rows of a block of the tile, this thread's first column
  // lowest.
  struct Mask {
    uint32_t words[2][Shape::kColumns / 32];
    float scale;
  };
  __device__ void LoadMask(int index, int block, Mask& mask) const {
    const TermNote term = TermAt(arguments_, shared_, index);
    mask.scale = term.mask_scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_ + block * 64 + thread_ / 32 * 16 + lane_ / 4 + 8 * i;
      const int64_t first = int64_t{row} * term.mask_row_words + column_ / 32;
#pragma unroll
      for (int j = 0; j < Shape::kColumns / 32; j += 2) {
        uint2 two = {0, 0};
        if (row < arguments_.rows && column_ + j * 32 < arguments_.columns) {
          two = __ldg(reinterpret_cast<const uint2*>(term.mask_words + first + j));
        }
        mask.words[i][j] = two.x;
        mask.words[i][j + 1] = two.y;
      }
    }
  }

  // In turns: the other warpgroup's products hide that masks must be waited for.
  __device__ void MultiplyMaskedTerm(Sums& sums) const {
    const StageNote note = shared_.notes[ring_.at.stage];
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) {
      Mask mask;
      LoadMask(note.term, block, mask);
      MultiplyMasked(sums[block], ring_.at.stage, block, note.products, mask);
    }
  }
  // Together: the next mask is on its way while a term is multiplied.
  __device__ void MultiplyMaskedTerms(float (&sums)[Shape::kColumns / 2], int steps) {
    if (steps == 0) return;
    Mask mask;
    AwaitStage();
    LoadMask(shared_.notes[ring_.at.stage].term, 0, mask);
    for (int step = 0; step < steps; ++step) {
      const int stage = ring_.at.stage;
      ring_.Next();
      Mask next = mask;
      if (step + 1 < steps) {
        AwaitStage();
        LoadMask(shared_.notes[ring_.at.stage].term, 0, next);
      }
      MultiplyMasked(sums, stage, 0, shared_.notes[stage].products, mask);
      Release(stage);
      mask = next;
    }
  }

  // sums += mask o (S_t A_t), 16 columns at a time by products of single warps: their results take
  // few registers and lie as the warpgroup's do.
  __device__ void MultiplyMasked(float (&sums)[Shape::kColumns / 2], int stage, int block,
                                 int products, const Mask& mask) const {
    // Lane l names row l % 8 of matrix l / 8.
    const int half = lane_ / 8 % 2 * 8 + lane_ % 8;
    const int first_row = (kTurns ? block : group_) * 64 + thread_ / 32 * 16;
    const uint32_t address = ptx::SharedAddress(shared_.stages[stage]);
    const uint32_t s_row = address + (first_row + half) * kBox * 2;
    const uint32_t a_row = address + Shape::kXBytes + half * kBox * 2;
#pragma unroll
    for (int first = 0; first < Shape::kColumns; first += 16) {
      const uint32_t place = a_row + first / kBox * wgmma::kBoxBytes +
                             (((first % kBox / 8 + lane_ / 16) ^ (lane_ % 8)) * 16);
      float part[2][4] = {};
#pragma unroll
      for (int k = 0; k < kBox / 16; ++k) {
        if (k >= products) break;
        uint32_t s[4];
        uint32_t a[4];
        ptx::LoadMatrices(s_row + (((2 * k + lane_ / 16) ^ (lane_ % 8)) * 16), s);
        ptx::LoadMatricesTransposed(place + k * 16 * kBox * 2, a);
        ptx::Multiply(part[0], s, a[0], a[1]);
        ptx::Multiply(part[1], s, a[2], a[3]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int bit = first % 32 + i / 4 * 8 + i % 2;
        const uint32_t word = mask.words[i / 2 % 2][first / 32] >> (2 * (lane_ % 4));
        if ((word >> bit) & 1) sums[first / 2 + i] += mask.scale * part[i / 4][i % 4];
      }
    }
    __syncwarp();
  }

  // Results are made and sent off in boxes of 64 rows and columns, block by block of rows.
  __device__ static int RowOf(int result) { return result / Shape::kOutBoxes * 64; }
  __device__ static int ColumnOf(int result) { return result % Shape::kOutBoxes * Shape::kOutBox; }
  __device__ uint32_t Buffer(int result, int part = 0) const {
    return ptx::SharedAddress(shared_.results[group_][result % Shape::kBufferCount][part]);
  }
  __device__ uint32_t ResidualBarrier(int result) const {
    return ptx::SharedAddress(&shared_.residual[group_][result % Shape::kBufferCount]);
  }

  // By the elected thread: the residual (or gate and up) to where the result will be made.
  __device__ void RequestResidual(int result) const {
    const int column = column_ + ColumnOf(result);
    const int row = row_ + RowOf(result);
    const uint32_t barrier = ResidualBarrier(result);
    ptx::ArriveExpect(barrier, Shape::kParts * wgmma::kBoxBytes);
    if constexpr (kSwiGluBackward) {
      ptx::LoadBox(Buffer(result, 0), &arguments_.gate, column, row, barrier);
      ptx::LoadBox(Buffer(result, 1), &arguments_.up, column, row, barrier);
    } else {
      ptx::LoadBox(Buffer(result), &arguments_.residual, column, row, barrier);
    }
  }
  __device__ void RequestResiduals() const {
    if (!kSwiGluBackward && arguments_.has_residual == 0) return;
    if (Elected()) {
      ptx::WaitStoresRead<0>();
      for (int result = 0; result < Shape::kBufferCount; ++result) RequestResidual(result);
    }
    __syncwarp();
  }

  __device__ void FinishTile(const Sums& sums) {
    if constexpr (kSwiGlu) return FinishSwiGlu(sums);
    if constexpr (kSwiGluBackward) return FinishSwiGluBackward(sums);
    const bool bias = arguments_.bias != nullptr;
    const bool residual = arguments_.has_residual != 0;
    if (bias) return residual ? FinishWith<true, true>(sums) : FinishWith<true, false>(sums);
    residual ? FinishWith<false, true>(sums) : FinishWith<false, false>(sums);
  }

  // Bias and residual, rounding, and off they go.
  template <bool kBias, bool kResidual>
  __device__ void FinishWith(const Sums& sums) {
    constexpr int kUses = Shape::kResults / Shape::kBufferCount;  // of a buffer
#pragma unroll
    for (int result = 0; result < Shape::kResults; ++result) {
      if (Elected()) {
        ptx::WaitStoresRead<Shape::kBufferCount - 1>();
        if (kResidual && result >= Shape::kBufferCount) RequestResidual(result);
      }
      Sync();
      if (kResidual) {
        ptx::Wait(ResidualBarrier(result), residual_parity_ ^ (result / Shape::kBufferCount % 2));
      }
      FinishBox<kBias, kResidual>(sums[result / Shape::kOutBoxes], result);
      ptx::FenceSharedWrites();
      Sync();
      if (Elected()) {
        ptx::StoreBox(&arguments_.y, column_ + ColumnOf(result), row_ + RowOf(result),
                      Buffer(result));
        ptx::CommitStores();
      }
    }
    if (kResidual && kUses % 2 == 1) residual_parity_ ^= 1;
  }

  template <bool kBias, bool kResidual>
  __device__ void FinishBox(const float (&sums)[Shape::kColumns / 2], int result) const {
    // Lane l names row l % 8 of matrix l / 8: two of rows, then two of columns. 16 bytes of a row
    // lie at their number xor the row's.
    const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
    const uint32_t address = Buffer(result) + row * kBox * 2 + ((lane_ / 16) ^ (lane_ % 8)) * 16;
#pragma unroll
    for (int j = 0; j < kBox / 8; j += 2) {
      const uint32_t place = address ^ (j * 16);
      uint32_t old[4];
      if (kResidual) ptx::LoadMatrices(place, old);
      float2 bias[2] = {};
      if (kBias) {
        bias[0] = Bias(column_ + ColumnOf(result) + j * 8);
        bias[1] = Bias(column_ + ColumnOf(result) + j * 8 + 8);
      }
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = ColumnOf(result) / 2 + j * 4 + 2 * i;
        float2 value = {sums[at], sums[at + 1]};
        if (kBias) value = {value.x + bias[i / 2].x, value.y + bias[i / 2].y};
        if (kResidual) {
          const float2 before = Unpack(old[i]);
          value = {value.x + before.x, value.y + before.y};
        }
        packed[i] = Pack(value.x, value.y);
      }
      ptx::StoreMatrices(place, packed);
    }
  }

  // Gate, up, and what they make (gemm_hopper_swiglu.cuh).
  __device__ void FinishSwiGlu(const Sums& sums);
  __device__ void FinishSwiGluBox(const float (&sums)[Shape::kColumns / 2], int result) const;
  // The gradients of gate and up, each where it was.
  __device__ void FinishSwiGluBackward(const Sums& sums);
  __device__ void FinishSwiGluBackwardBox(const float (&sums)[Shape::kColumns / 2],
                                          int result) const;

  // Of this thread's two columns among eight from `column`.
  __device__ float2 Bias(int column) const {
    const auto* bias = static_cast<const __nv_bfloat16*>(arguments_.bias);
    column += 2 * (lane_ % 4);
    if (column + 1 < arguments_.columns) {
      return Unpack(__ldg(reinterpret_cast<const uint32_t*>(bias + column)));
    }
    return {column < arguments_.columns ? __bfloat162float(bias[column]) : 0.0f, 0.0f};
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
