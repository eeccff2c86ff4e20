// Jobs that differ in what a step computes alone, their ranks and the squares of their lengths,
// wherever they are weighed: queued, in a group, evicted, replayed. A step has 200 tokens.
#include <catch2/catch.hpp>

#include "planner/replay/replay.h"
#include "planner/schedule/schedule.h"
#include "tests/planner/by_name.h"
#include "tests/planner/replay/fixtures.h"
#include "tests/planner/schedule/fixtures.h"

namespace lorad::planner {
namespace {

const TimeCoefficients kTimes{
    .constant_ms = 100, .token_ms = 1, .squared_ms = 1e-3, .adapter_ms = 1e-6};

struct Unlike {
  std::string what;
  int64_t rank = 64;
  double squared_lengths = 0;

  Workload step() const {
    return StepOf(200, squared_lengths, AdapterParameters(SmolLm2(), Rank(rank)));
  }
  // Of a group with that job alone.
  double step_s() const { return RoundMs(kTimes, step(), 1024) / 1000; }
};

const Unlike kPlain{"plain"};
const Unlike kUnlike[] = {{"a high rank", 512}, {"long rows", 64, 400'000}};

QueuedJob Queued(const Unlike& one, const std::string& name, int64_t steps) {
  QueuedJob job = Job(name, 0, 0, "", one.rank, 1);
  job.step_squared_lengths = one.squared_lengths;
  job.remaining_steps = steps;
  return job;
}

GroupView Training(const std::string& name, const std::vector<Unlike>& jobs, int64_t steps) {
  std::vector<Trains> trains;
  for (const Unlike& one : jobs) {
    trains.push_back({.job = name + std::to_string(trains.size()), .rank = one.rank});
  }
  GroupView group = Group(name, "m", kBig, trains);
  group.worker = name + "-worker";
  for (size_t i = 0; i < jobs.size(); ++i) {
    group.running[i].step_squared_lengths = jobs[i].squared_lengths;
    group.running[i].remaining_steps = steps;
  }
  return group;
}

ClusterView Weighed(std::vector<GroupView> groups, std::vector<QueuedJob> queue) {
  ClusterView view = View(std::move(groups), std::move(queue));
  view.times[{"m", ""}] = kTimes;
  return view;
}

TEST_CASE("unlike steps are unlike") {
  for (const Unlike& one : kUnlike) CHECK(one.step_s() > 1.05 * kPlain.step_s());
}

TEST_CASE("a job that waits ends by what its steps compute") {
  for (const Unlike& one : kUnlike) {
    INFO(one.what);
    ClusterView view = Weighed({}, {Queued(one, "a", 10)});
    view.workers.push_back({"idle", kBig, {.threads = 2}, true});
    CHECK(ForeseeByName(view).at("a").end_s == Approx(10 * one.step_s()));
    // Its evaluations are of its rank, too: half of what as many trained tokens take.
    view.queue[0].evaluations = {
        .parts = 10, .tokens = 2000, .squared_lengths = 10 * one.squared_lengths};
    const double optimizer_ms =
        kTimes.Ms(one.step(), 0) -
        kTimes.Ms(
            WorkloadOf(200, one.squared_lengths, AdapterParameters(SmolLm2(), Rank(one.rank))), 0);
    const double part_s =
        (kTimes.constant_ms + (kTimes.Ms(one.step(), 0) - optimizer_ms) / 2) / 1000;
    CHECK(ForeseeByName(view).at("a").end_s ==
          Approx(10 * one.step_s() + 10 * part_s).epsilon(1e-3));
  }
}

TEST_CASE("jobs of a group end by what all of them compute, whoever has left") {
  for (const Unlike& one : kUnlike) {
    INFO(one.what);
    ClusterView view = Weighed({Training("g", {one, kPlain}, 10)}, {});
    view.groups[0].running[1].remaining_steps = 30;
    Workload both = one.step();
    both += kPlain.step();
    const double first_s = 10 * RoundMs(kTimes, both, 1024) / 1000;
    CHECK(ForeseeByName(view).at("g0").end_s == Approx(first_s));
    CHECK(ForeseeByName(view).at("g1").end_s == Approx(first_s + 20 * kPlain.step_s()));
    // Lately the one computed, with half of the time of its rounds for something else.
    view.groups[0].computed = 50 * one.step();
    view.groups[0].computed_s = 50 * 2 * one.step_s();
    view.groups[0].jobs.erase(view.groups[0].jobs.begin());
    view.groups[0].adapters.erase(view.groups[0].adapters.begin());
    view.groups[0].running.erase(view.groups[0].running.begin());
    CHECK(ForeseeByName(view).at("g1").end_s == Approx(30 * 2 * kPlain.step_s()));
  }
}

TEST_CASE("who is evicted goes on by what its steps compute") {
  for (const Unlike& one : kUnlike) {
    INFO(one.what);
    ClusterView view = Weighed({Training("g", {one}, 20)}, {Queued(kPlain, "urgent", 10)});
    view.groups[0].budget_bytes = BudgetFor(500, {one.rank});
    view.workers[0].budget_bytes = view.groups[0].budget_bytes;
    view.queue[0].priority = 1;
    const auto seen = ForeseeByName(view);
    CHECK(seen.at("urgent").start_s == Approx(0).margin(1e-6));
    CHECK(seen.at("g0").end_s == Approx(10 * kPlain.step_s() + 20 * one.step_s()));
  }
}

TEST_CASE("a job goes beside those whose steps compute less") {
  for (const Unlike& one : kUnlike) {
    INFO(one.what);
    const QueuedJob x = Queued(kPlain, "x", 100);
    CHECK(Text(Weighed({Training("g", {one}, 100), Training("h", {kPlain}, 100)}, {x})) ==
          "admit h: x\n");
    CHECK(Text(Weighed({Training("g", {kPlain}, 100), Training("h", {one}, 100)}, {x})) ==
          "admit g: x\n");
  }
}

TEST_CASE("a replayed job takes what its steps compute, and goes where they compute less") {
  for (const Unlike& one : kUnlike) {
    INFO(one.what);
    const auto comes = [&](const Unlike& like, const std::string& name, double comes_s = 0,
                           int64_t steps = 10) {
      HistoryJob job = Comes(name, comes_s, steps);
      job.content.adapter = ShareAdapter(Rank(like.rank));
      job.content.step_squared_lengths = like.squared_lengths;
      return job;
    };
    const auto ends_s = [&](std::vector<HistoryWorker> workers, std::vector<HistoryJob> jobs) {
      History history = Of(std::move(workers), std::move(jobs));
      for (auto& [key, times] : history.times) times = kTimes;
      return Replay(history, {}, Schedule, {.turn_s = 0, .look_s = 60}).jobs[0].ends_s;
    };
    const auto round_s = [](Workload a, const Workload& b) {
      a += b;
      return RoundMs(kTimes, a, 1024) / 1000;
    };
    CHECK(ends_s({There("w")}, {comes(one, "a")}) == Approx(10 * one.step_s()));
    CHECK(ends_s({There("w")}, {comes(kPlain, "a"), comes(one, "b")}) ==
          Approx(10 * round_s(kPlain.step(), one.step())));
    for (const bool first : {true, false}) {
      const HistoryJob x = comes(kPlain, "x", 1);
      CHECK(ends_s({There("v"), There("w")}, {x, comes(first ? one : kPlain, "a", 0, 1000),
                                              comes(first ? kPlain : one, "b", 0, 1000)}) ==
            Approx(1 + 10 * round_s(kPlain.step(), kPlain.step())).epsilon(0.01));
    }
  }
}

}  // namespace
}  // namespace lorad::planner
