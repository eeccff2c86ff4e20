// What the roles of attention's backward (backward.h) share: shared memory, the items of work, the
// warp that fills the ring.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/backward.h"
#include "kernels/cuda/device/ptx_hopper.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace lorad::kernels::cuda::backward {

// Which gradients a kernel makes.
enum class Part {
  kKeys,     // dk and dv: holds k and v, q and dout pass by
  kQueries,  // dq: holds q and dout, k and v pass by
};

inline constexpr int kGroups = kBackwardRows / 64;  // warpgroups that multiply
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = (kGroups + 1) * kWarpgroup;
inline constexpr uint32_t kBoxRowBytes = 2 * kBackwardBox;
inline constexpr int kBoxPairFloats = kBackwardBox / 2 * kPairFloats;

// kStep rows that pass by at a time, in a ring of kRing; room for the rows of kHold items.
// kWindowed: queries see arguments.window keys.
template <int kHeadSize, int kStep, int kRing, int kHold, bool kWindowed>
struct Shape {
  static constexpr bool kWindow = kWindowed;
  // dv is added to before dp is there, which takes fewer registers.
  static constexpr bool kValuesEarly = kHeadSize > 64;
  // What an item leaves is written while the next one's first scores are made, which takes more.
  static constexpr bool kOverlap = kHeadSize <= 64;
  static constexpr int kD = kHeadSize;
  static constexpr int kRows = kStep;
  static constexpr int kStages = kRing;
  static constexpr int kHolds = kHold;
  static constexpr int kBoxes = kHeadSize / kBackwardBox;
  // Of all rows, 64 columns wide.
  static constexpr uint32_t kHeldColumn = kBackwardRows * kBoxRowBytes;
  static constexpr uint32_t kStageColumn = kStep * kBoxRowBytes;
  static constexpr uint32_t kHeldBytes = kBoxes * kHeldColumn;
  static constexpr uint32_t kStageBytes = kBoxes * kStageColumn;
};

struct Item {
  AttentionUnit unit;
  int head;  // of keys and values (kKeys) or of queries; -1: no item

  // Tiles of S::kRows rows that pass by, for each head that does: [first, end).
  template <Part kPart, typename S>
  __device__ int FirstTile(int window) const {
    if constexpr (kPart == Part::kKeys) return unit.start / S::kRows;
    return S::kWindow ? max(unit.start - window + 1, 0) / S::kRows : 0;
  }
  template <Part kPart, typename S>
  __device__ int EndTile(int window) const {
    int rows = kPart == Part::kKeys ? unit.rows : min(unit.rows, unit.start + kBackwardRows);
    if constexpr (S::kWindow && kPart == Part::kKeys) {
      rows = min(rows, unit.start + kBackwardRows - 1 + window);
    }
    return (rows + S::kRows - 1) / S::kRows;
  }
};

template <typename S>
struct Memory {
  unsigned char held[S::kHolds][2][S::kHeldBytes];
  unsigned char stages[S::kStages][2][S::kStageBytes];
  // AttentionBackwardArguments::pairs of the stages' queries, or of those that are held, two boxes
  // an item.
  float pairs[S::kStages > 2 * S::kHolds ? S::kStages : 2 * S::kHolds][kBoxPairFloats];
  uint64_t full[S::kStages];
  uint64_t empty[S::kStages];
  uint64_t held_full[S::kHolds];
  uint64_t held_empty[S::kHolds];
  uint64_t partial;        // a stage whose last rows are to be cleared
  Item items[S::kHolds];   // whose rows are held; head -1: no more
  int indices[S::kHolds];  // of the items; -1: no more
};

template <typename S>
__device__ void InitBarriers(Memory<S>& shared) {
  constexpr int kWarps = kGroups * kWarpgroup / 32;
  for (int i = 0; i < S::kStages; ++i) {
    ptx::InitBarrier(ptx::SharedAddress(&shared.full[i]), 1);
    ptx::InitBarrier(ptx::SharedAddress(&shared.empty[i]), kWarps);
  }
  for (int i = 0; i < S::kHolds; ++i) {
    ptx::InitBarrier(ptx::SharedAddress(&shared.held_full[i]), 1);
    ptx::InitBarrier(ptx::SharedAddress(&shared.held_empty[i]), kWarps);
  }
  ptx::InitBarrier(ptx::SharedAddress(&shared.partial), 1);
  ptx::FenceBarrierInit();
}

// A place in a ring of kCount, and the parity of its phase.
template <int kCount>
struct Ring {
  int at = 0;
  uint32_t parity = 0;

  __device__ void Next() {
    if (++at == kCount) {
      at = 0;
      parity ^= 1;
    }
  }
};

// The same in all lanes, and the compiler shall know it.
__device__ inline int Uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

template <Part kPart>
__device__ int HeadsOf(const AttentionBackwardArguments& a) {
  return kPart == Part::kKeys ? a.kv_heads : a.heads;
}
template <Part kPart>
__device__ int ItemCount(const AttentionBackwardArguments& a) {
  return a.unit_count * HeadsOf<kPart>(a);
}
static_assert(sizeof(AttentionUnit) == sizeof(int4));
template <Part kPart>
__device__ Item ItemAt(const AttentionBackwardArguments& a, int index) {
  const int heads = HeadsOf<kPart>(a);
  // Volatile, or the compiler would keep what it read the first time.
  int4 unit;
  asm volatile("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(a.units + index / heads));
  return {{Uniform(unit.x), Uniform(unit.y), Uniform(unit.z), Uniform(unit.w)}, index % heads};
}

// One warp.
template <Part kPart, typename S>
class Producer {
 public:
  __device__ Producer(const AttentionBackwardArguments& arguments, Memory<S>& shared)
      : a_(arguments), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void Run() {
    const int sharing = a_.heads / a_.kv_heads;
    while (true) {
      const int index = Take();
      ptx::Wait(ptx::SharedAddress(&shared_.held_empty[hold_.at]), hold_.parity ^ 1);
      if (index >= ItemCount<kPart>(a_)) break;
      const Item item = ItemAt<kPart>(a_, index);
      Hold(item, index);
      const int first = item.FirstTile<kPart, S>(a_.window);
      const int end = item.EndTile<kPart, S>(a_.window);
      const int head = kPart == Part::kKeys ? item.head * sharing : item.head / sharing;
      for (int h = 0; h < (kPart == Part::kKeys ? sharing : 1); ++h) {
        for (int tile = first; tile < end; ++tile) Fill(item.unit, head + h, tile * S::kRows);
      }
    }
    if (lane_ == 0) {
      shared_.items[hold_.at].head = -1;
      shared_.indices[hold_.at] = -1;
      ptx::Arrive(ptx::SharedAddress(&shared_.held_full[hold_.at]));
    }
  }

 private:
  // The next item, which no other block has.
  __device__ int Take() const {
    int index = 0;
    if (lane_ == 0) index = atomicAdd(a_.taken, 1);
    return __shfl_sync(0xffffffff, index, 0);
  }

  // Columns of a head, kRows rows from `row` on, as boxes.
  template <int kRows>
  __device__ void Load(uint32_t to, const TensorMap& map, int head, int row, uint32_t barrier) {
#pragma unroll
    for (int column = 0; column < S::kD; column += kBackwardBox) {
#pragma unroll
      for (int r = 0; r < kRows; r += kBackwardBox) {
        ptx::LoadBox(to, &map, head * S::kD + column, row + r, barrier);
        to += wgmma::kBoxBytes;
      }
    }
  }

  // lse and delta of a head's queries [row, row + kBackwardBox) of a sequence.
  static constexpr uint32_t kPairBytes = kBoxPairFloats * sizeof(float);
  __device__ void LoadPairs(float* to, const AttentionUnit& unit, int head, int row,
                            uint32_t barrier) const {
    const int64_t from = (head * a_.scratch_stride + unit.scratch_row + row) / 2 * kPairFloats;
    ptx::CopyBulk(ptx::SharedAddress(to), a_.pairs + from, kPairBytes, barrier);
  }

  __device__ void Hold(const Item& item, int index) {
    if (lane_ == 0) {
      shared_.items[hold_.at] = item;
      shared_.indices[hold_.at] = index;
      const uint32_t barrier = ptx::SharedAddress(&shared_.held_full[hold_.at]);
      const int row = item.unit.first_row + item.unit.start;
      // Vectors have room for rows after a sequence's end up to a box's: no more are read.
      const int boxes = item.unit.start + kBackwardBox < item.unit.rows ? 2 : 1;
      ptx::ArriveExpect(barrier,
                        2 * S::kHeldBytes + (kPart == Part::kQueries ? boxes * kPairBytes : 0));
      if (kPart == Part::kQueries) {
        for (int i = 0; i < boxes; ++i) {
          LoadPairs(shared_.pairs[2 * hold_.at + i], item.unit, item.head,
                    item.unit.start + i * kBackwardBox, barrier);
        }
      }
      Load<kBackwardRows>(ptx::SharedAddress(shared_.held[hold_.at][0]),
                          kPart == Part::kKeys ? a_.k : a_.q, item.head, row, barrier);
      Load<kBackwardRows>(ptx::SharedAddress(shared_.held[hold_.at][1]),
                          kPart == Part::kKeys ? a_.v : a_.dout, item.head, row, barrier);
    }
    __syncwarp();
    hold_.Next();
  }

  // Rows [row, row + kRows) of the sequence into the next stage, zeros after its end.
  __device__ void Fill(const AttentionUnit& unit, int head, int row) {
    ptx::Wait(ptx::SharedAddress(&shared_.empty[ring_.at]), ring_.parity ^ 1);
    const int left = unit.rows - row;
    const uint32_t full = ptx::SharedAddress(&shared_.full[ring_.at]);
    const uint32_t barrier = left >= S::kRows ? full : ptx::SharedAddress(&shared_.partial);
    if (lane_ == 0) {
      ptx::ArriveExpect(barrier, 2 * S::kStageBytes + (kPart == Part::kKeys ? kPairBytes : 0));
      const int at = unit.first_row + row;
      Load<S::kRows>(ptx::SharedAddress(shared_.stages[ring_.at][0]),
                     kPart == Part::kKeys ? a_.q : a_.k, head, at, barrier);
      Load<S::kRows>(ptx::SharedAddress(shared_.stages[ring_.at][1]),
                     kPart == Part::kKeys ? a_.dout : a_.v, head, at, barrier);
      if (kPart == Part::kKeys) {
        static_assert(S::kRows == kBackwardBox);
        LoadPairs(shared_.pairs[ring_.at], unit, head, row, barrier);
      }
    }
    __syncwarp();
    if (left < S::kRows) {
      ptx::Wait(barrier, partial_parity_);
      partial_parity_ ^= 1;
      Clear(left);
      ptx::FenceSharedWrites();
      __syncwarp();
      if (lane_ == 0) ptx::Arrive(full);
    }
    ring_.Next();
  }

  // Rows [from, kRows) of the stage. The swizzle stays inside a row of a box.
  __device__ void Clear(int from) {
    constexpr int kParts = static_cast<int>(kBoxRowBytes) / 16;
    for (int i = from * kParts + lane_; i < S::kRows * kParts; i += 32) {
#pragma unroll
      for (int tensor = 0; tensor < 2; ++tensor) {
#pragma unroll
        for (int box = 0; box < S::kBoxes; ++box) {
          auto* column =
              reinterpret_cast<uint4*>(shared_.stages[ring_.at][tensor] + box * S::kStageColumn);
          column[i] = {0, 0, 0, 0};
        }
      }
    }
  }

  const AttentionBackwardArguments& a_;
  Memory<S>& shared_;
  const int lane_;
  Ring<S::kStages> ring_;
  Ring<S::kHolds> hold_;
  uint32_t partial_parity_ = 0;
};

}  // namespace lorad::kernels::cuda::backward
