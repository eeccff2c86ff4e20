#include "planner/cost/forecast_errors.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

namespace lorad::planner {
namespace {

constexpr double kGrain = ForecastErrors::kGrainSeconds;

bool IsInside(const ForecastInterval& interval, double seconds) {
  return interval.earliest_s <= seconds && seconds <= interval.latest_s;
}

// What happens after a forecast: off by a factor that is drawn, of that median and spread.
double Draw(std::mt19937* random, double forecast_s, double median, double spread) {
  std::lognormal_distribution<> factor(std::log(median), spread);
  return std::max(0.0, (forecast_s + kGrain) * factor(*random) - kGrain);
}

TEST_CASE("At first a factor of two either way") {
  const ForecastErrors errors;
  const ForecastInterval interval = errors.IntervalOf(98);
  CHECK(interval.earliest_s == Approx(48));
  CHECK(interval.latest_s == Approx(198));
  CHECK(errors.IntervalOf(0).earliest_s == 0);
  CHECK(errors.IntervalOf(0).latest_s == Approx(2));
  CHECK(errors.observations() == 0);
  CHECK(errors.mean_error() == 0);
  CHECK(errors.share_inside() == 0);
}

TEST_CASE("Few errors widen the interval that is taken at first, and never narrow it") {
  ForecastErrors errors;
  errors.Observe(10, 10, true);
  CHECK(errors.IntervalOf(98).latest_s == Approx(198));
  errors.Observe(10, 10 * (10 + kGrain) - kGrain, false);  // ten times as long
  CHECK(errors.IntervalOf(98).latest_s == Approx(998));
  CHECK(errors.IntervalOf(98).earliest_s == Approx(48));
}

// Of 400 streams of each length, how often the next moment lies inside. Exchangeable errors lie
// inside with probability (n + 1 - 2 k) / (n + 1) exactly, whatever their distribution.
TEST_CASE("Nine in ten lie inside, whatever the bias and the spread") {
  for (const double median : {0.5, 1.0, 3.0}) {
    for (const double spread : {0.05, 1.0}) {
      for (const int length : {19, 60, 250}) {
        int inside = 0;
        for (uint32_t seed = 0; seed < 400; ++seed) {
          std::mt19937 random(seed);
          std::exponential_distribution<> wait(0.01);
          ForecastErrors errors;
          for (int i = 0; i < length; ++i) {
            const double forecast_s = wait(random);
            errors.Observe(forecast_s, Draw(&random, forecast_s, median, spread), true);
          }
          const double forecast_s = wait(random);
          inside +=
              IsInside(errors.IntervalOf(forecast_s), Draw(&random, forecast_s, median, spread));
        }
        INFO(median << " " << spread << " " << length << ": " << inside);
        CHECK(inside >= 360 - 3 * 6);  // three standard deviations of the draw
        CHECK(inside <= 360 + 3 * 6 + 400 / (length + 1));
      }
    }
  }
}

TEST_CASE("What is long past is forgotten") {
  ForecastErrors errors;
  for (size_t i = 0; i < ForecastErrors::kKept; ++i) errors.Observe(100, 1000, false);
  CHECK(errors.IntervalOf(100).earliest_s > 900);
  CHECK(errors.share_inside() == 0);
  for (size_t i = 0; i < ForecastErrors::kKept; ++i) errors.Observe(100, 100, true);
  CHECK(errors.IntervalOf(100).latest_s == Approx(100));
  CHECK(errors.share_inside() == 1);
  CHECK(errors.mean_error() == Approx(0));
  CHECK(errors.observations() == ForecastErrors::kKept);
}

TEST_CASE("The mean error is a share") {
  ForecastErrors errors;
  errors.Observe(98, 118, true);  // 20 % longer
  CHECK(errors.mean_error() == Approx(0.2));
  errors.Observe(118, 98, false);
  CHECK(errors.mean_error() == Approx(0.2));
  CHECK(errors.share_inside() == 0.5);
}

TEST_CASE("It is kept as values, and values of nobody are refused") {
  std::mt19937 random(1);
  ForecastErrors errors;
  for (int i = 0; i < 50; ++i) errors.Observe(50, Draw(&random, 50, 1.2, 0.5), i % 3 > 0);
  ForecastErrors again;
  REQUIRE(again.SetValues(errors.values()));
  CHECK(again.IntervalOf(70).earliest_s == errors.IntervalOf(70).earliest_s);
  CHECK(again.IntervalOf(70).latest_s == errors.IntervalOf(70).latest_s);
  CHECK(again.share_inside() == errors.share_inside());
  CHECK(again.values() == errors.values());

  CHECK_FALSE(again.SetValues({1}));
  CHECK_FALSE(again.SetValues({std::numeric_limits<double>::quiet_NaN(), 0}));
  CHECK_FALSE(again.SetValues({std::numeric_limits<double>::infinity(), 0}));
  CHECK_FALSE(again.SetValues(std::vector<double>(2 * ForecastErrors::kKept + 2, 0)));
  CHECK(again.values() == errors.values());
}

}  // namespace
}  // namespace lorad::planner
