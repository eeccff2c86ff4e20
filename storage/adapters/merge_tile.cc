#include "storage/adapters/merge_tile.h"

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

template <TensorType kType, bool kWhole>
__attribute__((always_inline)) inline void MergeRows(const MergeTile& tile) {
  using Bits = typename Stored<kType>::Bits;
  const int64_t columns = kWhole ? kTileColumns : tile.columns;  // a known length makes vectors
  for (int64_t i = 0; i < tile.rows; ++i) {
    float sum[kTileColumns] = {};
    for (int64_t k = 0; k < tile.rank; ++k) {
      const float factor = tile.b[i * tile.rank + k];
      const float* row = tile.a + k * tile.in_features;
      for (int64_t c = 0; c < columns; ++c) sum[c] = std::fma(factor, row[c], sum[c]);
    }
    Bits bits[kTileColumns];
    char* const place =
        tile.values + static_cast<size_t>(i * tile.in_features) * sizeof(Bits);  // unaligned
    std::memcpy(bits, place, static_cast<size_t>(columns) * sizeof(Bits));
    for (int64_t c = 0; c < columns; ++c) {
      const float added = tile.scale * sum[c];  // rounded by itself
      bits[c] = Stored<kType>::Round(Stored<kType>::Read(bits[c]) + added);
    }
    std::memcpy(place, bits, static_cast<size_t>(columns) * sizeof(Bits));
  }
}

__attribute__((always_inline)) inline void MergeAnyTile(TensorType type, const MergeTile& tile) {
  const bool whole = tile.columns == kTileColumns;
  if (type == TensorType::kF32) {
    whole ? MergeRows<TensorType::kF32, true>(tile) : MergeRows<TensorType::kF32, false>(tile);
  } else if (type == TensorType::kBF16) {
    whole ? MergeRows<TensorType::kBF16, true>(tile) : MergeRows<TensorType::kBF16, false>(tile);
  } else {
    MergeRows<TensorType::kF16, false>(tile);
  }
}

// Without the instruction the C library computes fused products, slowly and with the same bits.
void MergeAnywhere(TensorType type, const MergeTile& tile) { MergeAnyTile(type, tile); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"), optimize("O3", "fp-contract=off"))) void MergeFused(
    TensorType type, const MergeTile& tile) {
  MergeAnyTile(type, tile);
}
#endif

}  // namespace

void Merge(TensorType type, const MergeTile& tile) {
#if defined(__x86_64__)
  static const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fused) return MergeFused(type, tile);
#endif
  MergeAnywhere(type, tile);
}

}  // namespace lorad::storage
