#include "planner/window/learning_rate.h"

#include <catch2/catch.hpp>

namespace lorad::planner {
namespace {

TEST_CASE("Learning rates are transformers'") {
  struct Case {
    LearningRateOptions options;
    int64_t t;
    double expected;
  };
  const LearningRateOptions cosine{Schedule::kCosine, 1e-3, 2, 10};
  const LearningRateOptions linear{Schedule::kLinear, 1e-2, 0, 4};
  const LearningRateOptions warm{Schedule::kLinear, 1.0, 4, 8};
  const LearningRateOptions constant{Schedule::kConstant, 0.5, 2, 4};
  const LearningRateOptions all_warm{Schedule::kCosine, 1.0, 4, 4};
  const Case cases[] = {
      // What a run of transformers 5.17 logged (cosine, warm-up 2 of 10).
      {cosine, 0, 0},
      {cosine, 1, 0.0005},
      {cosine, 2, 0.001},
      {cosine, 3, 0.0009619397662556434},
      {cosine, 4, 0.0008535533905932737},
      {cosine, 6, 0.0005},
      {cosine, 9, 3.806023374435663e-05},
      {linear, 0, 0.01},
      {linear, 1, 0.0075},
      {linear, 3, 0.0025},
      {warm, 3, 0.75},
      {warm, 4, 1.0},
      {warm, 7, 0.25},
      {warm, 9, 0},
      {constant, 0, 0},
      {constant, 1, 0.25},
      {constant, 3, 0.5},
      {all_warm, 3, 0.75},
  };
  for (const Case& c : cases) {
    INFO("t " << c.t);
    CHECK(LearningRate(c.options, c.t) == Approx(c.expected).epsilon(1e-12).margin(1e-18));
  }
}

}  // namespace
}  // namespace lorad::planner
