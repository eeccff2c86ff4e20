// What the warpgroups of both parts of attention's backward (backward.h) have in common: rings,
// turns, where results go.
#pragma once

#include <cstddef>

#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/attention/backward_products.cuh"

namespace lorad::kernels::cuda::backward {

// A warpgroup: 64 of an item's rows.
template <Part kPart, typename S>
class Consumer {
 protected:
  using P = Products<S>;
  static_assert(kGroups == 2);

  __device__ Consumer(const AttentionBackwardArguments& arguments, Memory<S>& shared, int group)
      : a_(arguments),
        shared_(shared),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane_ / 4),
        column_(lane_ % 4 * 2),
        score_scale_(arguments.scale * kLog2E) {
    // Kept, or the compiler would ask a special register at every use.
    uint32_t base = ptx::SharedAddress(&shared);
    asm volatile("" : "+r"(base));
    base_ = static_cast<uint32_t>(Uniform(static_cast<int>(base)));
  }

  // ---- rings ----

  // Until the rows of the next item are held. Then it is the one that is held up to NextItem, which
  // comes last: sooner, and the compiler would know no longer that rings' places are uniform.
  __device__ void AwaitItem() {
    ptx::Wait(base_ + offsetof(M, held_full) + 8 * hold_.at, hold_.parity);
    held_ = Uniform(hold_.at);
  }
  __device__ void NextItem() { hold_.Next(); }
  // Its head is -1 if there is none.
  __device__ Item HeldItem() const {
    const auto* from = reinterpret_cast<const volatile int*>(&shared_.items[held_]);
    return {{Uniform(from[0]), Uniform(from[1]), Uniform(from[2]), Uniform(from[3])},
            Uniform(from[4])};
  }
  __device__ uint32_t Held(int tensor) const {
    return base_ + offsetof(M, held) + (2 * held_ + tensor) * S::kHeldBytes +
           group_ * wgmma::kBoxBytes;
  }
  __device__ void ReleaseHeld() const { Release(base_ + offsetof(M, held_empty) + 8 * held_); }
  __device__ uint32_t Stage(int stage, int tensor) const {
    return base_ + offsetof(M, stages) + (2 * stage + tensor) * S::kStageBytes;
  }
  // The next stage, when it is there.
  __device__ int NextStage() {
    ptx::Wait(base_ + offsetof(M, full) + 8 * ring_.at, ring_.parity);
    const int stage = Uniform(ring_.at);
    ring_.Next();
    return stage;
  }
  __device__ void ReleaseStage(int stage) const { Release(base_ + offsetof(M, empty) + 8 * stage); }

  // ---- turns ----

  // The warpgroups start their products in turns, one for each stage, so that one multiplies while
  // the other takes exponentials: left alone they fall into step and do the same at the same time.
  __device__ void TakeTurn() const {
    ptx::SyncThreads(kTurnBarrier + group_, kGroups * kWarpgroup);
  }
  __device__ void GiveTurn() const {
    ptx::ArriveThreads(kTurnBarrier + 1 - group_, kGroups * kWarpgroup);
  }
  // First and last of all.
  __device__ void BeginTurns() const {
    if (group_ == 1) GiveTurn();
  }
  __device__ void EndTurns() const {
    if (group_ == 0) TakeTurn();
  }
  // Of a stage that this warpgroup has no use for.
  __device__ void Skip(int stage) const {
    TakeTurn();
    GiveTurn();
    ReleaseStage(stage);
  }

  // ---- results ----

  // Where results of this warpgroup go.
  struct Place {
    int first_row;  // of its rows, in the microbatch
    int rows;       // that there are of them
    int head;
  };
  __device__ Place PlaceOf(const Item& item) const {
    const int start = item.unit.start + group_ * 64;
    return {item.unit.first_row + start, item.unit.rows - start, item.head};
  }
  using Angles = backward::Angles<S::kD>;
  __device__ bool Turned() const { return a_.positions != nullptr; }
  __device__ Angles AnglesOf(const Place& place) const {
    return LoadAngles<S::kD>(a_, place.first_row, place.rows);
  }
  __device__ void Write(const typename P::Results& results, float factor, const Place& place,
                        void* to, int64_t stride) const {
    if (!Turned()) return WriteStraight(results, factor, place, to, stride);
    WriteTurned(results, factor, AnglesOf(place), place, to, stride);
  }
  __device__ void WriteStraight(const typename P::Results& results, float factor,
                                const Place& place, void* to, int64_t stride) const {
    Store<S::kD>(results, factor, FirstOf(place, to, stride), stride, place.rows);
  }
  __device__ void WriteTurned(const typename P::Results& results, float factor,
                              const Angles& angles, const Place& place, void* to,
                              int64_t stride) const {
    StoreTurned<S::kD>(results, factor, angles, FirstOf(place, to, stride), stride, place.rows);
  }

  const AttentionBackwardArguments& a_;
  Memory<S>& shared_;
  const int group_;
  const int lane_;
  const int row_;     // this thread's first of the warpgroup's rows
  const int column_;  // this thread's first of eight
  const float score_scale_;
  uint32_t base_;  // of shared memory
  Ring<S::kStages> ring_;
  Ring<S::kHolds> hold_;
  int held_ = 0;  // place of the rows that are held

 private:
  static constexpr int kTurnBarrier = 1;  // and one more

  using M = Memory<S>;

  __device__ static __nv_bfloat16* FirstOf(const Place& place, void* to, int64_t stride) {
    return static_cast<__nv_bfloat16*>(to) + place.first_row * stride + int64_t{place.head} * S::kD;
  }
  __device__ void Release(uint32_t barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::Arrive(barrier);
  }
};

}  // namespace lorad::kernels::cuda::backward
