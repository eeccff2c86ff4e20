// dA += dS^T (D o x), a warp's part: its walk over the rows of a chunk, 64 features wide, and the
// addition of its results to those of other chunks.
//
// Rows come 16 at a time through a ring of the warp's own: no barriers. A lane reads pieces of 8
// features (one Philox call) of four rows and pairs the rows up in registers, as the matrix units
// want them: feature f of piece g is column g of the f-th product.
#pragma once

#include "kernels/cuda/lora/device.cuh"

namespace lorad::kernels::cuda::gradient_a {

inline constexpr int kRows = 256;
inline constexpr int kWarpFeatures = 64;
inline constexpr int kPieces = kWarpFeatures / 8;
inline constexpr int kStepRows = 16;
// As many as leave room for a second block on a multiprocessor where its registers do.
template <int kUnits, bool kDropout>
inline constexpr int kStages = kUnits == 1                ? 5
                               : kUnits == 2 && !kDropout ? 3
                                                          : 6;
inline constexpr int kStageBytes = kStepRows * kWarpFeatures * 2;
template <int kUnits, bool kDropout>
inline constexpr int kWarpBytes = kStages<kUnits, kDropout>* kStageBytes;
inline constexpr int kTransposePitch = kWarpFeatures + 4;  // floats
static_assert(kUnitRanks * kTransposePitch * 4 <= kWarpBytes<2, false>);

struct Arguments {
  LoraTables tables;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const __nv_bfloat16* ds;
  int64_t ds_stride;
  int64_t mask_row_bytes;
};

template <int kUnits>
constexpr int CoefficientBytes() {
  return kRows * kUnits * kUnitRanks * 2;
}

// dS of the item's rows into `tile`, by `threads` threads of which this is number `thread`.
template <int kUnits>
__device__ void LoadCoefficients(const Arguments& arguments, const LoraInputItem& item,
                                 uint32_t tile, int thread, int threads) {
  constexpr int kTilePieces = 2 * kUnits;
  const __nv_bfloat16* ds =
      arguments.ds + int64_t{item.rows.first_row} * arguments.ds_stride + item.column;
  for (int i = thread; i < kRows * kTilePieces; i += threads) {
    const int row = i / kTilePieces;
    const int piece = i % kTilePieces;
    const bool valid = row < item.rows.rows && piece < 2 * item.units;
    ptx::CopyAsync(tile + TileOffset<kTilePieces>(row, piece),
                   valid ? ds + row * arguments.ds_stride + 8 * piece : ds, valid);
  }
}

// Copies of 16 rows of the warp's features after the other. A lane copies a piece of every fourth
// row.
class Loader {
 public:
  __device__ Loader(const Arguments& arguments, const LoraInputItem& item, int first_feature)
      : four_rows_(4 * arguments.x_stride) {
    const int lane = threadIdx.x % kWarpLanes;
    const int row = lane / kPieces;
    const int feature = first_feature + 8 * (lane % kPieces);
    from_ = arguments.x + (int64_t{item.rows.first_row} + row) * arguments.x_stride + feature;
    rows_left_ = feature < arguments.tables.inputs ? item.rows.rows - row : 0;
    place_ = TileOffset<kPieces>(row, lane % kPieces);
  }

  __device__ void LoadNext(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kStepRows / 4; ++i) {
      // Row 4i of the lane lies at its number xor 4 (i % 2).
      ptx::CopyAsync(((stage + place_) ^ (i % 2 * 64)) + 4 * i * kPieces * 16,
                     from_ + i * four_rows_, 4 * i < rows_left_);
    }
    from_ += kStepRows / 4 * four_rows_;
    rows_left_ -= kStepRows;
  }

 private:
  const __nv_bfloat16* from_;  // not read where no row is left
  const int64_t four_rows_;
  int rows_left_;
  uint32_t place_;
};

// The rows of a lane in a step: the piece lane / 4 of each is its own.
inline constexpr int kLaneRows = 4;
__device__ inline int RowOf(int i) {
  return 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2 + 8 * (i / 2);
}

// Of a unit's pair and the lane's piece.
struct Mask {
  DropoutColumn column;
  DropoutTest test;
  uint8_t* bytes;  // where the lane leaves bits of the first step; null: nothing is dropped
  bool shared;     // it is that of the unit before this one: they are of one pair
};

template <int kUnits>
__device__ void FindMasks(const Arguments& arguments, const LoraInputItem& item, int first_feature,
                          Mask (&masks)[kUnits]) {
  const LoraRows& rows = item.rows;
  const int piece = static_cast<int>(threadIdx.x) % kWarpLanes / 4;
  const int block = first_feature / kDropoutLanes;
  uint32_t before = 0;
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    const LoraPair& pair =
        arguments.tables.pairs[arguments.tables.units[item.first_unit + unit].pair];
    Mask& mask = masks[unit];
    mask.column = DropoutColumnOf(rows.seed, rows.sequence, rows.step,
                                  pair.word0 + static_cast<uint32_t>(block + piece));
    mask.test = TestOf(pair.threshold);
    mask.bytes = nullptr;
    if (pair.mask != nullptr) {
      mask.bytes = pair.mask +
                   (int64_t{rows.first_row} + RowOf(piece % 4)) * arguments.mask_row_bytes + block +
                   piece / 4 * 4;
    }
    mask.shared = unit > 0 && pair.word0 == before;
    before = pair.word0;
  }
}

// What the masks of all units share in a step.
struct DropoutStep {
  DropoutKeys keys;
  DropoutRow rows[kLaneRows];
  bool stores;       // the lane leaves bits,
  int64_t at_bytes;  // as far from those of the first step
};

// Four lanes, 4 apart, have a byte of each of their four rows: lane i of them gets row i's, in the
// order of lanes.
__device__ inline uint32_t Transposed(uint32_t bytes) {
  const bool upper = (threadIdx.x & 8) != 0;
  const bool odd = (threadIdx.x & 4) != 0;
  uint32_t other = __shfl_xor_sync(0xFFFFFFFF, bytes, 8);
  bytes = __byte_perm(bytes, other, upper ? 0x3276 : 0x5410);
  other = __shfl_xor_sync(0xFFFFFFFF, bytes, 4);
  return __byte_perm(bytes, other, odd ? 0x3715 : 0x6240);
}

// Draws the mask of the lane's four pieces, applies it and leaves its bits.
__device__ inline void Drop(const Mask& mask, const DropoutStep& step,
                            const uint4 (&raw)[kLaneRows], uint4 (&v)[kLaneRows]) {
  uint32_t bits[kLaneRows];
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const PhiloxCounter tested =
        TestLanes(DropoutLanes(step.keys, step.rows[i], mask.column), mask.test);
    v[i] = Select(raw[i], tested, mask.test);
    bits[i] = MaskBits(tested);
  }
  const uint32_t bytes = __byte_perm(__byte_perm(bits[0], bits[1], 0x0073),
                                     __byte_perm(bits[2], bits[3], 0x0073), 0x5410);
  const uint32_t word = Transposed(bytes ^ mask.test.inverted);
  if (step.stores) *reinterpret_cast<uint32_t*>(mask.bytes + step.at_bytes) = word;
}

// b[f]: the pairs (row 2q, row 2q + 1) and (row 2q + 8, row 2q + 9) of feature f.
__device__ inline void PairRows(const uint4 (&v)[4], uint32_t (&b)[8][2]) {
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const uint4& even = v[2 * high];
    const uint4& odd = v[2 * high + 1];
    b[0][high] = __byte_perm(even.x, odd.x, 0x5410);
    b[1][high] = __byte_perm(even.x, odd.x, 0x7632);
    b[2][high] = __byte_perm(even.y, odd.y, 0x5410);
    b[3][high] = __byte_perm(even.y, odd.y, 0x7632);
    b[4][high] = __byte_perm(even.z, odd.z, 0x5410);
    b[5][high] = __byte_perm(even.z, odd.z, 0x7632);
    b[6][high] = __byte_perm(even.w, odd.w, 0x5410);
    b[7][high] = __byte_perm(even.w, odd.w, 0x7632);
  }
}

template <int kUnits, bool kDropout>
__device__ void MultiplyStep(const LoraInputItem& item, const Mask (&masks)[kUnits],
                             const DropoutStep& dropout, uint32_t stage, uint32_t coefficients,
                             int step, float (&c)[kUnits][8][4]) {
  const int lane = threadIdx.x % kWarpLanes;
  uint4 raw[kLaneRows];
  const uint32_t even = stage + TileOffset<kPieces>(RowOf(0), lane / 4);
  const uint32_t odd = (even ^ 16) + kPieces * 16;  // RowOf(1) is RowOf(0) + 1
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    raw[i] = ptx::LoadShared((i % 2 == 0 ? even : odd) + i / 2 * 8 * kPieces * 16);
  }
  // Of the step's dS; 16 rows on, places are the same.
  const uint32_t place = coefficients + step * kStepRows * kUnits * kUnitRanks * 2 +
                         TileOffset<2 * kUnits>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  uint32_t b[8][2];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    if (kDropout && masks[unit].bytes != nullptr) {
      if (!masks[unit].shared) {
        uint4 v[kLaneRows];
        Drop(masks[unit], dropout, raw, v);
        PairRows(v, b);
      }
    } else if (unit == 0 || kDropout) {
      PairRows(raw, b);
    }
    uint32_t a[4];
    ptx::LoadMatricesTransposed(place ^ (unit * kUnitRanks * 2), a);
#pragma unroll
    for (int f = 0; f < 8; ++f) ptx::Multiply(c[unit][f], a[0], a[1], a[2], a[3], b[f][0], b[f][1]);
  }
}

// A warp's place in its block: warp `chunk` of the `chunks` that share `column`, 64 features.
struct Place {
  int chunks;
  int chunk;
  int column;
};

__device__ inline void SyncColumn(const Place& place) {
  __syncwarp();
  if (place.chunks == 1) return;
  const int threads = place.chunks * kWarpLanes;
  switch (place.column) {  // of 8 warps by two or more
    case 0:
      return ptx::SyncThreads<1>(threads);
    case 1:
      return ptx::SyncThreads<2>(threads);
    case 2:
      return ptx::SyncThreads<3>(threads);
    default:
      return ptx::SyncThreads<4>(threads);
  }
}

// One unit's sums into the warp's tile [16, kTransposePitch] in shared memory.
__device__ inline void WriteTile(const float (&c)[8][4], float* tile) {
  const int lane = threadIdx.x % kWarpLanes;
  float* to = tile + lane / 4 * kTransposePitch + lane % 4 * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int f = 0; f < 8; ++f) to[i / 2 * 8 * kTransposePitch + i % 2 * 8 + f] = c[f][i];
  }
}

// Adds one unit's gradients over all chunks of the column, whose tiles lie `tile_floats` apart from
// `tiles`; the warp those of every chunks-th rank, lanes neighbours.
__device__ inline bool AddTiles(const Arguments& arguments, const LoraUnit& unit,
                                const Place& place, int first_feature, const float* tiles,
                                int tile_floats) {
  const int lane = threadIdx.x % kWarpLanes;
  const LoraPair& pair = arguments.tables.pairs[unit.pair];
  const int64_t inputs = arguments.tables.inputs;
  const float scale = pair.mask != nullptr ? pair.keep_scale : 1.0f;
  const int ranks = min(kUnitRanks, pair.rank - unit.first_rank);
  bool finite = true;
  for (int r = place.chunk; r < ranks; r += place.chunks) {
    int64_t* da = pair.da + (int64_t{unit.first_rank} + r) * inputs + first_feature;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int f = lane + half * kWarpLanes;
      if (first_feature + f >= inputs) continue;
      long long quanta = 0;
      for (int chunk = 0; chunk < place.chunks; ++chunk) {
        finite &= AddFixed(quanta, scale * tiles[chunk * tile_floats + r * kTransposePitch + f]);
      }
      AddQuanta(da + f, quanta);
    }
  }
  return finite;
}

// Of a step, for masks of the lane's rows, and where it leaves bits.
__device__ inline void BeginStep(const Arguments& arguments, const LoraInputItem& item,
                                 int first_feature, int step, DropoutStep& dropout) {
  const int first_row = kStepRows * step;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    dropout.rows[i] = DropoutRowAt(item.rows, first_row + RowOf(i));
  }
  const int piece = static_cast<int>(threadIdx.x) % kWarpLanes / 4;
  dropout.stores = first_row + RowOf(piece % 4) < item.rows.rows &&
                   first_feature + piece / 4 * 32 < arguments.tables.inputs;
  dropout.at_bytes = first_row * arguments.mask_row_bytes;
}

// Sums of one warp: rows of `item`, features from first_feature; its ring at `ring`, begun by
// Prefetch; dS, complete, at `coefficients`.
template <int kUnits, bool kDropout>
__device__ void Walk(const Arguments& arguments, const LoraInputItem& item,
                     const Mask (&masks)[kUnits], int first_feature, Loader& loader, uint32_t ring,
                     uint32_t coefficients, float (&c)[kUnits][8][4]) {
  const int steps = (item.rows.rows + kStepRows - 1) / kStepRows;
  DropoutStep dropout;
  if (kDropout) dropout.keys = KeptKeys(item.rows.seed);
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    if (kDropout) BeginStep(arguments, item, first_feature, step, dropout);
    ptx::WaitCopies<kStages<kUnits, kDropout> - 2>();
    __syncwarp();
    const int next = stage == 0 ? kStages<kUnits, kDropout> - 1 : stage - 1;
    loader.LoadNext(ring + next * kStageBytes);
    ptx::CommitCopies();
    MultiplyStep<kUnits, kDropout>(item, masks, dropout, ring + stage * kStageBytes, coefficients,
                                   step, c);
    stage = stage == kStages<kUnits, kDropout> - 1 ? 0 : stage + 1;
  }
  ptx::WaitCopies<0>();
  __syncwarp();
}

// The first kStages - 1 steps, a commit each.
template <int kUnits, bool kDropout>
__device__ void Prefetch(Loader& loader, uint32_t ring) {
#pragma unroll
  for (int i = 0; i < kStages<kUnits, kDropout> - 1; ++i) {
    loader.LoadNext(ring + i * kStageBytes);
    ptx::CommitCopies();
  }
}

// Adds the sums of all units, by way of the rings of the column's warps, of which the first is
// `rings`; marks slots that overflow.
template <int kUnits, bool kDropout>
__device__ void AddUnits(const Arguments& arguments, const LoraInputItem& item, const Place& place,
                         int first_feature, const float (&c)[kUnits][8][4], unsigned char* rings) {
  constexpr int kTileFloats = kWarpBytes<kUnits, kDropout> / static_cast<int>(sizeof(float));
  float* tiles = reinterpret_cast<float*>(rings);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit >= item.units) break;
    // The column's warps have read the tiles of the unit before this one.
    if (unit > 0) SyncColumn(place);
    WriteTile(c[unit], tiles + place.chunk * kTileFloats);
    SyncColumn(place);
    const LoraUnit& u = arguments.tables.units[item.first_unit + unit];
    if (!AddTiles(arguments, u, place, first_feature, tiles, kTileFloats)) {
      *arguments.tables.pairs[u.pair].overflow = 1;
    }
  }
}

}  // namespace lorad::kernels::cuda::gradient_a
