// A warpgroup of attention's backward (attention_backward.h): 64 of an item's rows.
#ifndef LORAD_KERNELS_CUDA_ATTENTION_BACKWARD_CONSUMER_CUH_
#define LORAD_KERNELS_CUDA_ATTENTION_BACKWARD_CONSUMER_CUH_

#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_backward_products.cuh"

namespace lorad::kernels::cuda::backward {

// What the consumers of both parts have in common: rings, and who may go on.
template <Part kPart, typename S>
class Consumer {
 public:
  __device__ Consumer(const AttentionBackwardArguments& arguments, Memory<S>& shared, int group)
      : a_(arguments),
        shared_(shared),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane_ / 4),
        column_(lane_ % 4 * 2),
        score_scale_(arguments.scale * kLog2E) {}

  __device__ void Run() {
    if (group_ == 1) GiveTurn();
    while (true) {
      AwaitHeld();
      held_ = Uniform(hold_.at);
      if (HeldItem() < 0) break;
      if constexpr (kPart == Part::kKeys) {
        Keys();
      } else {
        Queries();
      }
      hold_.Next();
    }
    if (group_ == 0) TakeTurn();
  }

 private:
  using P = Products<S>;
  static constexpr int kTurnBarrier = 1;  // and one more
  static_assert(kGroups == 2);

  // ---- rings ----

  __device__ uint32_t Held(int tensor) const {
    return ptx::SharedAddress(shared_.held[held_][tensor]) + group_ * wgmma::kBoxBytes;
  }
  // Read anew where it is needed: registers are few in between.
  __device__ int HeldItem() const {
    return Uniform(*const_cast<const volatile int*>(&shared_.items[held_]));
  }
  // The item, after which its rows may be replaced.
  __device__ Item ReleaseItem() const {
    const Item item = ItemAt<kPart>(a_, HeldItem());
    Release(shared_.held_empty[held_]);
    return item;
  }
  __device__ void AwaitHeld() const {
    ptx::Wait(ptx::SharedAddress(&shared_.held_full[hold_.at]), hold_.parity);
  }
  __device__ void AwaitStage() const {
    ptx::Wait(ptx::SharedAddress(&shared_.full[ring_.at]), ring_.parity);
  }
  __device__ void Release(uint64_t& barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::Arrive(ptx::SharedAddress(&barrier));
  }
  // ---- turns ----

  // The warpgroups start their products in turns, so that one multiplies while the other takes
  // exponentials: left alone they fall into step and do the same at the same time.
  __device__ void TakeTurn() const {
    ptx::SyncThreads(kTurnBarrier + group_, kGroups * kWarpgroup);
  }
  __device__ void GiveTurn() const {
    ptx::ArriveThreads(kTurnBarrier + 1 - group_, kGroups * kWarpgroup);
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
    return ptx::SharedAddress(shared_.stages[tile.stage][tensor]);
  }
  // The next tile that this warpgroup needs, when it is there; false if there is none.
  __device__ bool Next(Passing& passing, Tile& tile) {
    while (passing.heads > 0) {
      AwaitStage();
      const int at = passing.tile;
      if (++passing.tile == passing.end) {
        passing.tile = passing.first;
        --passing.heads;
      }
      tile = {Uniform(ring_.at), at * S::kRows};
      ring_.Next();
      if (at >= passing.from && at < passing.to) return true;
      TakeTurn();
      GiveTurn();
      Release(shared_.empty[tile.stage]);
    }
    return false;
  }

  // Starts the tile's scores and dp.
  __device__ void Start(const Tile& tile, typename P::Scores& p, typename P::Scores& dp) const {
    wgmma::Fence();
    P::Start(p, Held(0), Stage(tile, 0));
    wgmma::Commit();
    P::Start(dp, Held(1), Stage(tile, 1));
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
      TakeTurn();
      GiveTurn();
    } else {
      first(tile);
      while (Next(passing, next)) {
        after(tile, next);
        Release(shared_.empty[tile.stage]);
        tile = next;
      }
      last(tile);
      Release(shared_.empty[tile.stage]);
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
    const Item item = ItemAt<kPart>(a_, HeldItem());
    const int rows = item.unit.rows;
    const int key = item.unit.start + group_ * 64;
    const int first = item.FirstTile<kPart, S::kRows>();
    const int end = item.EndTile<kPart, S::kRows>();
    Passing passing = {first, end, key < rows ? key / S::kRows : end, end, a_.heads / a_.kv_heads,
                       first};
    KeySums sums;
    wgmma::Pin(sums.dk);
    wgmma::Pin(sums.dv);
    if constexpr (S::kValuesEarly) {
      AddAllQueries(key, rows, passing, sums);
    } else {
      ForTiles(
          passing,
          [&](const Tile& tile) {
            TakeTurn();
            Start(tile, sums.p, sums.dp);
            GiveTurn();
            KeyScores<0>(key, rows, tile, sums);
          },
          [&](const Tile& tile, const Tile& next) {
            TakeTurn();
            Start(next, sums.p, sums.dp);
            AddToValues(tile, sums);
            AddToKeys(tile, sums);
            GiveTurn();
            KeyScores<2>(key, rows, next, sums);
          },
          [&](const Tile& tile) {
            TakeTurn();
            AddToValues(tile, sums);
            AddToKeys(tile, sums);
            GiveTurn();
            wgmma::WaitGroups<0>();
          });
    }
    wgmma::Pin(sums.dk);
    wgmma::Pin(sums.dv);
    const Item done = ReleaseItem();
    const int first_key = done.unit.start + group_ * 64;
    const int64_t row = done.unit.first_row + first_key;
    const int64_t column = int64_t{done.head} * S::kD;
    Store<S>(sums.dk, a_.scale, static_cast<__nv_bfloat16*>(a_.dk) + row * a_.dk_stride + column,
             a_.dk_stride, done.unit.rows - first_key);
    Store<S>(sums.dv, 1.0f, static_cast<__nv_bfloat16*>(a_.dv) + row * a_.dv_stride + column,
             a_.dv_stride, done.unit.rows - first_key);
  }

  // Scores to p, for a tile of queries from `query` on and the warpgroup's keys from `key` on.
  __device__ void KeyWeights(int key, int rows, const Tile& tile, typename P::Scores& p) {
    if (tile.row < key + 63 || tile.row + S::kRows > rows) {
      KeyWeights<true>(key - tile.row, rows - tile.row, tile.stage, p);
    } else {
      KeyWeights<false>(0, 0, tile.stage, p);
    }
  }
  template <bool kMasked>
  __device__ void KeyWeights(int key, int left, int stage, typename P::Scores& p) {
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(&shared_.lse[stage][8 * j + column_]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = p[4 * j + e];
        x = ptx::Exp2(fmaf(x, score_scale_, e % 2 == 0 ? -lse.x : -lse.y));
        const int query = 8 * j + column_ + e % 2;
        if (kMasked && (key + row_ + e / 2 * 8 > query || query >= left)) x = 0;
      }
    }
  }
  // dp to ds.
  __device__ void KeyGradients(int key, int rows, const Tile& tile, const typename P::Scores& p,
                               typename P::Scores& dp) {
    if (tile.row < key + 63 || tile.row + S::kRows > rows) {
      KeyGradients<true>(tile.stage, p, dp);
    } else {
      KeyGradients<false>(tile.stage, p, dp);
    }
  }
  template <bool kMasked>
  __device__ void KeyGradients(int stage, const typename P::Scores& p, typename P::Scores& dp) {
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(&shared_.delta[stage][8 * j + column_]);
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
      TakeTurn();
      Start(tile, sums.p, sums.dp);
      GiveTurn();
      wgmma::WaitGroups<1>();  // the scores, and all of the tile before
      wgmma::Pin(sums.p);
      wgmma::Pin(sums.rounded_ds);
      if (last >= 0) Release(shared_.empty[last]);
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
    if (last >= 0) Release(shared_.empty[last]);
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

  // ---- dq ----

  struct QuerySums {
    typename P::Results dq = {};
    typename P::Scores p;
    typename P::Scores dp;
    typename P::Packed rounded_ds;
    float lse[2];
    float delta[2];
  };

  __device__ void Queries() {
    const Item item = ItemAt<kPart>(a_, HeldItem());
    const int rows = item.unit.rows;
    const int query = item.unit.start + group_ * 64;
    const int end = item.EndTile<kPart, S::kRows>();
    QuerySums sums;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Rows after the end come to nothing: any value will do.
      const int row = min(query + row_ + 8 * i, rows - 1);
      const int64_t at = item.head * a_.scratch_stride + item.unit.scratch_row + row;
      sums.lse[i] = __ldcg(a_.lse + at);
      sums.delta[i] = __ldcg(a_.delta + at);
    }
    Passing passing = {0, end, 0, query < rows ? (query + 63) / S::kRows + 1 : 0, 1, 0};
    wgmma::Pin(sums.dq);
    ForTiles(
        passing,
        [&](const Tile& tile) {
          TakeTurn();
          Start(tile, sums.p, sums.dp);
          GiveTurn();
          QueryScores<0>(query, tile, sums);
        },
        [&](const Tile& tile, const Tile& next) {
          TakeTurn();
          Start(next, sums.p, sums.dp);
          AddKeys(tile, sums);
          GiveTurn();
          QueryScores<1>(query, next, sums);
        },
        [&](const Tile& tile) {
          TakeTurn();
          wgmma::Fence();
          AddKeys(tile, sums);
          GiveTurn();
          wgmma::WaitGroups<0>();
        });
    wgmma::Pin(sums.dq);
    const Item done = ReleaseItem();
    const int first_query = done.unit.start + group_ * 64;
    const int64_t row = done.unit.first_row + first_query;
    Store<S>(sums.dq, a_.scale,
             static_cast<__nv_bfloat16*>(a_.dq) + row * a_.dq_stride + int64_t{done.head} * S::kD,
             a_.dq_stride, done.unit.rows - first_query);
  }

  // Scores to p, for a tile of keys and the warpgroup's queries from `query` on.
  __device__ void QueryWeights(int query, const Tile& tile, const QuerySums& sums,
                               typename P::Scores& p) {
    const int diagonal = query - tile.row + row_;
    const bool masked = tile.row + S::kRows - 1 > query;
#pragma unroll
    for (int at = 0; at < S::kRows / 2; ++at) {
      const int i = at / 2 % 2;
      p[at] = ptx::Exp2(fmaf(p[at], score_scale_, -sums.lse[i]));
    }
    if (masked) {
#pragma unroll
      for (int at = 0; at < S::kRows / 2; ++at) {
        const int key = at / 4 * 8 + column_ + at % 2;
        if (key > diagonal + at / 2 % 2 * 8) p[at] = 0;
      }
    }
  }
  // dp to ds. Keys after the sequence's end are zeros, so dp is no stranger's.
  __device__ void QueryGradients(const QuerySums& sums, const typename P::Scores& p,
                                 typename P::Scores& dp) {
#pragma unroll
    for (int at = 0; at < S::kRows / 2; ++at) {
      dp[at] = p[at] * (dp[at] - sums.delta[at / 2 % 2]);
    }
  }

  // As KeyScores.
  template <int kMore>
  __device__ void QueryScores(int query, const Tile& tile, QuerySums& sums) {
    wgmma::WaitGroups<1 + kMore>();
    wgmma::Pin(sums.p);
    QueryWeights(query, tile, sums, sums.p);
    wgmma::WaitGroups<kMore>();
    wgmma::Pin(sums.dp);
    QueryGradients(sums, sums.p, sums.dp);
    if constexpr (kMore > 0) {
      wgmma::WaitGroups<0>();
      wgmma::Pin(sums.rounded_ds);
    }
    P::Round(sums.dp, sums.rounded_ds);
  }
  __device__ void AddKeys(const Tile& tile, QuerySums& sums) const {
    P::Add(sums.dq, sums.rounded_ds, Stage(tile, 0));
    wgmma::Commit();
  }

  const AttentionBackwardArguments& a_;
  Memory<S>& shared_;
  const int group_;
  const int lane_;
  const int row_;     // this thread's first of the warpgroup's rows
  const int column_;  // this thread's first of eight
  const float score_scale_;
  Ring<S::kStages> ring_;
  Ring<S::kHolds> hold_;
  int held_ = 0;  // place of the rows that are held
};

}  // namespace lorad::kernels::cuda::backward

#endif  // LORAD_KERNELS_CUDA_ATTENTION_BACKWARD_CONSUMER_CUH_
