#include "planner/window/pack.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

std::vector<Sample> Of(const std::vector<int64_t>& lengths, const std::string& job = "a") {
  std::vector<Sample> samples;
  for (int64_t length : lengths) samples.push_back({job, {length}});
  return samples;
}

// The fewest bins of all, by trying every bin for every sample.
size_t BestBins(const std::vector<int64_t>& lengths, int64_t capacity, size_t at,
                std::vector<int64_t>& bins) {
  if (at == lengths.size()) return bins.size();
  size_t best = lengths.size();
  for (size_t bin = 0; bin <= bins.size(); ++bin) {
    if (bin == bins.size()) {
      bins.push_back(lengths[at]);
      best = std::min(best, BestBins(lengths, capacity, at + 1, bins));
      bins.pop_back();
      break;
    }
    if (bins[bin] + lengths[at] > capacity) continue;
    bins[bin] += lengths[at];
    best = std::min(best, BestBins(lengths, capacity, at + 1, bins));
    bins[bin] -= lengths[at];
  }
  return best;
}

TEST_CASE("First-fit decreasing") {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t capacity;
    std::string packing;
  };
  const Case cases[] = {
      {{}, 10, ""},
      {{10}, 10, "[0]"},
      {{4, 6}, 10, "[0 1]"},
      {{6, 6, 4, 4}, 10, "[0 2] [1 3]"},
      {{5, 5, 5}, 10, "[0 1] [2]"},
      {{1, 9, 2, 8, 3, 7}, 10, "[0 1] [2 3] [4 5]"},
      {{3, 3, 3, 3}, 10, "[0 1 2] [3]"},
  };
  for (const Case& c : cases) {
    const auto packing = PackFirstFitDecreasing(Of(c.lengths), {c.capacity, 1});
    REQUIRE(packing.ok());
    CHECK(ToText(*packing) == c.packing);
  }
}

TEST_CASE("Equal lengths are taken by job, then by index: the order of jobs in the input is moot") {
  const std::vector<Sample> ab = {{"a", {4}}, {"a", {4}}, {"b", {4}}, {"b", {4}}};
  const std::vector<Sample> ba = {{"b", {4}}, {"b", {4}}, {"a", {4}}, {"a", {4}}};
  CHECK(ToText(*PackFirstFitDecreasing(ab, {8, 1})) == "[0 1] [2 3]");
  CHECK(ToText(*PackFirstFitDecreasing(ba, {8, 1})) == "[2 3] [0 1]");
}

TEST_CASE("Samples of several sequences stay together; padding counts per adapter") {
  const std::vector<Sample> pairs = {{"a", {3, 3}}, {"a", {2, 2}}, {"a", {4}}};
  CHECK(ToText(*PackFirstFitDecreasing(pairs, {8, 1})) == "[0] [1 2]");

  const std::vector<Sample> mixed = {{"a", {5}}, {"b", {3}}, {"a", {3}}};
  CHECK(ToText(*PackFirstFitDecreasing(mixed, {16, 8})) == "[0 1 2]");  // 8 of a, 8 of b
  CHECK(PaddedTokens(mixed, {0, 1, 2}, {16, 8}) == 16);
  const std::vector<Sample> more = {{"a", {5}}, {"b", {3}}, {"a", {4}}};
  CHECK(ToText(*PackFirstFitDecreasing(more, {16, 8})) == "[0 2] [1]");  // 16 of a already
}

TEST_CASE("What cannot be packed is refused") {
  CHECK(PackFirstFitDecreasing(Of({11}), {10, 1}).status().message() ==
        "sample 0 of job a has 11 tokens; a microbatch holds 1 to 10");
  CHECK(PackFirstFitDecreasing(Of({9}), {10, 8}).status().message() ==
        "sample 0 of job a has 16 tokens; a microbatch holds 1 to 10");
  CHECK(PackFirstFitDecreasing(Of({0}), {10, 1}).status().message() ==
        "sample 0 of job a has a sequence of 0 tokens");
  CHECK_FALSE(PackFirstFitDecreasing(Of({1}), {0, 1}).ok());
  CHECK_FALSE(PackFirstFitDecreasing({{"a", {}}}, {10, 1}).ok());
}

TEST_CASE("L2") {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t capacity, bound;
  };
  const Case cases[] = {
      {{}, 10, 0},
      {{1}, 10, 1},
      {{5, 5, 5}, 10, 2},
      {{6, 6, 6}, 10, 3},
      {{6, 6, 6, 4}, 10, 3},
      {{7, 7, 4, 4}, 10, 3},  // the sum alone says 3 as well
      {{8, 8, 3, 3}, 10, 3},  // nothing shares with an 8: the sum says 3
      {{9, 9, 9, 2, 2}, 10, 4},
  };
  for (const Case& c : cases) CHECK(LowerBoundL2(Of(c.lengths), {c.capacity, 1}) == c.bound);
}

// First-fit decreasing by its definition: every bin is asked, from the first on.
Packing FirstFit(const std::vector<Sample>& samples, const PackOptions& options) {
  std::vector<int> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const int64_t x = samples[a].lengths[0], y = samples[b].lengths[0];
    return x != y ? x > y : samples[a].job < samples[b].job;
  });
  Packing packing;
  for (const int sample : order) {
    const auto room = [&](std::vector<int> bin) {
      bin.push_back(sample);
      return PaddedTokens(samples, bin, options) <= options.capacity;
    };
    auto bin = std::find_if(packing.begin(), packing.end(), room);
    if (bin == packing.end()) bin = packing.insert(bin, std::vector<int>());
    bin->push_back(sample);
  }
  for (std::vector<int>& bin : packing) std::sort(bin.begin(), bin.end());
  return packing;
}

TEST_CASE("The first bin with room is found, as by asking all of them") {
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int instance = 0; instance < 300; ++instance) {
      const int64_t padding = 1 + static_cast<int64_t>(random() % 2 * (random() % 12));
      const PackOptions options{padding * 3 + static_cast<int64_t>(random() % 100), padding};
      const auto longest = static_cast<uint32_t>(options.capacity / padding * padding);
      std::vector<Sample> samples;
      for (size_t i = 0, count = random() % 60; i < count; ++i) {
        samples.push_back({std::string(1, static_cast<char>('a' + random() % 4)),
                           {1 + static_cast<int64_t>(random() % longest)}});
      }
      const auto packing = PackFirstFitDecreasing(samples, options);
      REQUIRE(packing.ok());
      REQUIRE(ToText(*packing) == ToText(FirstFit(samples, options)));
    }
  }
}

TEST_CASE("On small random instances: every sample once, no bin too full, bound <= best <= FFD") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 300; ++i) {
      const int64_t capacity = 5 + static_cast<int64_t>(random() % 40);
      std::vector<int64_t> lengths(1 + random() % 8);
      for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random()) % capacity;
      const std::vector<Sample> samples = Of(lengths);
      const PackOptions options{capacity, 1};
      const auto packing = PackFirstFitDecreasing(samples, options);
      REQUIRE(packing.ok());
      std::vector<int> seen;
      for (const std::vector<int>& bin : *packing) {
        REQUIRE(PaddedTokens(samples, bin, options) <= capacity);
        seen.insert(seen.end(), bin.begin(), bin.end());
      }
      std::sort(seen.begin(), seen.end());
      std::vector<int> all(lengths.size());
      std::iota(all.begin(), all.end(), 0);
      REQUIRE(seen == all);
      std::vector<int64_t> bins;
      const size_t best = BestBins(lengths, capacity, 0, bins);
      REQUIRE(LowerBoundL2(samples, options) <= static_cast<int64_t>(best));
      // Dosa 2007: FFD <= 11/9 OPT + 6/9.
      REQUIRE(9 * packing->size() <= 11 * best + 6);
    }
  }
}

}  // namespace
}  // namespace lorad::planner
