#include "planner/window/pack_level.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

std::vector<Sample> Samples(const std::vector<int64_t>& lengths) {
  std::vector<Sample> samples;
  for (const int64_t length : lengths) samples.push_back({"a", {length}});
  return samples;
}

TEST_CASE("Levelled by hand") {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t capacity;
    Packing packing;
    std::string expected;
  };
  const Case cases[] = {
      {{}, 10, {}, ""},
      {{5, 4, 3}, 10, {{0, 1}, {2}}, "[1 2] [0]"},
      {{6, 4, 3, 3}, 10, {{0, 1}, {2, 3}}, "[0 3] [1 2]"},
      // Nothing to gain: only the emptiest goes last.
      {{5, 10}, 10, {{0}, {1}}, "[1] [0]"},
      // Longest first would need 11 tokens: the packing stays.
      {{5, 5, 4, 3, 3}, 10, {{0, 1}, {2, 3, 4}}, "[0 1] [2 3 4]"},
  };
  for (const Case& c : cases) {
    CHECK(ToText(LevelBins(Samples(c.lengths), c.packing, {c.capacity, 1})) == c.expected);
  }
}

TEST_CASE("As many bins, every sample once, none overfull, none fuller") {
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 3000; ++i) {
      const PackOptions options{64, 1 + static_cast<int64_t>(random() % 8)};
      std::vector<Sample> samples(1 + random() % 20);
      for (Sample& sample : samples) {
        sample = {std::string(1, static_cast<char>('a' + random() % 3)),
                  {1 + static_cast<int64_t>(random() % 50)}};
      }
      const auto packing = PackFirstFitDecreasing(samples, options);
      REQUIRE(packing.ok());
      const Packing balanced = LevelBins(samples, *packing, options);
      REQUIRE(balanced.size() == packing->size());
      std::vector<int> seen;
      int64_t fullest = 0, before = 0, last = options.capacity;
      for (const auto& bin : balanced) {
        seen.insert(seen.end(), bin.begin(), bin.end());
        const int64_t tokens = PaddedTokens(samples, bin, options);
        fullest = std::max(fullest, tokens);
        REQUIRE(tokens <= last);
        last = tokens;
      }
      for (const auto& bin : *packing)
        before = std::max(before, PaddedTokens(samples, bin, options));
      std::sort(seen.begin(), seen.end());
      for (size_t k = 0; k < seen.size(); ++k) REQUIRE(seen[k] == static_cast<int>(k));
      REQUIRE(seen.size() == samples.size());
      REQUIRE(fullest <= before);
    }
  }
}

}  // namespace
}  // namespace lorad::planner
