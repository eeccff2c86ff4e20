// Which token follows, from logits and Sampling alone.
#include "worker/engine/sampling.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace lorad::worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kDraws = 40'000;

v1::Sampling SamplingOf(double temperature, double top_p = 1, uint64_t seed = 5,
                        int64_t number = 0) {
  v1::Sampling sampling;
  sampling.set_temperature(temperature);
  sampling.set_top_p(top_p);
  sampling.set_seed(seed);
  sampling.set_number(number);
  return sampling;
}

// How often each token comes, of so many numbers of one answer.
std::vector<int> Counts(const std::vector<float>& logits, double temperature, double top_p,
                        uint64_t seed = 5) {
  std::vector<int> counts(logits.size());
  for (int64_t number = 0; number < kDraws; ++number) {
    const int32_t token = ChooseToken(logits, SamplingOf(temperature, top_p, seed, number)).token;
    ++counts.at(static_cast<size_t>(token));
  }
  return counts;
}

// Within five standard deviations.
void CheckShares(const std::vector<int>& counts, const std::vector<double>& shares) {
  for (size_t i = 0; i < shares.size(); ++i) {
    INFO("token " << i);
    const double deviation = std::sqrt(kDraws * shares[i] * (1 - shares[i]));
    CHECK(std::abs(counts[i] - kDraws * shares[i]) <= 5 * deviation);
  }
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  double sum = 0;
  for (const float z : logits) sum += std::exp(z / temperature);
  std::vector<double> shares;
  for (const float z : logits) shares.push_back(std::exp(z / temperature) / sum);
  return shares;
}

TEST_CASE("temperature 0 takes the most likely token, of equal ones the smallest") {
  CHECK(ChooseToken(std::vector<float>{1, 3, 2}, SamplingOf(0)).token == 1);
  CHECK(ChooseToken(std::vector<float>{1, 3, 3, -3, 3}, SamplingOf(0)).token == 1);
  CHECK(ChooseToken(std::vector<float>{-5, -5}, SamplingOf(0)).token == 0);
  CHECK(ChooseToken(std::vector<float>{-kInfinity, -7}, SamplingOf(0)).token == 1);
  CHECK(ChooseToken(std::vector<float>{0.0f, -0.0f}, SamplingOf(0)).token == 0);
  CHECK(ChooseToken(std::vector<float>{4}, SamplingOf(0)).token == 0);
  // Whatever else is said.
  for (const uint64_t seed : {0, 1, 2, 3}) {
    CHECK(ChooseToken(std::vector<float>{1, 1.5, 2}, SamplingOf(0, 0.1, seed, 9)).token == 2);
  }
}

TEST_CASE("the log probability is the model's, before temperature and top_p") {
  const std::vector<float> logits = {0.5f, -1, 2, 0.25f};
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z));
  for (const auto& [temperature, top_p] :
       std::vector<std::pair<double, double>>{{0, 1}, {0.1, 1}, {3, 1}, {3, 0.5}, {50, 0.9}}) {
    for (int64_t number = 0; number < 20; ++number) {
      const ChosenToken chosen = ChooseToken(logits, SamplingOf(temperature, top_p, 1, number));
      const double want =
          static_cast<double>(logits.at(static_cast<size_t>(chosen.token))) - std::log(sum);
      CHECK(chosen.log_probability == Approx(want).epsilon(1e-14));
    }
  }
  CHECK(ChooseToken(std::vector<float>{1e30f, 0}, SamplingOf(0)).log_probability == 0);
  CHECK(ChooseToken(std::vector<float>{3}, SamplingOf(1)).log_probability == 0);
}

TEST_CASE("temperature draws as often as its softmax says") {
  const std::vector<float> logits = {0, 1, 2, -1, 2};
  for (const double temperature : {0.5, 1.0, 4.0}) {
    INFO("temperature " << temperature);
    CheckShares(Counts(logits, temperature, 1), Softmax(logits, temperature));
  }
  CHECK(Counts(logits, 1, 0) == Counts(logits, 1, 1));
  // So cold that only the largest are left, and nothing is divided by 0.
  CheckShares(Counts(logits, 1e-300, 1), {0, 0, 0.5, 0, 0.5});
}

TEST_CASE("top_p keeps the fewest of the most likely tokens that reach it") {
  // Of 10: 1, 4, 2, 3.
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f),
                                     std::log(3.0f)};
  CheckShares(Counts(logits, 1, 0.05), {0, 1, 0, 0});
  CheckShares(Counts(logits, 1, 0.39), {0, 1, 0, 0});
  CheckShares(Counts(logits, 1, 0.41), {0, 4.0 / 7, 0, 3.0 / 7});
  CheckShares(Counts(logits, 1, 0.71), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  CheckShares(Counts(logits, 1, 0.91), {0.1, 0.4, 0.2, 0.3});
  // Behind temperature: of squares, 1, 16, 4, 9 of 30.
  CheckShares(Counts(logits, 0.5, 0.5), {0, 1, 0, 0});
  CheckShares(Counts(logits, 0.5, 0.55), {0, 16.0 / 25, 0, 9.0 / 25});
}

TEST_CASE("of equal tokens top_p keeps the smallest") {
  const std::vector<float> logits = {1, 1, 1, 1};
  CheckShares(Counts(logits, 1, 0.25), {1, 0, 0, 0});
  CheckShares(Counts(logits, 1, 0.26), {0.5, 0.5, 0, 0});
  CheckShares(Counts(logits, 1, 0.75), {1.0 / 3, 1.0 / 3, 1.0 / 3, 0});
  CheckShares(Counts({-kInfinity, 1, -kInfinity, 1}, 1, 0.9), {0, 0.5, 0, 0.5});
}

TEST_CASE("a draw is a function of seed and number, and another one of others") {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7) * 0.1f;
  const auto drawn = [&](uint64_t seed, int64_t number) {
    return ChooseToken(logits, SamplingOf(1, 1, seed, number)).token;
  };
  std::map<int32_t, int> tokens;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (const int64_t number : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 33}) {
      CHECK(drawn(seed, number) == drawn(seed, number));
      ++tokens[drawn(seed, number)];
    }
  }
  CHECK(tokens.size() >= 11);  // of 12, in a thousand words
  // Philox4x32-10 of key 0 and counter 0 begins 6627e8d5 e169c58d: u = 0xe169c58d / 2^32 = 0.8805.
  std::vector<float> even(10'000, 0.0f);
  CHECK(ChooseToken(even, SamplingOf(1, 1, 0, 0)).token == 8805);
}

TEST_CASE("no token follows from logits that are none") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> cases[] = {{nan},          {0, nan},       {nan, 0},
                                      {0, kInfinity}, {kInfinity, 0}, {-kInfinity, -kInfinity}};
  for (const std::vector<float>& logits : cases) {
    for (const double temperature : {0.0, 1.0}) {
      for (const double top_p : {0.5, 1.0}) {
        const ChosenToken chosen = ChooseToken(logits, SamplingOf(temperature, top_p));
        CHECK(chosen.token == -1);
        CHECK(std::isnan(chosen.log_probability));
      }
    }
  }
}

}  // namespace
}  // namespace lorad::worker
