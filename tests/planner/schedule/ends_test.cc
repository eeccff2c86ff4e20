#include "planner/schedule/ends.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "planner/schedule/schedule.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

TEST_CASE("A round, and the ends of a group's jobs") {
  // 100 ms and 1 ms a token, microbatches of 1,000 tokens.
  const TimeCoefficients times{100, 1, 0};
  CHECK(RoundMs(times, 0, 1000) == Approx(100));
  CHECK(RoundMs(times, 400, 1000) == Approx(500));
  CHECK(RoundMs(times, 1000, 1000) == Approx(1100));
  CHECK(RoundMs(times, 2500, 1000) == Approx(250 + 2500));
  // 0.001 ms a square, and 0.001 a token and a thousand parameters.
  const TimeCoefficients all{100, 1, 1e-3, 1e-6};
  CHECK(RoundMs(all, {400, 20'000}, 1000) == Approx(500 + 20));
  CHECK(RoundMs(all, StepOf(400, 20'000, 10'000), 1000) ==
        Approx(500 + 20 + 0.01 * (400 + kTokensOfStep)));
  struct Case {
    std::vector<JobWork> jobs;
    std::vector<double> ends;
  };
  const Case cases[] = {
      {{}, {}},
      {{{400, 10}}, {5}},
      {{{400, 10}, {400, 10}}, {9, 9}},
      // Ten rounds of 900 ms, then twenty of 500.
      {{{400, 30}, {400, 10}}, {19, 9}},
      // Ten rounds of 2,750 ms, ten of 1,650, ten of 1,100.
      {{{1000, 20}, {1000, 10}, {500, 30}}, {44, 27.5, 50}},
      {{{400, 0}, {400, 10}}, {0, 5}},
  };
  for (const Case& c : cases) {
    const std::vector<double> ends = EndsOf(times, 1000, c.jobs);
    REQUIRE(ends.size() == c.ends.size());
    for (size_t i = 0; i < ends.size(); ++i) CHECK(ends[i] == Approx(c.ends[i]));
  }
}

// Step by step, as the group does it.
std::vector<double> Rounds(const TimeCoefficients& times, int64_t capacity,
                           std::vector<JobWork> jobs) {
  std::vector<double> ends(jobs.size());
  for (double now_ms = 0;;) {
    Workload round;
    for (const JobWork& job : jobs) round += job.remaining_steps > 0 ? job.step : Workload();
    if (round.tokens == 0) return ends;
    now_ms += RoundMs(times, round, capacity);
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].remaining_steps > 0 && --jobs[i].remaining_steps == 0) ends[i] = now_ms / 1000;
    }
  }
}

TEST_CASE("Ends and their sums are those of training round by round") {
  for (const uint32_t seed : Seeds()) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto draw = [&](uint32_t most) { return static_cast<int64_t>(1 + random() % most); };
    for (int trial = 0; trial < 200; ++trial) {
      const TimeCoefficients times{static_cast<double>(draw(100)), static_cast<double>(draw(3)),
                                   1e-3 * static_cast<double>(draw(3)),
                                   1e-6 * static_cast<double>(draw(3))};
      const auto draw_job = [&] {
        const auto tokens = static_cast<double>(draw(900));
        const auto squares = tokens * static_cast<double>(draw(300));
        return JobWork{StepOf(tokens, squares, 1000 * draw(64)), draw(40)};
      };
      std::vector<JobWork> jobs;
      for (size_t i = 0, count = random() % 8; i < count; ++i) {
        jobs.push_back(draw_job());
      }
      const std::vector<double> expected = Rounds(times, 1000, jobs);
      const std::vector<double> ends = EndsOf(times, 1000, jobs);
      for (size_t i = 0; i < jobs.size(); ++i) CHECK(ends[i] == Approx(expected[i]));
      const auto sum = [&](const std::vector<JobWork>& of) {
        const std::vector<double> each = EndsOf(times, 1000, of);
        return std::accumulate(each.begin(), each.end(), 0.0);
      };
      Crew crew;
      for (const JobWork& job : jobs) crew.Add(job);
      CHECK(crew.SumOfEnds(times, 1000) == Approx(sum(jobs)));
      const JobWork comes = draw_job();
      std::vector<JobWork> more = jobs;
      more.push_back(comes);
      CHECK(crew.SumOfEnds(times, 1000, &comes) == Approx(sum(more)));
      if (jobs.empty()) continue;
      const size_t leaves = random() % jobs.size();
      std::vector<JobWork> changed = crew.jobs();
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(leaves));
      CHECK(crew.SumOfEnds(times, 1000, nullptr, leaves) == Approx(sum(changed)));
      changed.push_back(comes);
      CHECK(crew.SumOfEnds(times, 1000, &comes, leaves) == Approx(sum(changed)));
      crew.Remove(jobs[0]);
      crew.Add(jobs[0]);
      CHECK(crew.SumOfEnds(times, 1000) == Approx(sum(jobs)));
    }
  }
}

TEST_CASE("A group gains by each job until its steps fill a microbatch, and no further") {
  const TimeCoefficients times{
      .constant_ms = 100, .token_ms = 1, .squared_ms = 1e-4, .adapter_ms = 1e-6};
  const Workload low = StepOf(200, 10'000, 10'000), high = StepOf(200, 10'000, 2'000'000);
  Workload round = low;
  for (const Workload& step : {high, low, high, low}) {  // 1,000 tokens
    const double gain = SharingGain(times, round, step, 1000);
    // One microbatch where two as full as before would be, and a part of one.
    Workload both = round;
    both += step;
    const double apart_ms = times.Ms(both, both.tokens / round.tokens);
    CHECK(gain == Approx(apart_ms / times.Ms(both, 1) - 1));
    CHECK(gain > 0);
    round = both;
  }
  for (const Workload& step : {low, high})
    CHECK(std::abs(SharingGain(times, round, step, 1000)) < 1e-9);
  // Of equal jobs it is the share by which their tokens a second rise.
  const TimeCoefficients alike{.constant_ms = 100, .token_ms = 1};
  const auto rate = [&](double tokens) { return tokens / RoundMs(alike, tokens, 1000); };
  CHECK(SharingGain(alike, 400, 200, 1000) == Approx(rate(600) / rate(400) - 1));
  CHECK(SharingGain(alike, 900, 300, 1000) == Approx(rate(1200) / rate(900) - 1));
}

}  // namespace
}  // namespace lorad::planner
