// Philox of dropout (philox.h), taken apart by what its first rounds depend on. Of the counter's
// words, only the first is a column's and only the second a row's, so of the 20 products of a call
// 3 are a column's alone and 1 a row's, and 1 is the sequence's; 15 are left. The same bits.
// Also for .cu files.
#pragma once

#include <cstdint>

#include "kernels/philox.h"

namespace lorad::kernels::cuda {

inline constexpr int kSplitRounds = 3;  // of which parts are made beforehand

// Of the rounds that are left.
struct DropoutKeys {
  uint32_t word[kPhiloxRounds - kSplitRounds][2];
};
// Of a position in a sequence.
struct DropoutRow {
  uint32_t high, low;
};
// Of 8 features of a target.
struct DropoutColumn {
  uint32_t second, third_high, third_low, third_other;
};

struct Halves {
  uint32_t high, low;
};
LORAD_HOST_DEVICE inline Halves Product(uint32_t a, uint32_t b) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}
LORAD_HOST_DEVICE inline uint32_t KeyOf(uint64_t seed, int which, int round) {
  const uint32_t weyl = which == 0 ? kPhiloxWeyl0 : kPhiloxWeyl1;
  return static_cast<uint32_t>(seed >> (32 * which)) + static_cast<uint32_t>(round) * weyl;
}

LORAD_HOST_DEVICE inline DropoutKeys DropoutKeysOf(uint64_t seed) {
  DropoutKeys keys;
  for (int i = 0; i < kPhiloxRounds - kSplitRounds; ++i) {
    for (int which = 0; which < 2; ++which) {
      keys.word[i][which] = KeyOf(seed, which, kSplitRounds + i);
    }
  }
  return keys;
}

LORAD_HOST_DEVICE inline DropoutRow DropoutRowOf(uint64_t seed, uint32_t sequence,
                                                 uint32_t position) {
  const uint32_t first = Product(kPhiloxMultiplier1, sequence).high ^ position ^ KeyOf(seed, 0, 0);
  const Halves second = Product(kPhiloxMultiplier0, first);
  return {second.high ^ KeyOf(seed, 1, 1), second.low};
}

// word0: DropoutWord(layer, target, block).
LORAD_HOST_DEVICE inline DropoutColumn DropoutColumnOf(uint64_t seed, uint32_t sequence,
                                                       uint32_t step, uint32_t word0) {
  const Halves first = Product(kPhiloxMultiplier0, word0);
  const Halves second = Product(kPhiloxMultiplier1, first.high ^ step ^ KeyOf(seed, 1, 0));
  const uint32_t sequence_low = Product(kPhiloxMultiplier1, sequence).low;
  const Halves third = Product(kPhiloxMultiplier0, second.high ^ sequence_low ^ KeyOf(seed, 0, 1));
  return {first.low, third.high ^ KeyOf(seed, 1, 2), third.low, second.low ^ KeyOf(seed, 0, 2)};
}

// Philox(seed, {word0, position, sequence, step}).
LORAD_HOST_DEVICE inline PhiloxCounter DropoutLanes(const DropoutKeys& keys, const DropoutRow& row,
                                                    const DropoutColumn& column) {
  const Halves third = Product(kPhiloxMultiplier1, row.high ^ column.second);
  PhiloxCounter at = {
      {third.high ^ column.third_other, third.low, column.third_high ^ row.low, column.third_low}};
  for (const auto& key : keys.word) at = PhiloxRound(at, key[0], key[1]);
  return at;
}

}  // namespace lorad::kernels::cuda
