// Workers that are slower than others of their kind: who goes where, who moves, what is foreseen.
#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/by_name.h"
#include "tests/planner/schedule/several.h"
#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

constexpr int64_t kCapacity = 1024;  // Running's
const TimeCoefficients kSlowDevice{100, 1, 0};
const JobWork kWork{500, 100'000};

// So many of them on a worker that is so slow.
double SumOf(size_t jobs, double slowness) {
  Crew crew;
  for (size_t i = 0; i < jobs; ++i) crew.Add(kWork);
  return crew.SumOfEnds(slowness * kSlowDevice, kCapacity);
}

// The sum of ends of sixteen, so many of them on a worker that is so slow and the others on one that
// is not, over the least there is.
double OverLeast(size_t on_slow, double slowness) {
  const auto sum = [&](size_t jobs) { return SumOf(jobs, slowness) + SumOf(16 - jobs, 1); };
  double least = std::numeric_limits<double>::infinity();
  for (size_t jobs = 0; jobs <= 16; ++jobs) least = std::min(least, sum(jobs));
  return sum(on_slow) / least;
}

// Groups "g" and "h" of one kind, so slow and with so many of these jobs.
ClusterView TwoGroups(double g_slowness, size_t g_jobs, double h_slowness, size_t h_jobs) {
  ClusterView view = With(Timed({}, {}), {Running("g", "slow", std::vector(g_jobs, kWork)),
                                          Running("h", "slow", std::vector(h_jobs, kWork))});
  view.workers[0].slowness = g_slowness;
  view.workers[1].slowness = h_slowness;
  return view;
}

// Those that leave group "g", less those that come.
int MovesFrom(const std::vector<Decision>& decisions) {
  int moves = 0;
  for (const Decision& decision : decisions) {
    REQUIRE(decision.kind == Decision::Kind::kReplace);
    moves += decision.group == "g" ? 1 : -1;
  }
  return moves;
}

TEST_CASE("jobs move off a worker that is slow until all end nearly as early as can be") {
  for (const double slowness : {1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 40.0}) {
    const ClusterView view = TwoGroups(slowness, 8, 1, 8);
    const auto decisions = Schedule(view);
    const int moved = MovesFrom(decisions);
    INFO("slowness " << slowness << ": " << moved << " move");
    REQUIRE(moved >= 0);
    CHECK((moved > 0) == (slowness > 1.3));
    CHECK(OverLeast(8 - moved, slowness) <= 1 + view.policy.least_share);
    // And back, where it recovers.
    const int back = -MovesFrom(Schedule(TwoGroups(1, 8 - moved, 1, 8 + moved)));
    CHECK(OverLeast(8 - moved + back, 1) <= 1 + view.policy.least_share);
  }
}

TEST_CASE("a move says whose speed it is for") {
  const auto decisions = Schedule(TwoGroups(3, 2, 1, 2));
  REQUIRE(decisions.size() == 1);
  CHECK_THAT(decisions[0].why, Catch::EndsWith("; its worker has 0.33 x the speed of its kind"));
  const auto from_fast = Schedule(TwoGroups(1, 4, 1.5, 0));
  REQUIRE_FALSE(from_fast.empty());
  CHECK_THAT(from_fast[0].why, !Catch::Contains("speed"));
}

TEST_CASE("a slowness that jitters moves one more job at the most, whatever the minimum run time") {
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    const auto jitter = [&] { return 0.9 + static_cast<double>(random() % 201) / 1000; };
    for (const double slowness : {1.0, 1.4, 2.0, 3.0, 6.0}) {
      size_t on_g = 8, late = 0;
      for (int turn = 0; turn < 1000; ++turn) {
        ClusterView view = TwoGroups(slowness * jitter(), on_g, 1, 16 - on_g);
        view.policy.minimum_run_s = 0;
        const auto decisions = Schedule(view);
        on_g -= static_cast<size_t>(MovesFrom(decisions));
        if (turn > 0) late += decisions.size();
      }
      INFO("seed " << seed << ", slowness " << slowness << ", " << on_g << " stay");
      CHECK(late <= 1);
    }
  }
}

TEST_CASE("a job goes to the worker of a kind where all end earliest") {
  const auto with = [](std::vector<WorkerView> idle, double slowness, std::vector<QueuedJob> queue,
                       const std::vector<GroupView>& groups = {}) {
    ClusterView view = With(Timed(std::move(idle), std::move(queue)), groups);
    view.workers[0].slowness = slowness;
    return Text(view);
  };
  const std::vector<WorkerView> two = {IdleOn("a"), IdleOn("b")};
  CHECK(with(two, 1, {Steps("x", 100)}) == "form a base=m 1024/100: x\n");
  CHECK(with(two, 2, {Steps("x", 100)}) == "form b base=m 1024/100: x\n");
  CHECK(with(two, 0.5, {Steps("x", 100)}) == "form a base=m 1024/100: x\n");
  // Two together end after 50 s each; alone after 30, and beside that after 3 times 30.
  CHECK(with(two, 3, {Steps("x", 100), Steps("y", 100, 200, 1)}) ==
        "form b base=m 1024/100: x y\n");
  const std::vector<GroupView> beside = {Running("g", "slow", {{200, 100}})};
  CHECK(with({IdleOn("a")}, 2, {Steps("x", 100)}, beside) == "form a base=m 1024/100: x\n");
  CHECK(with({IdleOn("a")}, 3, {Steps("x", 100)}, beside) == "admit g: x\n");
  // Who is placed once and not moved any more.
  QueuedJob suspect = Steps("x", 100);
  suspect.company_max = 1;
  CHECK(with(two, 2, {suspect}) == "form b base=m 1024/100: x\n");
  CHECK(with(two, 1, {suspect}) == "form a base=m 1024/100: x\n");
}

TEST_CASE("a group without jobs makes way where its worker is not too slow for that") {
  GroupView empty = Running("e", "slow", {});
  empty.base_model = "n";
  ClusterView view =
      With(Timed({}, {Steps("x", 100)}), {empty, Running("g", "slow", {{200, 100}})});
  view.workers[0].slowness =
      2;  // 60 s there, and beside the other both end after 50, not one at 30
  CHECK(Text(view) == "dissolve #1 e: x\n");
  view.workers[0].slowness = 3;
  CHECK(Text(view) == "admit g: x\n");
}

TEST_CASE("of idle workers that differ in speed alone the least slow is looked at") {
  std::vector<WorkerView> idle;
  for (int i = 0; i < 12; ++i) {
    idle.push_back(IdleOn("w" + std::to_string(i)));
    idle.back().slowness = 3 - 0.1 * i;
  }
  const auto decisions =
      Schedule(With(Timed(idle, {}), {Running("g", "slow", std::vector(4, kWork))}));
  REQUIRE_FALSE(decisions.empty());
  CHECK(decisions[0].worker == "w11");
}

TEST_CASE("ends are foreseen by how slow a worker is, and a pace that was measured has that") {
  ClusterView view = With(Timed({}, {Steps("other", 10, 200, 1, "n")}),
                          {Running("g", "slow", {{200, 10}, {200, 20}})});
  view.workers[0].slowness = 3;
  auto seen = ForeseeByName(view);  // rounds of 500 and then of 300 ms, three times as long
  CHECK(seen.at("g0").end_s == Approx(15));
  CHECK(seen.at("g1").end_s == Approx(24));
  CHECK(seen.at("other").end_s - seen.at("other").start_s == Approx(9));
  view.groups[0].computed = 400;
  view.groups[0].computed_s = 1;  // a round a second
  seen = ForeseeByName(view);
  CHECK(seen.at("g0").end_s == Approx(10));
  CHECK(seen.at("g1").end_s == Approx(16));
  CHECK(seen.at("other").end_s - seen.at("other").start_s == Approx(9));
  ClusterView idle = Timed({IdleOn("w")}, {Steps("a", 10)}, 4);
  idle.workers[0].slowness = 3;
  CHECK(ForeseeByName(idle).at("a").end_s == Approx(4 + 9));
}

TEST_CASE("a group of several workers is as slow as the slowest of them") {
  const auto end_s = [](double a, double b) {
    ClusterView view =
        Of({Busy(Node("a")), Busy(Node("b"))}, {On("g", {"a", "b"}, {Wide("x")}, Wide("x"))}, {});
    view.workers[0].slowness = a;
    view.workers[1].slowness = b;
    view.times[{"large", ""}] = {100, 1, 0};
    return ForeseeByName(view).at("x").end_s;
  };
  CHECK(end_s(1, 1) > 0);
  CHECK(end_s(1, 3) == Approx(3 * end_s(1, 1)));
  CHECK(end_s(3, 2) == Approx(3 * end_s(1, 1)));
}

}  // namespace
}  // namespace lorad::planner
