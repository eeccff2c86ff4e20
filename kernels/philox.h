// Philox4x32-10: a counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3"). Everything random in training is a function of a key and a counter, never of state;
// docs/determinism.md has the layout of both. Plain functions of integers, so that other devices
// can use this file as it is.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define LORAD_HOST_DEVICE __host__ __device__
#else
#define LORAD_HOST_DEVICE
#endif

namespace lorad::kernels {

struct PhiloxCounter {
  uint32_t word[4];
};

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// One call covers this many consecutive features, as 16-bit lanes: feature 2w in the low half of
// word w, 2w + 1 in the high half.
inline constexpr int kDropoutLanes = 8;
// In the step's word: marks counters of the initialization, which no step reaches.
inline constexpr uint32_t kInitializationStep = 0xFFFFFFFF;

LORAD_HOST_DEVICE inline PhiloxCounter PhiloxRound(const PhiloxCounter& counter, uint32_t k0,
                                                   uint32_t k1) {
  const uint64_t p0 = static_cast<uint64_t>(kPhiloxMultiplier0) * counter.word[0];
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxMultiplier1) * counter.word[2];
  return {{static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ k0, static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ k1, static_cast<uint32_t>(p0)}};
}

LORAD_HOST_DEVICE inline PhiloxCounter Philox(uint64_t key, PhiloxCounter counter) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = PhiloxRound(counter, k0, k1);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return counter;
}

// The first word of every counter: which matrix, and which block of features (or elements) of it.
// REQUIRES: layer < 1024, target < 64, block < 65536.
LORAD_HOST_DEVICE constexpr uint32_t DropoutWord(uint32_t layer, uint32_t target, uint32_t block) {
  return layer << 22 | target << 16 | block;
}

// A feature is kept if its lane is at least this.
LORAD_HOST_DEVICE constexpr uint32_t DropoutThreshold(float p) {
  return static_cast<uint32_t>(65536.0f * p + 0.5f);
}

}  // namespace lorad::kernels
