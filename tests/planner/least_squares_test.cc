#include "planner/least_squares.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

double Squares(const std::vector<Terms>& terms, const std::vector<double>& y, const Terms& x) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = terms[i][0] * x[0] + terms[i][1] * x[1] + terms[i][2] * x[2] - y[i];
    sum += error * error;
  }
  return sum;
}

// Projected coordinate descent: another way to the only minimum there is.
Terms Descend(const std::vector<Terms>& terms, const std::vector<double>& y) {
  Terms x = {0, 0, 0};
  for (int round = 0; round < 3000; ++round) {
    for (int j = 0; j < 3; ++j) {
      double up = 0, down = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const double rest =
            terms[i][0] * x[0] + terms[i][1] * x[1] + terms[i][2] * x[2] - terms[i][j] * x[j];
        up += terms[i][j] * (y[i] - rest);
        down += terms[i][j] * terms[i][j];
      }
      x[j] = down > 0 ? std::max(0.0, up / down) : 0;
    }
  }
  return x;
}

TEST_CASE("The fit is the minimum over non-negative coefficients: 1,000 instances") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    std::uniform_real_distribution<> unit(0, 1);
    for (int instance = 0; instance < 500; ++instance) {
      std::vector<Terms> terms;
      std::vector<double> y;
      NonNegativeFit fit;
      for (int i = 0; i < 6; ++i) {
        terms.push_back({unit(random), unit(random), unit(random)});
        y.push_back(2 * unit(random) - 0.7);
        fit.Observe(terms.back(), y.back());
      }
      const Terms x = fit.Fit();
      for (double value : x) CHECK(value >= 0);
      CHECK(Squares(terms, y, x) <= Squares(terms, y, Descend(terms, y)) + 1e-6);
    }
  }
}

TEST_CASE("95 % of new observations lie in the interval") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    int inside = 0;
    for (int run = 0; run < 1000; ++run) {
      NonNegativeFit fit;
      const auto draw = [&](Terms* terms) {
        const auto length = static_cast<double>(50 + random() % 1000);
        const auto count = static_cast<double>(1 + random() % 8);
        *terms = {1, count * length, count * length * length};
        return 5 + 0.02 * (*terms)[1] + 1e-6 * (*terms)[2] +
               std::normal_distribution<>(0, 1)(random);
      };
      Terms terms;
      for (int i = 0; i < 12; ++i) {
        const double y = draw(&terms);
        fit.Observe(terms, y);
      }
      const double y = draw(&terms);
      const Prediction prediction = fit.Predict(terms);
      inside += y >= prediction.low && y <= prediction.high;
    }
    CHECK(inside >= 915);
    CHECK(inside <= 985);
  }
}

TEST_CASE("Student's quantiles are those of the tables") {
  CHECK(StudentQuantile(1) == Approx(12.706));
  CHECK(StudentQuantile(5) == Approx(2.5706));
  CHECK(StudentQuantile(6) == Approx(2.4469).epsilon(2e-3));
  CHECK(StudentQuantile(10) == Approx(2.2281).epsilon(1e-3));
  CHECK(StudentQuantile(30) == Approx(2.0423).epsilon(1e-3));
  CHECK(StudentQuantile(1000) == Approx(1.9623).epsilon(1e-3));
}

}  // namespace
}  // namespace lorad::planner
