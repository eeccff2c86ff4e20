#include "planner/window/pack_level.h"

#include <algorithm>
#include <numeric>

namespace lorad::planner {
namespace {

std::vector<int64_t> Filled(const std::vector<Sample>& samples, const Packing& packing,
                            const PackOptions& options) {
  std::vector<int64_t> tokens;
  for (const auto& bin : packing) tokens.push_back(PaddedTokens(samples, bin, options));
  return tokens;
}

// Fullest first.
Packing Sorted(const Packing& packing, const std::vector<int64_t>& tokens) {
  std::vector<size_t> order(packing.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tokens[a] > tokens[b]; });
  Packing sorted;
  for (const size_t bin : order) sorted.push_back(packing[bin]);
  return sorted;
}

}  // namespace

Packing LevelBins(const std::vector<Sample>& samples, const Packing& packing,
                  const PackOptions& options) {
  if (packing.empty()) return packing;
  std::vector<int> order;
  for (const auto& bin : packing) order.insert(order.end(), bin.begin(), bin.end());
  std::sort(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return Tokens(samples[static_cast<size_t>(a)]) > Tokens(samples[static_cast<size_t>(b)]);
  });
  Packing balanced(packing.size());
  std::vector<int64_t> tokens(packing.size(), 0);
  for (const int i : order) {
    const size_t bin =
        static_cast<size_t>(std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
    balanced[bin].push_back(i);
    tokens[bin] += Tokens(samples[static_cast<size_t>(i)]);
  }
  for (auto& bin : balanced) std::sort(bin.begin(), bin.end());
  const std::vector<int64_t> before = Filled(samples, packing, options);
  const std::vector<int64_t> after = Filled(samples, balanced, options);
  const int64_t fullest = *std::max_element(after.begin(), after.end());
  const bool better =
      fullest <= options.capacity && fullest < *std::max_element(before.begin(), before.end());
  return better ? Sorted(balanced, after) : Sorted(packing, before);
}

}  // namespace lorad::planner
