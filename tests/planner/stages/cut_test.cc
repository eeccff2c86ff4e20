#include "planner/stages/cut.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

constexpr double kNoCut = std::numeric_limits<double>::infinity();

std::string Text(const std::vector<double>& block_ms, int stages) {
  const auto cut = CutStages(block_ms, stages);
  return cut.ok() ? ToText(*cut) : std::string(cut.status().message());
}

TEST_CASE("Cuts by hand") {
  CHECK(Text({3}, 1) == "0-0 3 ms");
  CHECK(Text({1, 1, 1, 1}, 2) == "0-1 2 ms | 2-3 2 ms");
  // Two equal layers in halves (1 and 3), and a head of 2: the last stage gets fewer blocks.
  CHECK(Text({1, 3, 1, 3, 2}, 2) == "0-2 5 ms | 3-4 5 ms");
  // The slowest takes 9 in any case; the rest as even as can be.
  CHECK(Text({9, 1, 1, 1, 1}, 3) == "0-0 9 ms | 1-2 2 ms | 3-4 2 ms");
  CHECK(Text({0, 0, 0}, 3) == "0-0 0 ms | 1-1 0 ms | 2-2 0 ms");
}

TEST_CASE("What cannot be cut") {
  CHECK(Text({}, 1) == "0 blocks cannot be cut into 1 stages");
  CHECK(Text({1}, 2) == "1 blocks cannot be cut into 2 stages");
  CHECK(Text({1}, 0) == "1 blocks cannot be cut into 0 stages");
  CHECK(Text({1, -1}, 1) == "a block takes -1 ms");
  CHECK(Text({std::numeric_limits<double>::infinity()}, 1) == "a block takes inf ms");
  CHECK(Text({std::numeric_limits<double>::quiet_NaN()}, 1) == "a block takes nan ms");
}

// The slowest stage of the best of all cuts.
double Best(const std::vector<double>& block_ms, size_t from, int stages) {
  double ms = 0, best = std::numeric_limits<double>::max();
  if (stages == 1) {
    for (size_t i = from; i < block_ms.size(); ++i) ms += block_ms[i];
    return ms;
  }
  for (size_t end = from + 1; end + static_cast<size_t>(stages) - 1 <= block_ms.size(); ++end) {
    ms += block_ms[end - 1];
    best = std::min(best, std::max(ms, Best(block_ms, end, stages - 1)));
  }
  return best;
}

TEST_CASE("Cuts are the best of all") {
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 3000; ++i) {
      const int stages = 1 + static_cast<int>(random() % 5);
      std::vector<double> block_ms(static_cast<size_t>(stages) + random() % 8);
      for (double& ms : block_ms) ms = static_cast<double>(random() % 12);
      const auto cut = CutStages(block_ms, stages);
      REQUIRE(cut.ok());
      const double slowest = *std::max_element(cut->stage_ms.begin(), cut->stage_ms.end());
      REQUIRE(slowest == Best(block_ms, 0, stages));
      REQUIRE(cut->first.front() == 0);
      REQUIRE(cut->first.back() == static_cast<int>(block_ms.size()));
      for (size_t s = 0; s < cut->stage_ms.size(); ++s) {
        double ms = 0;
        REQUIRE(cut->first[s] < cut->first[s + 1]);
        for (int b = cut->first[s]; b < cut->first[s + 1]; ++b)
          ms += block_ms[static_cast<size_t>(b)];
        REQUIRE(ms == cut->stage_ms[s]);
      }
    }
  }
}

// The least sum of squares of all cuts without a stage above `bound`.
double LeastSquares(const std::vector<double>& block_ms, size_t from, int stages, double bound) {
  double ms = 0, best = std::numeric_limits<double>::infinity();
  if (stages == 1) {
    for (size_t i = from; i < block_ms.size(); ++i) ms += block_ms[i];
    return ms <= bound ? ms * ms : best;
  }
  for (size_t end = from + 1; end + static_cast<size_t>(stages) - 1 <= block_ms.size(); ++end) {
    ms += block_ms[end - 1];
    if (ms <= bound)
      best = std::min(best, ms * ms + LeastSquares(block_ms, end, stages - 1, bound));
  }
  return best;
}

TEST_CASE("Among the best the most even") {
  std::mt19937 random(Seeds().back());
  for (int i = 0; i < 2000; ++i) {
    const int stages = 1 + static_cast<int>(random() % 4);
    std::vector<double> block_ms(static_cast<size_t>(stages) + random() % 7);
    for (double& ms : block_ms) ms = static_cast<double>(random() % 9);
    const auto cut = CutStages(block_ms, stages);
    REQUIRE(cut.ok());
    double squares = 0;
    for (const double ms : cut->stage_ms) squares += ms * ms;
    const double slowest = *std::max_element(cut->stage_ms.begin(), cut->stage_ms.end());
    REQUIRE(squares == LeastSquares(block_ms, 0, stages, slowest));
  }
}

// All cuts within the reach, gone through.
double BestWithin(const std::vector<double>& block_ms, const Reach& reach, size_t stage,
                  size_t from) {
  if (stage == reach.size()) return from == block_ms.size() ? 0 : kNoCut;
  double ms = 0, best = kNoCut;
  for (size_t end = from + 1; end <= block_ms.size(); ++end) {
    ms += block_ms[end - 1];
    if (end > static_cast<size_t>(reach[stage][from])) break;
    best = std::min(best, std::max(ms, BestWithin(block_ms, reach, stage + 1, end)));
  }
  return best;
}

TEST_CASE("No stage exceeds its reach, and within it cuts are the best of all") {
  int cuts = 0, none = 0;
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 2000; ++i) {
      const int stages = 1 + static_cast<int>(random() % 4);
      std::vector<double> block_ms(static_cast<size_t>(stages) + random() % 8);
      for (double& ms : block_ms) ms = static_cast<double>(random() % 12);
      const int blocks = static_cast<int>(block_ms.size());
      Reach reach(static_cast<size_t>(stages));
      for (std::vector<int>& of_stage : reach) {
        const int most = 1 + static_cast<int>(random() % 6);
        for (int b = 0; b < blocks; ++b) of_stage.push_back(std::min(b + most, blocks));
      }
      const double best = BestWithin(block_ms, reach, 0, 0);
      const auto cut = CutStages(block_ms, stages, reach);
      REQUIRE(cut.ok() == (best != kNoCut));
      ++(cut.ok() ? cuts : none);
      if (!cut.ok()) continue;
      REQUIRE(*std::max_element(cut->stage_ms.begin(), cut->stage_ms.end()) == best);
      for (size_t s = 0; s < reach.size(); ++s) {
        REQUIRE(cut->first[s] < cut->first[s + 1]);
        REQUIRE(cut->first[s + 1] <= reach[s][static_cast<size_t>(cut->first[s])]);
      }
    }
  }
  CHECK(cuts > 500);
  CHECK(none > 500);
}

}  // namespace
}  // namespace lorad::planner
