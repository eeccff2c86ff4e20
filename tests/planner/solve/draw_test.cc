#include "planner/solve/draw.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

namespace lorad::planner {
namespace {

TEST_CASE("SplitMix64 of its authors") {
  Draw draw(1234567);
  CHECK(draw.Next() == 6457827717110365317u);
  CHECK(draw.Next() == 3203168211198807973u);
  CHECK(draw.Next() == 9817491932198370423u);
}

TEST_CASE("Normal numbers have mean 0 and variance 1") {
  Draw draw(7);
  double sum = 0, squares = 0;
  const int count = 100000;
  for (int i = 0; i < count; ++i) {
    const double x = draw.Normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / count) < 0.015);
  CHECK(std::abs(squares / count - 1) < 0.02);
}

TEST_CASE("Exponential numbers keep their mean, picks their shares") {
  Draw draw(5);
  double sum = 0;
  std::vector<int> picks(4);
  const int count = 100000;
  for (int i = 0; i < count; ++i) {
    const double x = draw.Exponential(3);
    REQUIRE(x > 0);
    sum += x;
    ++picks[draw.Pick({1, 0, 2, 1})];
  }
  CHECK(std::abs(sum / count - 3) < 0.05);
  CHECK(std::abs(picks[0] - count / 4) < 800);
  CHECK(picks[1] == 0);
  CHECK(std::abs(picks[2] - count / 2) < 800);
  CHECK(draw.Pick({0, 7, 0}) == 1);
}

TEST_CASE("Lengths keep their median and their bounds") {
  Draw draw(3);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 20001; ++i) lengths.push_back(draw.Length({{400, 0.5, 100, 2000}}));
  std::sort(lengths.begin(), lengths.end());
  CHECK(lengths.front() >= 100);
  CHECK(lengths.back() <= 2000);
  CHECK(std::abs(static_cast<double>(lengths[10000]) - 400) < 10);
  // A mixture takes from each kind.
  int64_t above = 0;
  for (int i = 0; i < 10000; ++i) {
    above += draw.Length({{100, 0.1, 1, 500}, {1000, 0.1, 501, 5000}}) > 500 ? 1 : 0;
  }
  CHECK(std::abs(static_cast<double>(above) - 5000) < 250);
  // Where nothing drawn can lie inside, the nearer end.
  CHECK(draw.Length({{1000, 0, 1, 10}}) == 10);
  CHECK(draw.Length({{1, 0, 50, 60}}) == 50);
  CHECK(draw.Length({{25, 0, 1, 60}}) == 25);
}

}  // namespace
}  // namespace lorad::planner
