#include "planner/replicas/bucketing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

TEST_CASE("Buckets of a few sequences") {
  struct Case {
    std::vector<int64_t> lengths;
    BucketingOptions options;
    std::string text;
  };
  const Case cases[] = {
      {{17}, {16, 256}, "256: 1; 17 tokens padded to 256"},
      {{17}, {16, 1}, "17: 1; 17 tokens padded to 17"},
      {{256, 257}, {16, 256}, "256: 1, 512: 1; 513 tokens padded to 768"},
      {{10, 10, 10, 20, 100}, {2, 10}, "20: 4, 100: 1; 150 tokens padded to 180"},
      {{10, 10, 10, 90, 100}, {2, 10}, "10: 3, 100: 2; 220 tokens padded to 230"},
      {{250, 300}, {16, 256, 300}, "256: 1, 300: 1; 550 tokens padded to 556"},
      {{250, 300}, {16, 256, 200}, "250: 1, 300: 1; 550 tokens padded to 550"},
      {{5, 15, 25}, {1, 10}, "30: 3; 45 tokens padded to 90"},
  };
  for (const Case& c : cases) CHECK(ChooseBuckets(c.lengths, c.options)->ToText() == c.text);
  CHECK(FillBuckets({5, 15, 25}, {10, 20, 40, 80})->ToText() ==
        "10: 1, 20: 1, 40: 1, 80: 0; 45 tokens padded to 70");
}

TEST_CASE("The best of all boundaries: 4,000 instances") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int instance = 0; instance < 2000; ++instance) {
      std::vector<int64_t> lengths(1 + random() % 12);
      const int64_t longest = 1 + static_cast<int64_t>(random() % 100);
      for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % longest);
      const BucketingOptions options{1 + static_cast<int>(random() % 5),
                                     static_cast<int64_t>(1 + random() % 20)};
      const auto chosen = ChooseBuckets(lengths, options);
      REQUIRE(chosen.ok());
      // Every subset of the multiples.
      const int64_t multiples =
          std::min<int64_t>(10, (longest + options.granularity - 1) / options.granularity);
      if (multiples * options.granularity < *std::max_element(lengths.begin(), lengths.end())) {
        continue;
      }
      int64_t best = std::numeric_limits<int64_t>::max();
      for (unsigned bits = 1; bits < (1u << multiples); ++bits) {
        std::vector<int64_t> boundaries;
        for (int64_t u = 0; u < multiples; ++u) {
          if (bits & (1u << u)) boundaries.push_back((u + 1) * options.granularity);
        }
        if (static_cast<int>(boundaries.size()) > options.buckets) continue;
        const auto filled = FillBuckets(lengths, boundaries);
        if (filled.ok()) best = std::min(best, filled->padded_tokens);
      }
      CHECK(chosen->padded_tokens == best);
      CHECK(static_cast<int>(chosen->lengths.size()) <= options.buckets);
    }
  }
}

TEST_CASE("Bad input is refused") {
  CHECK_FALSE(ChooseBuckets({}, {}).ok());
  CHECK_FALSE(ChooseBuckets({0}, {}).ok());
  CHECK_FALSE(ChooseBuckets({-4}, {}).ok());
  CHECK_FALSE(ChooseBuckets({4}, {0, 256}).ok());
  CHECK_FALSE(ChooseBuckets({4}, {16, 0}).ok());
  CHECK_FALSE(ChooseBuckets({std::numeric_limits<int64_t>::max()}, {}).ok());
  CHECK_FALSE(ChooseBuckets({4}, {16, std::numeric_limits<int64_t>::max()}).ok());
  CHECK_FALSE(FillBuckets({4}, {}).ok());
  CHECK_FALSE(FillBuckets({4}, {8, 8}).ok());
  CHECK_FALSE(FillBuckets({9}, {8}).ok());
}

}  // namespace
}  // namespace lorad::planner
