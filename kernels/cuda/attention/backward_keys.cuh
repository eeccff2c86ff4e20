// dk and dv: a warpgroup holds 64 keys and values, the queries of all their heads and the gradients
// pass by, head after head (backward.h).
#pragma once

#include "kernels/cuda/attention/backward_consumer.cuh"

namespace lorad::kernels::cuda::backward {

template <typename S>
class KeyConsumer : Consumer<Part::kKeys, S> {
  using Base = Consumer<Part::kKeys, S>;
  using P = Products<S>;
  using Base::a_;
  using Base::column_;
  using Base::group_;
  using Base::row_;
  using Base::score_scale_;
  using Base::shared_;

 public:
  __device__ KeyConsumer(const AttentionBackwardArguments& arguments, Memory<S>& shared, int group)
      : Base(arguments, shared, group) {}

  __device__ void Run() {
    this->BeginTurns();
    while (true) {
      this->AwaitItem();
      if (HeldIndex() < 0) break;
      Keys();
      this->NextItem();
    }
    this->EndTurns();
  }

 private:
  // Read again where it is needed: registers are few in between.
  __device__ int HeldIndex() const {
    return Uniform(*const_cast<const volatile int*>(&shared_.indices[this->held_]));
  }

  // ---- tiles that pass by ----

  // The tiles that pass by while an item is held, of which this warpgroup needs those from `from`
  // up to `to`.
  struct Passing {
    int first, end;
    int from, to;
    int heads;
    int tile;
  };
  struct Tile {
    int stage;
    int row;  // its first, in the sequence
  };
  __device__ uint32_t Stage(const Tile& tile, int tensor) const {
    return Base::Stage(tile.stage, tensor);
  }
  // The next tile that this warpgroup needs, when it is there; false if there is none.
  __device__ bool Next(Passing& passing, Tile& tile) {
    while (passing.heads > 0) {
      const int stage = this->NextStage();
      const int at = passing.tile;
      if (++passing.tile == passing.end) {
        passing.tile = passing.first;
        --passing.heads;
      }
      tile = {stage, at * S::kRows};
      if (at >= passing.from && at < passing.to) return true;
      this->Skip(stage);
    }
    return false;
  }

  // Starts the tile's scores and dp.
  __device__ void Start(const Tile& tile, typename P::Scores& p, typename P::Scores& dp) const {
    wgmma::Fence();
    P::Start(p, this->Held(0), Stage(tile, 0));
    wgmma::Commit();
    P::Start(dp, this->Held(1), Stage(tile, 1));
    wgmma::Commit();
  }

  // Calls first(tile) with the first tile that this warpgroup needs, next(tile before, tile) with
  // each other one, and last(tile before), which each start products and await them.
  template <typename First, typename After, typename Last>
  __device__ void ForTiles(Passing passing, const First& first, const After& after,
                           const Last& last) {
    Tile tile;
    Tile next;
    if (!Next(passing, tile)) {
      this->TakeTurn();
      this->GiveTurn();
    } else {
      first(tile);
      while (Next(passing, next)) {
        after(tile, next);
        this->ReleaseStage(tile.stage);
        tile = next;
      }
      last(tile);
      this->ReleaseStage(tile.stage);
    }
  }

  // ---- dk, dv ----

  struct KeySums {
    typename P::Results dk = {};
    typename P::Results dv = {};
    typename P::Scores p;
    typename P::Scores dp;
    typename P::Packed rounded_p;
    typename P::Packed rounded_ds;
  };

  __device__ void Keys() {
    const Item item = ItemAt<Part::kKeys>(a_, HeldIndex());
    const int rows = item.unit.rows;
    const int key = item.unit.start + group_ * 64;
    const int first = item.FirstTile<Part::kKeys, S>(a_.window);
    const int end = item.EndTile<Part::kKeys, S>(a_.window);
    Passing passing = {first, end, key < rows ? key / S::kRows : end,
                       // Up to the tile of the last query that sees one of the keys.
                       S::kWindow ? min(end, (key + 62 + a_.window) / S::kRows + 1) : end,
                       a_.heads / a_.kv_heads, first};
    KeySums sums;
    wgmma::Pin(sums.dk);
    wgmma::Pin(sums.dv);
    if constexpr (S::kValuesEarly) {
      AddAllQueries(key, rows, passing, sums);
    } else {
      ForTiles(
          passing,
          [&](const Tile& tile) {
            this->TakeTurn();
            Start(tile, sums.p, sums.dp);
            this->GiveTurn();
            KeyScores<0>(key, rows, tile, sums);
          },
          [&](const Tile& tile, const Tile& next) {
            this->TakeTurn();
            Start(next, sums.p, sums.dp);
            AddToValues(tile, sums);
            AddToKeys(tile, sums);
            this->GiveTurn();
            KeyScores<2>(key, rows, next, sums);
          },
          [&](const Tile& tile) {
            this->TakeTurn();
            AddToValues(tile, sums);
            AddToKeys(tile, sums);
            this->GiveTurn();
            wgmma::WaitGroups<0>();
          });
    }
    wgmma::Pin(sums.dk);
    wgmma::Pin(sums.dv);
    const Item done = ItemAt<Part::kKeys>(a_, HeldIndex());
    this->ReleaseHeld();
    const int first_key = done.unit.start + group_ * 64;
    const int64_t row = done.unit.first_row + first_key;
    const int64_t column = int64_t{done.head} * S::kD;
    auto* dk = static_cast<__nv_bfloat16*>(a_.dk) + row * a_.dk_stride + column;
    auto* dv = static_cast<__nv_bfloat16*>(a_.dv) + row * a_.dv_stride + column;
    const int rows_left = done.unit.rows - first_key;
    if (this->Turned()) {
      const Angles<S::kD> angles = LoadAngles<S::kD>(a_, static_cast<int>(row), rows_left);
      StoreTurned<S::kD>(sums.dk, a_.scale, angles, dk, a_.dk_stride, rows_left);
    } else {
      Store<S::kD>(sums.dk, a_.scale, dk, a_.dk_stride, rows_left);
    }
    Store<S::kD>(sums.dv, 1.0f, dv, a_.dv_stride, rows_left);
  }

  // Of queries 8 j + column_ and the next: lse, or delta.
  __device__ float2 Pair(int stage, int j, int which) const {
    return *reinterpret_cast<const float2*>(shared_.pairs[stage] + column_ * 2 +
                                            4 * j * kPairFloats + 2 * which);
  }
  // Whether some query of the tile does not see some key, or there is no such query.
  __device__ bool IsCut(int key, int rows, const Tile& tile) const {
    const bool cut = tile.row < key + 63 || tile.row + S::kRows > rows;
    return S::kWindow ? cut || tile.row + S::kRows - 1 - key >= a_.window : cut;
  }
  // Scores to p, for a tile of queries from `query` on and the warpgroup's keys from `key` on.
  __device__ void KeyWeights(int key, int rows, const Tile& tile, typename P::Scores& p) {
    if (IsCut(key, rows, tile)) {
      KeyWeights<true>(key - tile.row, rows - tile.row, tile.stage, p);
    } else {
      KeyWeights<false>(0, 0, tile.stage, p);
    }
  }
  template <bool kMasked>
  __device__ void KeyWeights(int key, int left, int stage, typename P::Scores& p) {
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
      const float2 lse = Pair(stage, j, 0);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = p[4 * j + e];
        x = ptx::Exp2(fmaf(x, score_scale_, e % 2 == 0 ? -lse.x : -lse.y));
        const int query = 8 * j + column_ + e % 2;
        if (kMasked && (key + row_ + e / 2 * 8 > query || query >= left)) x = 0;
        if (kMasked && S::kWindow && query - (key + row_ + e / 2 * 8) >= a_.window) x = 0;
      }
    }
  }
  // dp to ds.
  __device__ void KeyGradients(int key, int rows, const Tile& tile, const typename P::Scores& p,
                               typename P::Scores& dp) {
    if (IsCut(key, rows, tile)) {
      KeyGradients<true>(tile.stage, p, dp);
    } else {
      KeyGradients<false>(tile.stage, p, dp);
    }
  }
  template <bool kMasked>
  __device__ void KeyGradients(int stage, const typename P::Scores& p, typename P::Scores& dp) {
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
      const float2 delta = Pair(stage, j, 1);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = p[4 * j + e];
        const float ds = x * (dp[4 * j + e] - (e % 2 == 0 ? delta.x : delta.y));
        // Where p was cut off the rest may be a stranger's.
        dp[4 * j + e] = kMasked && x == 0 ? 0.0f : ds;
      }
    }
  }

  // Awaits the tile's scores and dp, and what was started before and kMore groups after them; makes
  // p and ds of them.
  template <int kMore>
  __device__ void KeyScores(int key, int rows, const Tile& tile, KeySums& sums) {
    wgmma::WaitGroups<1 + kMore>();
    wgmma::Pin(sums.p);
    KeyWeights(key, rows, tile, sums.p);
    wgmma::WaitGroups<kMore>();
    wgmma::Pin(sums.dp);
    KeyGradients(key, rows, tile, sums.p, sums.dp);
    if constexpr (kMore > 0) {
      wgmma::WaitGroups<0>();
      wgmma::Pin(sums.rounded_p);
      wgmma::Pin(sums.rounded_ds);
    }
    P::Round(sums.p, sums.rounded_p);
    P::Round(sums.dp, sums.rounded_ds);
  }
  // The same result where registers are few: dv is added to as soon as p is there, and nothing of a
  // tile is left for the next one's turn.
  __device__ void AddAllQueries(int key, int rows, Passing& passing, KeySums& sums) {
    int last = -1;
    Tile tile;
    while (Next(passing, tile)) {
      this->TakeTurn();
      Start(tile, sums.p, sums.dp);
      this->GiveTurn();
      wgmma::WaitGroups<1>();  // the scores, and all of the tile before
      wgmma::Pin(sums.p);
      wgmma::Pin(sums.rounded_ds);
      if (last >= 0) this->ReleaseStage(last);
      last = tile.stage;
      KeyWeights(key, rows, tile, sums.p);
      P::Round(sums.p, sums.rounded_p);
      AddToValues(tile, sums);
      wgmma::WaitGroups<1>();
      wgmma::Pin(sums.dp);
      KeyGradients(key, rows, tile, sums.p, sums.dp);
      P::Round(sums.dp, sums.rounded_ds);
      AddToKeys(tile, sums);
      wgmma::WaitGroups<1>();
      wgmma::Pin(sums.rounded_p);
    }
    wgmma::WaitGroups<0>();
    if (last >= 0) this->ReleaseStage(last);
  }
  __device__ void AddToValues(const Tile& tile, KeySums& sums) const {
    wgmma::Fence();
    P::Add(sums.dv, sums.rounded_p, Stage(tile, 1));
    wgmma::Commit();
  }
  __device__ void AddToKeys(const Tile& tile, KeySums& sums) const {
    wgmma::Fence();
    P::Add(sums.dk, sums.rounded_ds, Stage(tile, 0));
    wgmma::Commit();
  }
};

}  // namespace lorad::kernels::cuda::backward
