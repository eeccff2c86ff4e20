// Lengths to pack: how they are drawn, and the 200 batches of data/pack_gap.txt.
//
// The papers publish pictures of the lengths, not the lengths. LoRAFusion (section 6.1, figure 13)
// describes XSum as short (most under 512 tokens), CNN/DailyMail as middling (512 to 1024), WikiSum
// as long and varied (many above 1024). We draw log-normal lengths with medians 420, 850 and 1500
// and deviations of the logarithm 0.6, 0.5 and 0.7, cut to [32, capacity]; `mixed` takes each
// sample from one of the three. Capacity 6,144 is the paper's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/window/pack.h"

namespace lorad::planner {

inline constexpr int64_t kPaperCapacity = 6144;
inline const std::vector<std::string> kLengthKinds = {"xsum", "cnn_dailymail", "wikisum", "mixed"};

// Standard normal by Box and Muller: the standard library's own differs between libraries.
inline double DrawNormal(std::mt19937_64& random) {
  const double u = static_cast<double>((random() >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(random() >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
}

inline std::vector<int64_t> DrawLengths(std::mt19937_64& random, size_t kind, size_t count) {
  constexpr double kMedian[] = {420, 850, 1500};
  constexpr double kDeviation[] = {0.6, 0.5, 0.7};
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    const size_t of = kind < 3 ? kind : random() % 3;
    const double length = kMedian[of] * std::exp(kDeviation[of] * DrawNormal(random));
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(length), 32, kPaperCapacity));
  }
  return lengths;
}

inline std::vector<Sample> SamplesOf(const std::vector<int64_t>& lengths) {
  std::vector<Sample> samples;
  for (int64_t length : lengths) samples.push_back({"a", {length}});
  return samples;
}

}  // namespace lorad::planner
