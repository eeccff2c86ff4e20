#include "server/core/rules/pace.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

constexpr int64_t kSecond = 1'000'000;

double RateOf(const Pace<double>& pace) { return pace.PerSecond(pace.Done()); }

TEST_CASE("a rate is of the tokens that came after the first end") {
  Pace<double> pace(4);
  CHECK(RateOf(pace) == 0);
  pace.Add(10 * kSecond, 900);
  CHECK(RateOf(pace) == 0);
  pace.Add(12 * kSecond, 100);
  pace.Add(15 * kSecond, 200);
  CHECK(RateOf(pace) == Approx(60));
  pace.Clear();
  CHECK(RateOf(pace) == 0);
}

TEST_CASE("a rate goes by the newest ends") {
  Pace<double> pace(4);
  for (int i = 0; i < 10; ++i) pace.Add(i * kSecond, 1000);
  for (int i = 10; i < 14; ++i) pace.Add(i * kSecond, 10);
  CHECK(RateOf(pace) == Approx(10));
}

TEST_CASE("what ends at once where it begins is no rate") {
  for (const size_t ends : {20, 64}) {
    for (const int64_t step_us : {20'000, 150'000, 1'000'000, 20'000'000}) {
      INFO(ends << " ends, steps of " << step_us << " us");
      Pace<double> pace(ends);
      int64_t now_us = 5 * kSecond;
      for (int i = 0; i < 10; ++i) pace.Add(now_us += 300, 100);
      CHECK(RateOf(pace) == 0);
      for (int i = 0; i < 30; ++i) {
        pace.Add(now_us += step_us, 100);
        const double rate = RateOf(pace), truth = 100e6 / static_cast<double>(step_us);
        CHECK((rate == 0 || rate == Approx(truth)));
      }
      CHECK(RateOf(pace) > 0);
    }
  }
}

// Steps of 1.6 ms, of which those within a tenth of a second last three times as long.
TEST_CASE("a rate of small steps is not that of a moment") {
  for (const size_t ends : {20, 64}) {
    Pace<double> pace(ends);
    int64_t now_us = 0;
    for (; now_us < 4 * kSecond; now_us += 1600) pace.Add(now_us, 16);
    CHECK(RateOf(pace) == Approx(10'000).epsilon(0.01));
    for (; now_us < 4.1 * kSecond; now_us += 4800) pace.Add(now_us, 16);
    CHECK(RateOf(pace) > 9'500);
    // What lasts does show.
    for (; now_us < 7 * kSecond; now_us += 4800) pace.Add(now_us, 16);
    CHECK(RateOf(pace) == Approx(10'000. / 3).epsilon(0.01));
  }
}

// One second at one speed, then a tenth of it: the rate is of all of the two seconds.
TEST_CASE("a rate is of two seconds at least, however long steps last") {
  for (const size_t ends : {20, 64}) {
    for (const int64_t step_us : {1'000, 10'000, 20'000, 40'000, 50'000, 75'000, 99'000, 105'000}) {
      INFO(ends << " ends, steps of " << step_us << " us");
      Pace<double> pace(ends);
      int64_t now_us = 0;
      for (; now_us < 10 * kSecond; now_us += step_us) pace.Add(now_us, 1000);
      for (const int64_t from_us = now_us; now_us < from_us + kSecond; now_us += step_us) {
        pace.Add(now_us, 0);
      }
      CHECK(RateOf(pace) * static_cast<double>(step_us) / 1e9 > 0.4);
    }
  }
}

TEST_CASE("a rate of two ends, or of a moment after the first, is a guess") {
  Pace<double> slow(64);
  for (int i = 0; i < 7; ++i) {
    slow.Add(i * kSecond, 1);
    CHECK_FALSE(slow.IsKnown());
  }
  slow.Add(7 * kSecond, 1);
  CHECK(slow.IsKnown());
  Pace<double> quick(64);
  int64_t now_us = 0;
  for (; now_us < 199'000 + kSecond / 2; now_us += 1000) {
    quick.Add(now_us, 1);
    CHECK_FALSE(quick.IsKnown());
  }
  quick.Add(now_us, 1);
  CHECK(quick.IsKnown());
}

}  // namespace
}  // namespace lorad::server
