#include "storage/adapters/merge_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace lorad::storage {
namespace {

// Values of a 16-bit or 32-bit type as they lie in a file. Branches are selections, so that loops
// over them become vectors.
template <TensorType kType>
struct Stored;

template <>
struct Stored<TensorType::kF32> {
  using Bits = uint32_t;
  static float Read(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits Round(float value) { return std::bit_cast<Bits>(value); }
};

template <>
struct Stored<TensorType::kBF16> {
  using Bits = uint16_t;
  static float Read(Bits bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  // To nearest, ties to even.
  static Bits Round(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    return static_cast<Bits>(nan ? (bits >> 16) | 0x40 : rounded);
  }
};

template <>
struct Stored<TensorType::kF16> {
  using Bits = uint16_t;
  static float Read(Bits bits) {
    float value = 0;
    ConvertToFloat(TensorType::kF16, reinterpret_cast<const char*>(&bits), 1, &value);
    return value;
  }
  static Bits Round(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return static_cast<Bits>(sign | 0x7E00);   // NaN
    if (magnitude >= 0x477FF000) return static_cast<Bits>(sign | 0x7C00);  // 65520 and more
    if (magnitude >= 0x38800000) {
      const uint32_t rounded = magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1);
      return static_cast<Bits>(sign | (rounded >> 13));
    }
    // Below 2^-14: the last bit of 0.5 is the last of these.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<Bits>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
};

// Rows that are summed at once: what is read of A serves them all.
constexpr int64_t kRows = 4;
using Sums = float[kRows][kTileColumns];

// sums[i, c] = sum over k of b[row + i, k] * a[k, c] by fused products in the order of k, of `rows`
// <= kRows rows. Without the instruction the C library computes them, slowly, with the same bits.
__attribute__((always_inline)) inline void SumAnywhere(const MergeTile& tile, int64_t row,
                                                       int64_t rows, Sums sums) {
  for (int64_t i = 0; i < rows; ++i) {
    std::fill_n(sums[i], tile.columns, 0.0f);
    for (int64_t k = 0; k < tile.rank; ++k) {
      const float factor = tile.b[(row + i) * tile.rank + k];
      const float* a = tile.a + k * tile.in_features;
      for (int64_t c = 0; c < tile.columns; ++c) sums[i][c] = std::fma(factor, a[c], sums[i][c]);
    }
  }
}

// Adds the scaled sums to rows of the tile from `row` on.
template <TensorType kType, bool kWhole>
__attribute__((always_inline)) inline void AddRows(const MergeTile& tile, int64_t row, int64_t rows,
                                                   const Sums sums) {
  using Bits = typename Stored<kType>::Bits;
  const int64_t columns = kWhole ? kTileColumns : tile.columns;  // a known length makes vectors
  for (int64_t i = 0; i < rows; ++i) {
    Bits bits[kTileColumns];
    char* const place = tile.values + static_cast<size_t>((row + i) * tile.in_features) *
                                          sizeof(Bits);  // unaligned
    std::memcpy(bits, place, static_cast<size_t>(columns) * sizeof(Bits));
    for (int64_t c = 0; c < columns; ++c) {
      const float added = tile.scale * sums[i][c];  // rounded by itself
      bits[c] = Stored<kType>::Round(Stored<kType>::Read(bits[c]) + added);
    }
    std::memcpy(place, bits, static_cast<size_t>(columns) * sizeof(Bits));
  }
}

using Sum = void (*)(const MergeTile& tile, int64_t row, int64_t rows, Sums sums);

template <Sum kSum>
__attribute__((always_inline)) inline void MergeAnyTile(TensorType type, const MergeTile& tile) {
  const bool whole = tile.columns == kTileColumns;
  alignas(64) Sums sums;
  for (int64_t row = 0; row < tile.rows; row += kRows) {
    const int64_t rows = std::min(kRows, tile.rows - row);
    whole ? kSum(tile, row, rows, sums) : SumAnywhere(tile, row, rows, sums);
    if (type == TensorType::kF32) {
      whole ? AddRows<TensorType::kF32, true>(tile, row, rows, sums)
            : AddRows<TensorType::kF32, false>(tile, row, rows, sums);
    } else if (type == TensorType::kBF16) {
      whole ? AddRows<TensorType::kBF16, true>(tile, row, rows, sums)
            : AddRows<TensorType::kBF16, false>(tile, row, rows, sums);
    } else {
      AddRows<TensorType::kF16, false>(tile, row, rows, sums);
    }
  }
}

void MergeAnywhere(TensorType type, const MergeTile& tile) {
  MergeAnyTile<SumAnywhere>(type, tile);
}

#if defined(__x86_64__)
// Both of whole tiles: their sums stay in registers.
__attribute__((target("avx2,fma"))) void SumFused(const MergeTile& tile, int64_t row, int64_t rows,
                                                  Sums sums) {
  constexpr int64_t kVectors = kTileColumns / 8;
  for (int64_t i = 0; i < rows; ++i) {
    __m256 sum[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) sum[v] = _mm256_setzero_ps();
    for (int64_t k = 0; k < tile.rank; ++k) {
      const __m256 factor = _mm256_set1_ps(tile.b[(row + i) * tile.rank + k]);
      const float* a = tile.a + k * tile.in_features;
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[v] = _mm256_fmadd_ps(factor, _mm256_loadu_ps(a + 8 * v), sum[v]);
      }
    }
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) _mm256_storeu_ps(sums[i] + 8 * v, sum[v]);
  }
}

__attribute__((target("avx2,fma"), optimize("O3", "fp-contract=off"))) void MergeFused(
    TensorType type, const MergeTile& tile) {
  MergeAnyTile<SumFused>(type, tile);
}

__attribute__((target("avx512f"))) void SumWide(const MergeTile& tile, int64_t row, int64_t rows,
                                                Sums sums) {
  constexpr int64_t kVectors = kTileColumns / 16;
  // Rows that are not there repeat the last one; nobody reads their sums.
  const float* b[kRows];
  for (int64_t i = 0; i < kRows; ++i) b[i] = tile.b + (row + std::min(i, rows - 1)) * tile.rank;
  __m512 sum[kRows * kVectors];
#pragma GCC unroll 16
  for (int64_t v = 0; v < kRows * kVectors; ++v) sum[v] = _mm512_setzero_ps();
  for (int64_t k = 0; k < tile.rank; ++k) {
    const float* a = tile.a + k * tile.in_features;
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      const __m512 values = _mm512_loadu_ps(a + 16 * v);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kRows; ++i) {
        sum[i * kVectors + v] =
            _mm512_fmadd_ps(_mm512_set1_ps(b[i][k]), values, sum[i * kVectors + v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int64_t v = 0; v < kRows * kVectors; ++v) {
    _mm512_storeu_ps(sums[v / kVectors] + 16 * (v % kVectors), sum[v]);
  }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"),
               optimize("O3", "fp-contract=off"))) void
MergeWide(TensorType type, const MergeTile& tile) {
  MergeAnyTile<SumWide>(type, tile);
}
#endif

}  // namespace

void Merge(TensorType type, const MergeTile& tile) {
#if defined(__x86_64__)
  static const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool wide = fused && __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (wide) return MergeWide(type, tile);
  if (fused) return MergeFused(type, tile);
#endif
  MergeAnywhere(type, tile);
}

}  // namespace lorad::storage
