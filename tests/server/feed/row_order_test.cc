#include "server/feed/row_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <set>

namespace lorad::server::feed {
namespace {

using Rows = std::vector<int64_t>;

TEST_CASE("Orders are a function of (seed, epoch) that stays as it is") {
  CHECK(RowOrder(5, false, 1, 3) == Rows{0, 1, 2, 3, 4});
  // What resumed jobs rest on: these may never change.
  CHECK(RowOrder(8, true, 0, 0) == Rows{7, 3, 0, 4, 6, 5, 1, 2});
  CHECK(RowOrder(8, true, 0, 1) == Rows{3, 2, 6, 4, 0, 7, 1, 5});
  CHECK(RowOrder(8, true, 1, 0) == Rows{1, 6, 2, 4, 3, 5, 0, 7});
  CHECK(RowOrder(1, true, 9, 9) == Rows{0});
  CHECK(RowOrder(0, true, 9, 9).empty());
}

TEST_CASE("Every order is a permutation, and none comes more often than others") {
  std::map<Rows, int> seen;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    Rows order = RowOrder(3, true, seed, 0);
    ++seen[order];
    std::sort(order.begin(), order.end());
    REQUIRE(order == Rows{0, 1, 2});
  }
  REQUIRE(seen.size() == 6);
  for (const auto& [order, count] : seen) CHECK(std::abs(count - 1000) < 150);  // 5 sigma
  Rows large = RowOrder(100'000, true, 5, 2);
  CHECK(std::set<int64_t>(large.begin(), large.end()).size() == 100'000);
}

TEST_CASE("Steps cut the epochs; the last batch of each is short") {
  struct Case {
    int64_t rows, batch_size, step, epoch, begin, end;
  };
  const Case cases[] = {
      {10, 4, 1, 0, 0, 4}, {10, 4, 2, 0, 4, 8},  {10, 4, 3, 0, 8, 10},
      {10, 4, 4, 1, 0, 4}, {10, 4, 9, 2, 8, 10}, {8, 4, 2, 0, 4, 8},
      {8, 4, 3, 1, 0, 4},  {3, 8, 1, 0, 0, 3},   {3, 8, 5, 4, 0, 3},
  };
  for (const Case& c : cases) {
    const BatchPlace place = PlaceOfStep(c.rows, c.batch_size, c.step);
    INFO("step " << c.step << " of " << c.rows << " rows");
    CHECK(place.epoch == c.epoch);
    CHECK(place.begin == c.begin);
    CHECK(place.end == c.end);
  }
  CHECK(TotalSteps(10, 4, 2, 0) == 6);
  CHECK(TotalSteps(8, 4, 2, 0) == 4);
  CHECK(TotalSteps(10, 4, 2, 50) == 50);
}

}  // namespace
}  // namespace lorad::server::feed
