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

// What transformers 5.17 gives (get_scheduler over torch.optim.AdamW), and 5.24 likewise, to the
// last bit: peak * t / warmup and peak * left / after round otherwise in eight of these.
TEST_CASE("Learning rates have transformers' bits") {
  struct Case {
    LearningRateOptions options;
    int64_t t;
    double expected;
  };
  const Case cases[] = {
      {{Schedule::kLinear, 0.0003, 7, 100}, 3, 0x1.0da24296d98e5p-13},
      {{Schedule::kLinear, 0.0003, 7, 100}, 6, 0x1.0da24296d98e5p-12},
      {{Schedule::kLinear, 0.0003, 7, 100}, 7, 0x1.3a92a30553261p-12},
      {{Schedule::kLinear, 0.0003, 7, 100}, 8, 0x1.3730b74a15b21p-12},
      {{Schedule::kLinear, 0.0003, 7, 100}, 50, 0x1.5240152401523p-13},
      {{Schedule::kLinear, 0.0003, 7, 100}, 93, 0x1.7ad721eae2c28p-16},
      {{Schedule::kLinear, 0.0003, 7, 100}, 99, 0x1.b0f5dd9eba02ep-19},
      {{Schedule::kCosine, 0.0002, 10, 157}, 3, 0x1.f75104d551d69p-15},
      {{Schedule::kCosine, 0.0002, 10, 157}, 9, 0x1.797cc39ffd60fp-13},
      {{Schedule::kCosine, 0.0002, 10, 157}, 10, 0x1.a36e2eb1c432dp-13},
      {{Schedule::kCosine, 0.0002, 10, 157}, 11, 0x1.a361ec2630db3p-13},
      {{Schedule::kCosine, 0.0002, 10, 157}, 60, 0x1.36aaeef109df9p-13},
      {{Schedule::kCosine, 0.0002, 10, 157}, 100, 0x1.1292e45d84c31p-14},
      {{Schedule::kCosine, 0.0002, 10, 157}, 156, 0x1.8851726af4f0ep-26},
      {{Schedule::kLinear, 0.001, 0, 30}, 0, 0x1.0624dd2f1a9fcp-10},
      {{Schedule::kLinear, 0.001, 0, 30}, 1, 0x1.facfcdc177bd6p-11},
      {{Schedule::kLinear, 0.001, 0, 30}, 7, 0x1.91f4421506b0bp-11},
      {{Schedule::kLinear, 0.001, 0, 30}, 13, 0x1.2918b66895a40p-11},
      {{Schedule::kLinear, 0.001, 0, 30}, 29, 0x1.179ec9cbd821ep-15},
      {{Schedule::kConstant, 7e-05, 6, 20}, 1, 0x1.8777e75094fc2p-17},
      {{Schedule::kConstant, 7e-05, 6, 20}, 5, 0x1.e955e124ba3b4p-15},
      {{Schedule::kConstant, 7e-05, 6, 20}, 6, 0x1.2599ed7c6fbd2p-14},
      {{Schedule::kConstant, 7e-05, 6, 20}, 19, 0x1.2599ed7c6fbd2p-14},
      {{Schedule::kCosine, 0.0005, 0, 49}, 0, 0x1.0624dd2f1a9fcp-11},
      {{Schedule::kCosine, 0.0005, 0, 49}, 1, 0x1.05dfec3dfb207p-11},
      {{Schedule::kCosine, 0.0005, 0, 49}, 11, 0x1.cdc0a323b4200p-12},
      {{Schedule::kCosine, 0.0005, 0, 49}, 30, 0x1.57379d74e5f3dp-13},
      {{Schedule::kCosine, 0.0005, 0, 49}, 48, 0x1.13c3c47dfd2f2p-21},
  };
  for (const Case& c : cases) {
    INFO("peak " << c.options.peak << ", t " << c.t);
    CHECK(LearningRate(c.options, c.t) == c.expected);
  }
}

}  // namespace
}  // namespace lorad::planner
