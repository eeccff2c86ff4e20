#include "planner/cost/time.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <string>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

// A microbatch of one sequence.
Workload Alone(int64_t tokens) {
  const auto length = static_cast<double>(tokens);
  return {length, length * length};
}

void Observe(TimeFit& fit, const TimeCoefficients& prior, const Workload& work, double ms) {
  fit.Observe(work, ms, fit.Fit(prior));
}

TEST_CASE("A fit finds the coefficients of varied microbatches") {
  const TimeCoefficients truth{3, 0.7, 2e-4, 5e-8};
  const TimeCoefficients prior{0, 0.1, 1e-5, 1e-8};
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    TimeFit fit;
    for (int i = 0; i < 2000; ++i) {
      const int64_t sequences = 1 + static_cast<int64_t>(random() % 8);
      Workload work;
      for (int64_t s = 0; s < sequences; ++s) {
        const double length = 10 + static_cast<double>(random() % 500);
        const double parameters = 1e5 * static_cast<double>(1 << random() % 7);
        work += {length, length * length, parameters * length};
      }
      const double noise = 1 + (static_cast<double>(random() % 200) - 100) * 1e-4;
      Observe(fit, prior, work, truth.Ms(work, 1) * noise);
    }
    const TimeCoefficients found = fit.Fit(prior);
    CHECK(found.token_ms == Approx(truth.token_ms).epsilon(0.05));
    CHECK(found.adapter_ms == Approx(truth.adapter_ms).epsilon(0.05));
    CHECK(found.Ms({1000, 200'000, 1e9}, 1) ==
          Approx(truth.Ms({1000, 200'000, 1e9}, 1)).epsilon(0.01));
    CHECK(found.Ms({300, 90'000, 1e9}, 1) == Approx(truth.Ms({300, 90'000, 1e9}, 1)).epsilon(0.02));
  }
}

TEST_CASE("Microbatches all alike: their time is met, the rest stays near the prior's shape") {
  const TimeCoefficients prior{0, 0.5, 1e-4};
  TimeFit fit;
  for (int i = 0; i < 300; ++i) Observe(fit, prior, {1000, 250'000}, 1100);  // the prior says 525
  const TimeCoefficients found = fit.Fit(prior);
  CHECK(found.Ms({1000, 250'000}, 1) == Approx(1100).epsilon(0.01));
  CHECK(found.Ms({500, 62'500}, 1) > 262.5);
  CHECK(found.Ms({500, 62'500}, 1) < 1100);
}

TEST_CASE("What was never observed is foretold in the prior's proportions, as fast as the rest") {
  // The device is four times as fast as is assumed of it; what a microbatch has by itself nobody
  // knows.
  const TimeCoefficients prior{0, 0.4, 4e-4, 4e-7};
  TimeCoefficients truth = 0.25 * prior;
  truth.constant_ms = 3;
  TimeFit fit;
  for (int i = 0; i < 300; ++i) {
    const double tokens = 100 + 10 * (i % 50);
    const Workload work{tokens, 100 * tokens, 1000 * tokens};
    Observe(fit, prior, work, truth.Ms(work, 1));
  }
  const TimeCoefficients found = fit.Fit(prior);
  for (const Workload& other : {Workload{400, 160'000, 400'000}, Workload{400, 40'000, 4e8}}) {
    CHECK(found.Ms(other, 1) == Approx(truth.Ms(other, 1)).epsilon(0.05));
  }
}

TEST_CASE("No coefficient is negative") {
  TimeFit fit;
  // Falls with the squares: the least squares alone would make c negative.
  for (int i = 0; i < 100; ++i) {
    Observe(fit, {}, {1000, 10'000}, 110);
    Observe(fit, {}, {1000, 900'000}, 90);
  }
  const TimeCoefficients found = fit.Fit({});
  CHECK(found.constant_ms >= 0);
  CHECK(found.token_ms >= 0);
  CHECK(found.squared_ms >= 0);
  CHECK(found.Ms({1000, 100'000}, 1) == Approx(100).epsilon(0.02));
}

TEST_CASE("A device that is far from what is assumed of it has times of its own") {
  const TimeCoefficients prior{0, 1e-4, 1e-7, 1e-8};
  for (const double factor : {1e-6, 5e4}) {
    const TimeCoefficients truth = factor * TimeCoefficients{2e-4, 1e-4, 0, 0};
    TimeFit fit;
    for (int i = 0; i < 60; ++i) {
      const double tokens = 10 + 3 * (i % 25);
      const Workload work{tokens, 20 * tokens, 500 * tokens * (1 + i % 4)};
      Observe(fit, prior, work, truth.Ms(work, 1));
    }
    const TimeCoefficients found = fit.Fit(prior);
    CHECK(found.Ms(100, 1) == Approx(truth.Ms(100, 1)).epsilon(0.1));
    CHECK(found.Ms(20, 1) == Approx(truth.Ms(20, 1)).epsilon(0.1));
  }
}

TEST_CASE("Noise alone puts no time on adapters that take next to none") {
  const TimeCoefficients truth{0, 0.4, 4e-5, 1e-7};
  for (const uint32_t seed : Seeds()) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::lognormal_distribution<> noise(0, 1);
    for (int trial = 0; trial < 100; ++trial) {
      TimeFit fit;
      for (int i = 0; i < 12; ++i) {
        const double tokens = 100 + static_cast<double>(random() % 900);
        const double parameters = 1000 * static_cast<double>(1 << random() % 5);
        const Workload work{tokens, 100 * tokens, parameters * tokens};
        Observe(fit, truth, work, truth.Ms(work, 1) * noise(random));
      }
      const TimeCoefficients found = fit.Fit(truth);
      CHECK(found.Ms(1000, 1) > 0.2 * truth.Ms(1000, 1));
      CHECK(found.adapter_ms < 10 * truth.adapter_ms);
    }
  }
}

TEST_CASE("Times of nothing leave times above nothing") {
  TimeModel model(
      PriorOf({.flops_per_token = 2e8, .flops_per_squared = 1e5, .flops_per_second = 1e11}));
  for (int i = 0; i < 1000; ++i) model.Observe({1000, 250'000, 1e6}, 0, 1e-300);
  CHECK(model.TrainMs({1000, 250'000, 1e6}, 1) > 0);
  CHECK(model.EvaluatedShare(1000) > 0);
  CHECK(model.EvaluatedShare(1000) <= 1);
}

TEST_CASE("Old observations fade") {
  TimeFit fit;
  for (int i = 0; i < 5000; ++i) Observe(fit, {}, {1000, 100'000}, 100);
  for (int i = 0; i < 3000; ++i) Observe(fit, {}, {1000, 100'000}, 300);
  CHECK(fit.Fit({}).Ms({1000, 100'000}, 1) == Approx(300).epsilon(0.01));
  CHECK(fit.observations() == 8000);
}

TEST_CASE(
    "One microbatch that stood still spoils no fit, wherever it comes; a slow device is seen") {
  const TimeCoefficients truth{3, 0.01, 0}, prior{0, 0.1, 0};
  for (const int stopped : {0, 1, 40, 99}) {
    INFO("microbatch " << stopped);
    TimeFit fit;
    for (int i = 0; i < 100; ++i) {
      const Workload work = Alone(i % 2 == 0 ? 100 : 150);
      Observe(fit, prior, work, truth.Ms(work, 1) + (i == stopped ? 2000 : 0));
    }
    CHECK(fit.observations() == 100);
    CHECK(fit.Fit({}).Ms({125, 15'625}, 1) == Approx(truth.Ms({125, 0}, 1)).epsilon(0.1));
  }
  TimeFit fit;
  for (int i = 0; i < 10; ++i) Observe(fit, prior, {100, 10'000}, 4);
  for (int i = 0; i < 3000; ++i) Observe(fit, prior, {100, 10'000}, 400);
  CHECK(fit.Fit({}).Ms({100, 10'000}, 1) == Approx(400).epsilon(0.01));
  // Of very unlike sizes each counts as it is.
  TimeFit unlike;
  for (int i = 0; i < 400; ++i) {
    const Workload work = Alone(i % 2 == 0 ? 10 : 10'000);
    Observe(unlike, prior, work, truth.Ms(work, 1));
  }
  for (const int64_t tokens : {10, 10'000}) {
    CHECK(unlike.Fit({}).Ms(Alone(tokens), 1) == Approx(truth.Ms(Alone(tokens), 1)).epsilon(0.01));
  }
}

TEST_CASE("One that stood still spoils none either where ranks are unlike; a dear rank is seen") {
  const TimeCoefficients prior{0, 0.1, 0, 1e-8};
  const auto of_rank = [](int i) { return Workload{100, 10'000, i % 2 == 0 ? 1e6 : 64e6}; };
  const auto fit_of = [&](const TimeCoefficients& truth, int stopped) {
    TimeFit fit;
    for (int i = 0; i < 200; ++i) {
      Observe(fit, prior, of_rank(i), truth.Ms(of_rank(i), 1) + (i == stopped ? 5000 : 0));
    }
    return fit.Fit(prior);
  };
  const TimeCoefficients cheap{3, 0.1, 0, 1e-8};
  for (const int stopped : {0, 1, 40, 41, 198, 199}) {
    INFO("microbatch " << stopped);
    const TimeCoefficients found = fit_of(cheap, stopped);
    for (const int i : {0, 1}) {
      CHECK(found.Ms(of_rank(i), 1) == Approx(cheap.Ms(of_rank(i), 1)).epsilon(0.1));
    }
  }
  // Thirty times as dear as is assumed: what is expected of it follows.
  const TimeCoefficients dear{3, 0.1, 0, 3e-7};
  for (const int i : {0, 1}) {
    CHECK(fit_of(dear, -1).Ms(of_rank(i), 1) == Approx(dear.Ms(of_rank(i), 1)).epsilon(0.05));
  }
}

TEST_CASE("Before any measurement the prior speaks, and says so") {
  TimeModel model(
      PriorOf({.flops_per_token = 2e8, .flops_per_squared = 1e5, .flops_per_second = 1e11}));
  CHECK(std::string(model.basis()) == kAssumedBasis);
  CHECK(model.EvaluateMs({1000, 0}, 1) == Approx(2000));
  CHECK(model.TrainMs({1000, 0}, 1) == Approx(4000));
  CHECK(model.TrainMs({0, 1e6}, 1) == Approx(1000 * 3.5));
  CHECK(model.EvaluatedShare(1000) == Approx(0.5));
  for (int i = 0; i < 50; ++i) model.Observe({1000, 250'000}, 3000, 5000);
  CHECK(model.EvaluatedShare(1000) == Approx(3.0 / 8).epsilon(0.02));
  CHECK(std::string(model.basis()) == kMeasuredBasis);
  CHECK(model.TrainMs({1000, 250'000}, 1) == Approx(8000).epsilon(0.05));
}

TEST_CASE("A device that has only evaluated so far trains as much faster or slower than assumed") {
  const TimePrior prior =
      PriorOf({.flops_per_token = 2e8, .flops_per_squared = 1e5, .flops_per_second = 1e11});
  const Workload work{1000, 250'000, 1e6};
  for (const double level : {0.1, 10.0}) {
    TimeModel model(prior);
    for (int i = 0; i < 8; ++i) model.Observe(work, level * prior.forward.Ms(work, 1), 0);
    CHECK(std::string(model.basis()) == kMeasuredBasis);
    CHECK(model.TrainMs(work, 1) ==
          Approx(level * TimeModel(prior).TrainMs(work, 1)).epsilon(0.05));
    CHECK(model.EvaluatedShare(1000) ==
          Approx(TimeModel(prior).EvaluatedShare(1000)).epsilon(0.05));
  }
}

TEST_CASE("A replica: the sum of its microbatches, and a pipeline's filling") {
  struct Case {
    std::vector<double> microbatch_ms;
    int stages;
    double ms;
  };
  const Case cases[] = {
      {{}, 4, 0}, {{5}, 1, 5}, {{5}, 4, 20}, {{5, 7, 3}, 1, 15}, {{5, 7, 3}, 3, 29},
  };
  for (const Case& c : cases) CHECK(ReplicaMs(c.microbatch_ms, c.stages) == c.ms);
}

TEST_CASE(
    "A time says by how much it is longer or shorter than what is nearest to it and measured") {
  TimeModel model(PriorOf({.flops_per_token = 2e5, .flops_per_second = 1e11}));
  CHECK(model.BasisOf({500, 62'500, 500'000}) == kAssumedBasis);
  // 0.3 ms a token, forward and backward; nothing of attention, and 3 ns of a parameter.
  for (double tokens = 100; tokens <= 1000; tokens += 50) {
    for (const double rank : {4, 8}) {
      const double adapter_work = 1000 * rank * tokens, squares = tokens * tokens / 4;
      const double ms = 0.1 * tokens + 1e-6 * adapter_work;
      model.Observe({tokens, squares, adapter_work}, ms, 2 * ms);
    }
  }
  const auto of_rank = [](double tokens, double rank) {
    return Workload{tokens, tokens * tokens / 4, 1000 * rank * tokens};
  };
  CHECK(model.BasisOf(of_rank(500, 6)) == kMeasuredBasis);
  CHECK(model.BasisOf(of_rank(1050, 8)) == kMeasuredBasis);
  const auto percent = [&](const Workload& work) {
    int by = 0;
    REQUIRE(std::sscanf(model.BasisOf(work).c_str(),
                        "measured on this base model, extrapolated by %d %%", &by) == 1);
    return by;
  };
  CHECK(percent(of_rank(2000, 4)) == Approx(93).margin(3));
  CHECK(percent(of_rank(50, 4)) == Approx(100).margin(3));
  // An adapter of twice the rank takes twice the adapters' time, which is a twelfth of all.
  CHECK(model.BasisOf(of_rank(1000, 16)) == kMeasuredBasis);
  CHECK(percent(of_rank(1000, 100)) == Approx(85).margin(3));
}

TEST_CASE("What training takes is known term by term where a device has only evaluated") {
  TimeModel model(PriorOf({.flops_per_token = 2e5, .flops_per_second = 1e11}));
  for (double tokens = 8; tokens <= 32; tokens += 4) {
    model.Observe({tokens, tokens * tokens / 2, 0}, 2 + 2e-3 * tokens, 0);  // all but a constant
  }
  // As long as the forward of frozen weights, whatever that is of rows as few as those.
  CHECK(model.EvaluatedShare(1024) == Approx(0.5).epsilon(0.05));
  CHECK(model.TrainMs(1024, 1) == Approx(2 * (2 + 2e-3 * 1024)).epsilon(0.3));
}

TEST_CASE("Where all that was seen goes with adapters, tokens without one still take their time") {
  TimePrior prior;
  prior.forward = {.token_ms = 2.72e-5, .squared_ms = 4e-7, .adapter_ms = 2.5e-8};
  prior.backward = {.token_ms = 2.72e-5, .squared_ms = 1e-6, .adapter_ms = 5e-8};
  TimeModel model(prior);
  // Of the simulator, whose tokens take next to no time and whose network is as late as it likes.
  model.Observe({11, 85, 1408}, 1, 0);
  model.Observe({11, 85, 11264}, 21, 0);
  model.Observe({40, 450, 5120}, 1, 1);
  model.Observe({19, 265, 19456}, 21, 0);
  REQUIRE(model.EvaluateMs(64, 1) == 0);
  CHECK(model.TrainMs(64, 1) > 0);
  CHECK(std::isfinite(model.EvaluatedShare(64)));
}

TEST_CASE("A time says how uncertain it is in a proportion that was never measured") {
  const WorkModel device{.flops_per_token = 2e5, .flops_per_second = 1e11};
  // Adapters of 64,000 parameters; on this device their work takes thrice the assumed time.
  const auto work = [](double tokens, double parameters) {
    return Workload{tokens, 100 * tokens, parameters * tokens};
  };
  const auto ms_of = [](const Workload& w) { return 2e-3 * w.tokens + 6e-8 * w.adapter_work; };
  TimeModel model(PriorOf(device));
  const auto observe = [&](const Workload& w) { model.Observe(w, ms_of(w), 2 * ms_of(w)); };
  for (double tokens = 100; tokens <= 1000; tokens += 50) observe(work(tokens, 64'000));
  const auto percent = [&](const Workload& w) {
    int by = 0;
    REQUIRE(std::sscanf(model.BasisOf(w).c_str(), "measured on this base model, uncertain by %d %%",
                        &by) == 1);
    return by;
  };
  // As measured, whatever the length.
  for (const double tokens : {100, 300, 1000}) {
    CHECK(model.BasisOf(work(tokens, 64'000)) == kMeasuredBasis);
    CHECK(model.BasisOf(work(tokens, 72'000)) == kMeasuredBasis);
  }
  // Every term lies within its range, yet how a time parts between them is assumed.
  for (const Workload& unlike : {work(100, 512'000), work(1000, 8'000)}) {
    const double by = percent(unlike) / 100.0, ms = model.TrainMs(unlike, 1);
    CAPTURE(unlike.tokens, by, ms);
    CHECK(std::abs(3 * ms_of(unlike) - ms) < 2 * by * ms);
  }
  // A few of them say it.
  for (int i = 0; i < 4; ++i) observe(work(200, 256'000));
  CHECK(model.BasisOf(work(100, 512'000)) == kMeasuredBasis);
  CHECK(model.BasisOf(work(1000, 8'000)) == kMeasuredBasis);
}

}  // namespace
}  // namespace lorad::planner
