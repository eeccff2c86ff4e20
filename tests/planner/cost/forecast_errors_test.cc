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
        // Errors that all go one way leave out at the far end alone: the point is in it.
        const int one_way = median == 1 || spread > 0.5 ? 0 : 20;
        CHECK(inside <= 360 + one_way + 3 * 6 + 400 / (length + 1));
      }
    }
  }
}

TEST_CASE("What is long past is forgotten") {
  ForecastErrors errors;
  for (size_t i = 0; i < ForecastErrors::kKept; ++i) errors.Observe(100, 1000, false);
  CHECK(errors.IntervalOf(100).latest_s > 900);
  CHECK(errors.share_inside() == 0);
  for (size_t i = 0; i < ForecastErrors::kKept; ++i) errors.Observe(100, 100, true);
  CHECK(errors.IntervalOf(100).earliest_s == Approx(100));
  CHECK(errors.IntervalOf(100).latest_s == Approx(100));
  CHECK(errors.share_inside() == 1);
  CHECK(errors.mean_error() == Approx(0));
  CHECK(errors.observations() == ForecastErrors::kKept);
}

TEST_CASE("An interval holds its own forecast, also where all errors went one way") {
  for (const double actual_s : {40.0, 250.0}) {
    ForecastErrors errors;
    for (int i = 0; i < 60; ++i) errors.Observe(100, actual_s + i % 5, true);
    CHECK(IsInside(errors.IntervalOf(100), 100));
    CHECK(IsInside(errors.IntervalOf(100), actual_s + 2));
    CHECK_FALSE(IsInside(errors.IntervalOf(100), 100 * 100 / actual_s));  // it goes that way alone
  }
}

// Jobs come in batches, each of which is off by a factor of its own, as on machines whose other
// work changes, and have their forecasts before one of their batch has ended. Of 60 such stores the
// mean share inside; without adaption 0.66, and 0.79 in the long run.
TEST_CASE("Where errors change their kind, misses widen the intervals until nine in ten hold") {
  const auto share = [](int batches) {
    int inside = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
      std::mt19937 random(seed);
      std::lognormal_distribution<> of_batch(0, 0.3);
      ForecastErrors errors;
      for (int batch = 0; batch < batches; ++batch) {
        const double median = of_batch(random);
        const ForecastInterval interval = errors.IntervalOf(100);
        for (int i = 0; i < 27; ++i) {
          const double actual_s = Draw(&random, 100, median, 0.1);
          errors.Observe(100, actual_s, IsInside(interval, actual_s));
          inside += IsInside(interval, actual_s);
        }
      }
    }
    return inside / (60 * 27.0 * batches);
  };
  CHECK(share(5) > 0.8);
  CHECK(share(40) > 0.88);
  CHECK(share(40) < 0.95);
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
