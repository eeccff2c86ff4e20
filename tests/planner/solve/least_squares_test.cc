#include "planner/solve/least_squares.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

double Squares(const std::vector<Terms<3>>& terms, const std::vector<double>& y,
               const Terms<3>& x) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = terms[i][0] * x[0] + terms[i][1] * x[1] + terms[i][2] * x[2] - y[i];
    sum += error * error;
  }
  return sum;
}

// Projected coordinate descent: another way to the only minimum there is.
Terms<3> Descend(const std::vector<Terms<3>>& terms, const std::vector<double>& y) {
  Terms<3> x = {0, 0, 0};
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
      std::vector<Terms<3>> terms;
      std::vector<double> y;
      NonNegativeFit<3> fit;
      for (int i = 0; i < 6; ++i) {
        terms.push_back({unit(random), unit(random), unit(random)});
        y.push_back(2 * unit(random) - 0.7);
        fit.Observe(terms.back(), y.back());
      }
      const Terms<3> x = fit.Fit();
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
      NonNegativeFit<3> fit;
      const auto draw = [&](Terms<3>* terms) {
        const auto length = static_cast<double>(50 + random() % 1000);
        const auto count = static_cast<double>(1 + random() % 8);
        *terms = {1, count * length, count * length * length};
        return 5 + 0.02 * (*terms)[1] + 1e-6 * (*terms)[2] +
               std::normal_distribution<>(0, 1)(random);
      };
      Terms<3> terms;
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

TEST_CASE("Where nothing is known an interval says nothing") {
  struct Case {
    std::string what;
    std::vector<Terms<3>> observed;
    Terms<3> terms;
    bool bounded;
  };
  const std::vector<Terms<3>> line = {{1, 10, 100}, {1, 20, 200}, {1, 30, 300}, {1, 50, 500},
                                      {1, 20, 200}, {1, 60, 600}, {1, 70, 700}, {1, 80, 800}};
  const std::vector<Terms<3>> plane = {{1, 10, 100}, {1, 20, 100}, {1, 30, 700}, {1, 50, 500},
                                       {1, 20, 400}, {1, 60, 200}, {1, 70, 900}, {1, 80, 100}};
  const Case cases[] = {
      {"all alike, and so the next", std::vector<Terms<3>>(8, {1, 10, 100}), {1, 10, 100}, true},
      {"all alike, the next larger", std::vector<Terms<3>>(8, {1, 10, 100}), {1, 20, 200}, false},
      {"in proportion", line, {1, 40, 400}, true},
      {"in proportion, far away", line, {1, 400, 4000}, true},
      {"out of proportion", line, {1, 40, 100}, false},
      {"of every kind", plane, {1, 400, 300}, true},
      {"a term that was always zero", {8, {1, 10, 0}}, {1, 10, 3}, false},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    for (const double noise : {0.0, 0.5}) {
      NonNegativeFit<3> fit;
      for (size_t i = 0; i < c.observed.size(); ++i) {
        const Terms<3>& terms = c.observed[i];
        fit.Observe(terms, 3 + 2 * terms[1] + 0.5 * terms[2] + (i % 2 == 0 ? noise : -noise));
      }
      const Prediction prediction = fit.Predict(c.terms);
      CHECK(std::isfinite(prediction.high) == c.bounded);
      if (!c.bounded) CHECK(prediction.low == 0);
      if (!c.bounded || noise > 0) continue;
      const double truth = 3 + 2 * c.terms[1] + 0.5 * c.terms[2];
      CHECK(prediction.value == Approx(truth).epsilon(1e-3));
    }
  }
}

TEST_CASE("Without a positive coefficient the interval is of the observations themselves") {
  NonNegativeFit<3> fit;
  for (int i = 0; i < 9; ++i) fit.Observe({1, 10.0 + i, 100}, -1);
  const Prediction prediction = fit.Predict({1, 12, 100});
  CHECK(prediction.value == 0);
  CHECK(prediction.low == 0);
  CHECK(prediction.high == Approx(StudentQuantile(9)));
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
