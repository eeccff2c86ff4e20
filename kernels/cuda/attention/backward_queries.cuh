// dq: a warpgroup holds 64 queries, keys and values pass by (backward.h).
#pragma once

#include "kernels/cuda/attention/backward_consumer.cuh"

namespace lorad::kernels::cuda::backward {

// Queries and gradients are held in registers. Tiles follow one another over the borders of items:
// an item's result is written while the matrix units make the next one's first scores.
template <typename S>
class QueryConsumer : Consumer<Part::kQueries, S> {
  using Base = Consumer<Part::kQueries, S>;
  using P = Products<S>;
  using typename Base::Place;

 public:
  __device__ QueryConsumer(const AttentionBackwardArguments& arguments, Memory<S>& shared,
                           int group)
      : Base(arguments, shared, group) {}

  __device__ void Run() {
    this->BeginTurns();
    Sums sums;
    int last = -1;  // stage of the last tile, of which only ds was made so far; -1: there is none
    Place place = {};  // of its item
    while (true) {
      this->AwaitItem();
      const Item item = this->HeldItem();
      if (item.head < 0) break;
      Begin(item, sums);
      const int end = item.template EndTile<Part::kQueries, S>(this->a_.window);
      int at = item.template FirstTile<Part::kQueries, S>(this->a_.window);
      if (query_ < item.unit.rows) {
        // A window may begin behind the first tile, of which only the other warpgroup has a part.
        for (from_ = FirstNeeded(); S::kWindow && at < from_; ++at) this->Skip(this->NextStage());
        at = query_ / S::kRows + 1;
        last = AddKeys(last, place, at - from_, sums);
        place = this->PlaceOf(item);
      } else {
        // Items of which this warpgroup has nothing may follow one another, and the last tile has a
        // place in the ring.
        if (last >= 0) Last(last, place, sums);
        last = -1;
      }
      for (; at < end; ++at) this->Skip(this->NextStage());
      this->NextItem();
    }
    if (last >= 0) Last(last, place, sums);
    this->EndTurns();
  }

 private:
  struct Sums {
    typename P::Rows q;
    typename P::Rows dout;
    typename P::Results dq;
    typename P::Scores p;
    typename P::Scores dp;
    typename P::Packed rounded_ds;
    float lse[2];
    float delta[2];
  };

  // The rows of a new item, whose predecessors no product reads any more.
  __device__ void Begin(const Item& item, Sums& sums) {
    query_ = item.unit.start + this->group_ * 64;
    P::Load(sums.q, this->Held(0));
    P::Load(sums.dout, this->Held(1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Those of rows after the end may be anything.
      const int row = this->row_ + 8 * i;
      const float* pair =
          this->shared_.pairs[2 * this->held_ + this->group_] + row / 2 * kPairFloats + row % 2;
      sums.lse[i] = pair[0];
      sums.delta[i] = pair[2];
    }
    this->ReleaseHeld();
  }

  // ---- products ----

  // The first tile that this warpgroup's queries see anything of.
  __device__ int FirstNeeded() const {
    return S::kWindow ? max(query_ - this->a_.window + 1, 0) / S::kRows : 0;
  }

  // The item's tiles, `needed` of them, and what is to be done to the last tile of the item before,
  // if there is one; the stage of this item's last tile.
  __device__ int AddKeys(int last, const Place& place, int needed, Sums& sums) {
    int tile = this->NextStage();
    if (last < 0) {
      First(tile, needed, sums);
    } else {
      FinishItem(last, tile, place, needed, sums);
    }
    int next = needed > 1 ? this->NextStage() : -1;
    for (int at = 1; at < needed; ++at) {
      this->TakeTurn();
      wgmma::Fence();
      Start(next, sums);
      Add(tile, sums);
      this->GiveTurn();
      const int done = tile;
      tile = next;
      if (at + 1 < needed) next = this->NextStage();  // while the matrix units are at work
      Scores<1>(at, at == needed - 1, sums);
      wgmma::WaitGroups<0>();
      wgmma::Pin(sums.rounded_ds);
      this->ReleaseStage(done);
      P::Round(sums.dp, sums.rounded_ds);
    }
    return tile;
  }

  __device__ void Start(int stage, Sums& sums) const {
    P::Start(sums.p, sums.q, this->Stage(stage, 0));
    wgmma::Commit();
    P::Start(sums.dp, sums.dout, this->Stage(stage, 1));
    wgmma::Commit();
  }
  __device__ void Add(int stage, Sums& sums) const {
    P::Add(sums.dq, sums.rounded_ds, this->Stage(stage, 0));
    wgmma::Commit();
  }
  __device__ static void Clear(Sums& sums) {
#pragma unroll
    for (float& x : sums.dq) x = 0;
    wgmma::Pin(sums.dq);
  }
  __device__ void First(int tile, int needed, Sums& sums) {
    Clear(sums);
    this->TakeTurn();
    wgmma::Fence();
    Start(tile, sums);
    this->GiveTurn();
    Scores<0>(0, needed == 1, sums);
    P::Round(sums.dp, sums.rounded_ds);
  }
  __device__ void FinishItem(int last, int tile, const Place& place, int needed, Sums& sums) {
    this->TakeTurn();
    wgmma::Fence();
    Add(last, sums);
    if (S::kOverlap) Start(tile, sums);
    this->GiveTurn();
    if constexpr (S::kOverlap) {
      Finish<2>(last, place, sums);
    } else {
      Finish<0>(last, place, sums);
    }
    Clear(sums);
    if (!S::kOverlap) {
      wgmma::Fence();
      Start(tile, sums);
    }
    Scores<0>(0, needed == 1, sums);
    P::Round(sums.dp, sums.rounded_ds);
  }
  __device__ void Last(int last, const Place& place, Sums& sums) const {
    wgmma::Fence();
    Add(last, sums);
    Finish<0>(last, place, sums);
  }
  // Awaits the last tile's product, after which kMore groups were started.
  template <int kMore>
  __device__ void Finish(int last, const Place& place, Sums& sums) const {
    if (this->Turned()) {
      const typename Base::Angles angles = this->AnglesOf(place);
      AwaitLast<kMore>(last, sums);
      Base::WriteTurned(sums.dq, this->a_.scale, angles, place, this->a_.dq, this->a_.dq_stride);
    } else {
      AwaitLast<kMore>(last, sums);
      Base::WriteStraight(sums.dq, this->a_.scale, place, this->a_.dq, this->a_.dq_stride);
    }
  }
  template <int kMore>
  __device__ void AwaitLast(int last, Sums& sums) const {
    wgmma::WaitGroups<kMore>();
    wgmma::Pin(sums.dq);
    wgmma::Pin(sums.rounded_ds);
    this->ReleaseStage(last);
  }

  // ---- p and ds ----

  // Awaits the scores and dp of the item's tile `tile`, which kMore groups were started after, and
  // makes p and ds of them, in dp. diagonal: keys of the tile come after queries.
  template <int kMore>
  __device__ void Scores(int tile, bool diagonal, Sums& sums) {
    wgmma::WaitGroups<1 + kMore>();
    wgmma::Pin(sums.p);
    wgmma::Pin(sums.q);
#pragma unroll
    for (int at = 0; at < S::kRows / 2; ++at) {
      sums.p[at] = ptx::Exp2(fmaf(sums.p[at], this->score_scale_, -sums.lse[at / 2 % 2]));
    }
    if (diagonal) {
#pragma unroll
      for (int at = 0; at < S::kRows / 2; ++at) {
        const int key = at / 4 * 8 + this->column_ + at % 2;
        if (key > this->row_ + at / 2 % 2 * 8) sums.p[at] = 0;
      }
    }
    if constexpr (S::kWindow) CutWindow(tile, sums);
    wgmma::WaitGroups<kMore>();
    wgmma::Pin(sums.dp);
    wgmma::Pin(sums.dout);
    // Keys after the sequence's end are zeros, so dp is no stranger's.
#pragma unroll
    for (int at = 0; at < S::kRows / 2; ++at) {
      sums.dp[at] = sums.p[at] * (sums.dp[at] - sums.delta[at / 2 % 2]);
    }
  }

  // p = 0 for keys of the item's tile that lie before a query's window.
  __device__ void CutWindow(int tile, Sums& sums) const {
    // Key k of the tile is the last that query m of this warpgroup does not see if k = m + before.
    const int before = query_ - (from_ + tile) * S::kRows - this->a_.window;
    if (before + 63 < 0) return;
#pragma unroll
    for (int at = 0; at < S::kRows / 2; ++at) {
      const int key = at / 4 * 8 + this->column_ + at % 2;
      if (key <= this->row_ + at / 2 % 2 * 8 + before) sums.p[at] = 0;
    }
  }

  static_assert(S::kRows == 64);  // a tile is on the diagonal or before it
  int query_ = 0;                 // this warpgroup's first
  int from_ = 0;                  // the first tile that it needs
};

}  // namespace lorad::kernels::cuda::backward
