// The consumers of the product kernel (hopper.h): two warpgroups that multiply what the ring brings
// and send off the results.
#pragma once

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/gemm/hopper.cuh"
#include "kernels/cuda/gemm/hopper_masks.cuh"

namespace lorad::kernels::cuda {

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
      column_ = FirstColumn<Shape>(position.column_tile, arguments_);
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
  using Masks = Mask<Shape>[Shape::kRowBlocks];
  static constexpr auto kB = kContiguousOf<kProduct>;
  static constexpr bool kTurns = Shape::kRoles == Roles::kInTurns;
  static constexpr bool kSwiGlu = Shape::kFinish == Finish::kSwiGlu;
  static constexpr bool kSwiGluBackward = Shape::kFinish == Finish::kSwiGluBackward;
  static constexpr bool kExponentials = Shape::kFinish == Finish::kExponentials;
  static constexpr bool kRope = Shape::kFinish == Finish::kRope;
  // Results that may be the gradient of head and loss.
  static constexpr bool kTargetRows =
      kProduct == Product::kInputGradient && Shape::kFinish == Finish::kResult && !kTurns;
  static constexpr bool kMasks = kProduct == Product::kInputGradient;
  // The first mask is asked for so many stages before its term: they hide its way.
  static constexpr int kMaskAhead = 6;
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
    if (!kSwiGluBackward) RequestResiduals();
    int unreleased = ring_.at.stage;
    ring_.Next();
    Masks masks;
    const int mask_step = note.masked_steps == 0 ? 0 : max(1, arguments_.inner_steps - kMaskAhead);
    if (kMasks && mask_step >= arguments_.inner_steps) LoadFirstMasks(note.term, masks);
    for (int step = 1; step < arguments_.inner_steps; ++step) {
      if (kMasks && step == mask_step) LoadFirstMasks(note.term, masks);
      AwaitStage();
      MultiplyStage<false>(sums);
      // The stage before this one is no longer read.
      wgmma::WaitGroups<1>();
      Release(unreleased);
      unreleased = ring_.at.stage;
      ring_.Next();
    }
    // Earlier they would hold up the ring's copies, of which the products need every one.
    if (kSwiGluBackward) RequestResiduals();
    int left = note.term_steps + note.masked_steps;
    bool given = !kTurns || !more;
    // Products of single warps would wait for the other warpgroup's, each for many: masked terms
    // are multiplied before it begins.
    const int left_at_most = note.masked_steps > 0 ? 0 : Shape::kStageCount - 1;
    const auto give_turn = [&] {
      if (given || left > left_at_most) return;
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
    if constexpr (kMasks || kSwiGlu || kSwiGluBackward || kExponentials || kRope) {
#pragma unroll
      for (int block = 0; block < Shape::kRowBlocks; ++block) wgmma::Pin(sums[block]);
    }
    if constexpr (kMasks && kTurns) {
      for (int step = 0; step < note.masked_steps; ++step) {
        AwaitStage();
        MultiplyMaskedTerm(sums, masks, step == 0);
        next();
      }
    } else if constexpr (kMasks) {
      MultiplyMaskedTerms(sums[0], note.masked_steps, masks[0]);
    }
  }

  // The warp's first row of a block.
  __device__ int WarpRow(int block) const { return block * 64 + thread_ / 32 * 16; }
  __device__ void LoadMask(int index, int block, Mask<Shape>& mask) const {
    mask.Load(arguments_, TermAt(arguments_, shared_, index), row_ + WarpRow(block), column_);
  }
  // While products over x run. What the kernel before this one wrote must be there.
  __device__ void LoadFirstMasks(int term, Masks& masks) const {
    if (arguments_.awaits_late != 0) ptx::AwaitPreviousKernel();
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) LoadMask(term, block, masks[block]);
  }
  __device__ void MultiplyMasked(float (&sums)[Shape::kColumns / 2], int stage, int block,
                                 const Mask<Shape>& mask) const {
    const StageNote note = shared_.notes[stage];
    cuda::MultiplyMasked<Shape>(sums, ptx::SharedAddress(shared_.stages[stage]),
                                WarpRow(kTurns ? block : group_), note.products,
                                TermAt(arguments_, shared_, note.term).mask_scale, mask);
  }

  // In turns: masks of later terms are waited for.
  __device__ void MultiplyMaskedTerm(Sums& sums, Masks& masks, bool first) const {
    const int stage = ring_.at.stage;
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) {
      if (!first) LoadMask(shared_.notes[stage].term, block, masks[block]);
      MultiplyMasked(sums[block], stage, block, masks[block]);
    }
  }
  // Together: the next mask is on its way while a term is multiplied.
  __device__ void MultiplyMaskedTerms(float (&sums)[Shape::kColumns / 2], int steps,
                                      Mask<Shape>& mask) {
    if (steps == 0) return;
    AwaitStage();
    for (int step = 0; step < steps; ++step) {
      const int stage = ring_.at.stage;
      ring_.Next();
      Mask<Shape> next = mask;
      if (step + 1 < steps) {
        AwaitStage();
        LoadMask(shared_.notes[ring_.at.stage].term, 0, next);
      }
      MultiplyMasked(sums, stage, 0, mask);
      Release(stage);
      mask = next;
    }
  }

  // This thread's first or second row of a block.
  __device__ int ThreadRow(int block, int half) const {
    return row_ + block * 64 + thread_ / 32 * 16 + lane_ / 4 + 8 * half;
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

  __device__ void FinishTile(Sums& sums) {
    if constexpr (kSwiGlu) return FinishSwiGlu(sums);
    if constexpr (kSwiGluBackward) return FinishSwiGluBackward(sums);
    if constexpr (kExponentials) return FinishExponentials(sums);
    if constexpr (kRope) {
      return arguments_.bias != nullptr ? FinishRope<true>(sums) : FinishRope<false>(sums);
    }
    if constexpr (kTargetRows) {
      if (!arguments_.target_rows.empty()) return FinishTargetRows(sums);
    }
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

  // Gate, up, and what they make (hopper_swiglu.cuh).
  __device__ void FinishSwiGlu(const Sums& sums);
  __device__ void FinishSwiGluBox(const float (&sums)[Shape::kColumns / 2], int result) const;
  // The gradients of gate and up, each where it was.
  __device__ void FinishSwiGluBackward(const Sums& sums);
  __device__ void FinishSwiGluBackwardBox(const float (&sums)[Shape::kColumns / 2],
                                          int result) const;

  // Both halves of heads, turned (hopper_rope.cuh).
  struct Positions;
  struct Angles;
  using Packed = uint32_t[Shape::kColumns / 4];  // of a block
  template <bool kBias>
  __device__ void FinishRope(const Sums& sums);
  __device__ Positions LoadPositions(int block) const;
  __device__ void LoadAngles(const Positions& positions, Angles (&angles)[kRopePairs / 8]) const;
  // Of the tile's columns.
  __device__ int LowColumn(int head) const {
    return column_ + head * arguments_.rope.tables.head_size;
  }
  __device__ int HighColumn(int head) const {
    return LowColumn(head) + arguments_.rope.tables.head_size / 2;
  }
  template <bool kBias>
  __device__ void PackSums(const Sums& sums, int first, Packed (&packed)[Shape::kRowBlocks]) const;
  __device__ void FinishPairs(const Packed& packed, int result, int part, bool turned,
                              const Angles& angles) const;

  // What head and loss make of their products (hopper_loss.cuh).
  struct LossRows;
  __device__ void FinishExponentials(Sums& sums);
  __device__ LossRows LoadLossRows(int block) const;
  __device__ void TakeTargets(float (&sums)[Shape::kColumns / 2], const LossRows& rows,
                              int block) const;
  __device__ void FinishExponentialBox(const float (&sums)[Shape::kColumns / 2], int result,
                                       const LossRows& rows, LossPart (&parts)[2]) const;
  __device__ void WritePart(LossPart part, int row) const;
  struct TargetWords;
  __device__ void FinishTargetRows(const Sums& sums);
  __device__ TargetWords LoadTargetWords(int result) const;
  __device__ void FinishTargetRowsBox(const float (&sums)[Shape::kColumns / 2], int result,
                                      const TargetWords& words) const;

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
