// Jobs that need several workers, foreseen: planner/foresight/foresee.h.
#include "tests/planner/schedule/several.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "tests/planner/by_name.h"

namespace lorad::planner {
namespace {

TEST_CASE("A step that no other overlaps fills the stages and drains them") {
  CHECK(FillAndDrainFactor(0, 1024, 2) == 2);
  CHECK(FillAndDrainFactor(1024, 1024, 4) == 4);
  CHECK(FillAndDrainFactor(1025, 1024, 2) == 1.5);
  CHECK(FillAndDrainFactor(8192, 8192, 2) == 1.125);  // cut to eight
  CHECK(FillAndDrainFactor(1000, 100, 3) == 1.2);
  CHECK(FillAndDrainFactor(1000, 100, 1) == 1);
}

TEST_CASE("A pipeline is as fast as its slowest stage lets it be") {
  ClusterView view = Timed({}, {});
  view.times[{"large", "slow"}] = {100, 1, 0};
  QueuedJob job = Wide("a");
  job.remaining_steps = 10;
  for (const char* name : {"u", "v"}) {
    view.workers.push_back(Node(name));
    view.workers.back().device_name = "slow";
  }
  view.queue = {job};
  const double share = SlowestShare(SmolLm2(), {{0, 38}, {38, 60}}, 50);
  CHECK(share == Approx(0.5).margin(0.03));
  // A job alone whose steps are one microbatch has one stage wait for the other.
  CHECK(ForeseeByName(view).at("a").end_s == Approx(10 * 0.3 * share * 2));
  // Two jobs overlap, and so do the microbatches of one step.
  view.queue.push_back(job);
  view.queue.back().job = "b";
  CHECK(ForeseeByName(view).at("a").end_s == Approx(10 * 0.5 * share * 1.2).epsilon(1e-9));
  view.queue.pop_back();
  view.queue[0].step_tokens = 4096;
  CHECK(ForeseeByName(view).at("a").end_s == Approx(10 * (0.4 + 4.096) * share * 5 / 4));
}

// A round of each takes 0.3 s alone, of several at most as long; forming takes 5 s.
ClusterView Ahead(std::vector<WorkerView> workers, std::vector<GroupView> groups,
                  std::vector<QueuedJob> queue) {
  ClusterView view = Of(std::move(workers), std::move(groups), std::move(queue));
  for (WorkerView& worker : view.workers) worker.device_name = "slow";
  for (GroupView& group : view.groups) group.device_name = "slow";
  for (const char* base : {"large", "wide", "small"}) {
    view.times[{base, "slow"}] = {100, 1, 0};
    view.load_s[{base, "slow"}] = 5;
  }
  return view;
}

QueuedJob WithSteps(QueuedJob job, int64_t steps) {
  job.step_tokens = 200;
  job.remaining_steps = steps;
  return job;
}

GroupView Trains(const std::string& name, const std::vector<std::string>& workers,
                 const QueuedJob& job) {
  GroupView group = On(name, workers, {job}, job);
  group.running[0].remaining_steps = job.remaining_steps;
  return group;
}

TEST_CASE("It is foreseen when several workers come together and part") {
  const WorkerView u = Busy(Node("u")), v = Busy(Node("v"));
  QueuedJob wide = WithSteps(Wide("wide"), 100);
  wide.base_model = "wide";
  const QueuedJob large = WithSteps(Wide("large"), 100);
  const QueuedJob small = WithSteps(Narrow("small", 101), 100),
                  next = WithSteps(Narrow("next", 102), 1);
  SECTION("one after the other on the same workers") {
    const auto seen = ForeseeByName(Ahead({u, v}, {Trains("g", {"u", "v"}, wide)}, {large, small}));
    CHECK(seen.at("large").start_s == Approx(seen.at("wide").end_s + 5));
    CHECK(seen.at("small").start_s == Approx(seen.at("large").end_s + 5));
    CHECK(seen.at("small").end_s == Approx(seen.at("small").start_s + 30));
  }
  SECTION("the workers of two groups, the first of which waits for the other") {
    const ClusterView view = Ahead({u, v},
                                   {Trains("g", {"u"}, WithSteps(Narrow("short"), 10)),
                                    Trains("h", {"v"}, WithSteps(Narrow("long"), 100))},
                                   {WithSteps(Narrow("ahead", 99), 20), large, next});
    const auto seen = ForeseeByName(view);
    CHECK(seen.at("ahead").start_s == 0);
    CHECK(seen.at("large").start_s == Approx(seen.at("long").end_s + 5));
    CHECK(seen.at("next").start_s == Approx(seen.at("large").end_s + 5));
  }
  SECTION("those that will be free the soonest, and the third goes on") {
    const auto seen = ForeseeByName(Ahead({u, v, Busy(Node("w"))},
                                          {Trains("g", {"u"}, WithSteps(Narrow("long"), 1000)),
                                           Trains("h", {"v"}, WithSteps(Narrow("short"), 10)),
                                           Trains("i", {"w"}, WithSteps(Narrow("soon"), 20))},
                                          {large, next}));
    CHECK(seen.at("large").start_s == Approx(seen.at("soon").end_s + 5));
    CHECK(seen.at("next").start_s == 0);  // beside the long one
  }
  SECTION("two that fall free together, and one that idles goes on meanwhile") {
    const auto seen =
        ForeseeByName(Ahead({Node("idle"), u, v}, {Trains("g", {"u", "v"}, wide)}, {large, small}));
    CHECK(seen.at("large").start_s == Approx(seen.at("wide").end_s + 5));
    CHECK(seen.at("small").start_s == Approx(5));
  }
  SECTION("workers without a job are put together at once, and each by itself") {
    GroupView empty = On("g", {"u"}, {}, small);
    const auto seen = ForeseeByName(Ahead({u, Node("v")}, {empty}, {large}));
    CHECK(seen.at("large").start_s == Approx(5));
    QueuedJob second = small;
    second.job = "second";
    second.alone = true;
    GroupView both = On("g", {"u", "v"}, {}, wide);
    const auto parted = ForeseeByName(Ahead({u, v}, {both}, {small, second}));
    CHECK(parted.at("small").start_s == Approx(5));
    CHECK(parted.at("second").start_s == Approx(5));
    // Their own base model needs nothing loaded.
    CHECK(ForeseeByName(Ahead({u, v}, {both}, {wide})).at("wide").start_s == 0);
  }
  SECTION("a job that is registered for more workers than there are is not foreseen") {
    QueuedJob three = large;
    three.stages = 3;
    CHECK_FALSE(ForeseeByName(Ahead({u, Node("v")}, {}, {three})).contains("large"));
  }
}

TEST_CASE("1,000 jobs of one worker and of two on 64") {
  std::vector<WorkerView> workers;
  for (int i = 0; i < 64; ++i) workers.push_back(Node("w" + std::to_string(i)));
  std::vector<QueuedJob> queue;
  for (int i = 0; i < 1000; ++i) {
    QueuedJob job = i % 3 == 0 ? Narrow(std::to_string(i), i) : Wide(std::to_string(i), i);
    if (i % 3 == 1) job.base_model = "wide";
    queue.push_back(WithSteps(job, 1 + i % 7));
    queue.back().alone = i % 5 == 0;
  }
  const std::clock_t begin = std::clock();  // of this process, whoever else computes
  const auto seen = ForeseeByName(Ahead(workers, {}, queue));
  const double took_ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::cout << "foresaw 1,000 jobs of one worker and of two in " << took_ms << " ms\n";
  CHECK(seen.size() == 1000);
  CHECK(took_ms < 1000);  // a hang or a square would show
}

}  // namespace
}  // namespace lorad::planner
