// How near the best the split of jobs over workers is, and running jobs that move: literal tables,
// and small clusters against every split.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

TimeCoefficients TimesOn(const ClusterView& view, const WorkerView& worker) {
  return worker.slowness * view.times.at({"m", worker.device_name});
}

// The least sum of ends over all splits of the jobs, by subsets of jobs.
double LeastSum(const ClusterView& view) {
  const size_t subsets = size_t{1} << view.queue.size();
  std::vector<double> best(subsets, std::numeric_limits<double>::infinity());
  best[0] = 0;
  for (const WorkerView& worker : view.workers) {
    const DeviceKey key{"m", worker.device_name};
    std::vector<double> on(subsets);  // if the worker has just these
    for (size_t subset = 1; subset < subsets; ++subset) {
      Crew crew;
      for (size_t j = 0; j < view.queue.size(); ++j) {
        if ((subset >> j & 1) == 0) continue;
        crew.Add({view.queue[j].step_tokens, view.queue[j].remaining_steps});
      }
      on[subset] = crew.SumOfEnds(TimesOn(view, worker), view.microbatch_tokens) +
                   view.load_s.at(key) * static_cast<double>(crew.size());
    }
    std::vector<double> next = best;
    for (size_t all = 1; all < subsets; ++all) {
      for (size_t mine = all; mine > 0; mine = (mine - 1) & all) {
        next[all] = std::min(next[all], best[all ^ mine] + on[mine]);
      }
    }
    best = std::move(next);
  }
  return best[subsets - 1];
}

double SumOf(const ClusterView& view, const std::vector<Decision>& decisions) {
  double sum = 0;
  for (const Decision& decision : decisions) {
    REQUIRE(decision.kind == Decision::Kind::kFormGroup);
    const auto worker = std::ranges::find(view.workers, decision.worker, &WorkerView::name);
    const DeviceKey key{"m", worker->device_name};
    Crew crew;
    for (const std::string& name : decision.jobs) {
      const auto job = std::ranges::find(view.queue, name, &QueuedJob::job);
      crew.Add({job->step_tokens, job->remaining_steps});
    }
    sum += crew.SumOfEnds(TimesOn(view, *worker), view.microbatch_tokens) +
           view.load_s.at(key) * static_cast<double>(crew.size());
  }
  return sum;
}

TEST_CASE("A split from scratch is near the best of all") {
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    double worst = 1, mean = 0;
    constexpr int kClusters = 1000;
    for (int trial = 0; trial < kClusters; ++trial) {
      ClusterView view;
      view.microbatch_tokens = 1024;
      for (size_t w = 0, count = 2 + random() % 3; w < count; ++w) {
        const std::string name = "w" + std::to_string(w);
        view.workers.push_back(IdleOn(name, name));
        const double speed = 1 + static_cast<double>(random() % 40) / 10;
        view.times[{"m", name}] = {static_cast<double>(random() % 200) * speed, speed, 0};
        view.load_s[{"m", name}] = static_cast<double>(random() % 3 * (random() % 60));
        // And some beside the others of their kind.
        if (random() % 2 == 0) {
          view.workers[w].slowness = 0.5 + static_cast<double>(random() % 40) / 10;
        }
      }
      for (size_t j = 0, count = 3 + random() % 6; j < count; ++j) {
        view.queue.push_back(Steps("j" + std::to_string(j), 1 + random() % 500,
                                   50 + random() % 2000, static_cast<int64_t>(j)));
      }
      const double least = LeastSum(view);
      const double sum = SumOf(view, Schedule(view));
      INFO("seed " << seed << ", cluster " << trial);
      CHECK(sum <= 1.05 * least);
      worst = std::max(worst, sum / least);
      mean += sum / least / kClusters;
    }
    std::cout << "sums of ends over the least: " << worst << " at worst, " << mean
              << " in the mean\n";
  }
}

TEST_CASE("A running job moves where all end earlier, if that pays") {
  // Alone a job of 200 tokens takes 30 s for its 100 steps, two take 50 s, three 70 s, four 90 s.
  const std::vector<JobWork> four(4, {200, 100});
  const std::vector<JobWork> three(3, {200, 100});
  const std::vector<JobWork> two(2, {200, 100});
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const auto on = [](const std::vector<WorkerView>& idle, const std::vector<GroupView>& groups,
                     double load_s = 0) { return With(Timed(idle, {}, load_s), groups); };
  const auto with = [](ClusterView view, auto change) {
    change(view);
    return view;
  };
  const auto says = [](int gain_s, int cost_s) {
    return " (the jobs of both groups end " + std::to_string(gain_s) +
           ".0 s earlier in the sum, and moving costs " + std::to_string(cost_s) + ".0 s)\n";
  };
  const ClusterView comes = on({IdleOn("a")}, {Running("g", "slow", four)});
  const std::string moves_two = "replace g -> a base=m 1024/100: g0" + says(120, 2) +
                                "replace g -> a base=m 1024/100: g1" + says(40, 2);
  GroupView empty = Running("e", "slow", {});
  empty.base_model = "n";
  const ClusterView beside_empty = on({}, {Running("g", "slow", four), empty});
  GroupView small = Running("e", "slow", {});
  small.shape.longest_sequence = 50;
  const Case cases[] = {
      {"a worker comes", comes, moves_two},
      {"a worker's group has no jobs, and nobody waits for its base model", beside_empty,
       "dissolve e\n"},
      {"not where somebody does",
       with(beside_empty,
            [](ClusterView& view) { view.queue.push_back(Steps("x", 100, 200, 0, "n")); }),
       "admit e: x\n"},
      {"nor where it is not asked for",
       with(beside_empty, [](ClusterView& view) { view.policy.rebalance = false; }), ""},
      {"not for those of it that wait for a larger worker",
       with(beside_empty,
            [](ClusterView& view) {
              QueuedJob large = Steps("x", 100, 200, 1, "n");
              large.longest_sequence = 100'000;
              view.queue = {large};
              view.workers.push_back({"z", int64_t{1} << 40, {}, false});
            }),
       "wait #1: x (no worker with room for it takes jobs now; waits until one does)\n"
       "dissolve e\n"},
      {"nor where loading takes longer than all would gain",
       on({}, {Running("g", "slow", four), empty}, 119), ""},
      {"or was formed for shorter sequences", on({}, {Running("g", "slow", four), small}),
       "dissolve e\n"},
      {"an idle one is taken before", on({IdleOn("a")}, {Running("g", "slow", two), empty}),
       "replace g -> a base=m 1024/100: g0" + says(40, 2)},
      {"it holds other weights", on({IdleOn("a")}, {Running("g", "slow", four)}, 50),
       "replace g -> a base=m 1024/100: g0" + says(120, 52)},
      {"and they take longer than all would gain",
       on({IdleOn("a")}, {Running("g", "slow", four)}, 119), ""},
      {"unless it still has the right ones",
       on({IdleOn("a", "slow", "m")}, {Running("g", "slow", four)}, 119), moves_two},
      {"two groups of unequal load",
       on({}, {Running("g", "slow", four), Running("h", "slow", {{200, 100}})}),
       "replace g -> h: g0" + says(80, 2)},
      {"as equal as can be", on({}, {Running("g", "slow", three), Running("h", "slow", two)}), ""},
      {"the rest is not worth a move",
       on({},
          {Running("g", "slow", {{200, 1}, {200, 1}, {200, 1}}), Running("h", "slow", {{200, 1}})}),
       ""},
      {"a device twice as fast takes more",
       on({}, {Running("g", "slow", three), Running("h", "fast", two)}),
       "replace g -> h: g0" + says(55, 2)},
      {"a long job goes to the fast device, to the short one",
       on({}, {Running("g", "slow", {{200, 1000}}), Running("h", "fast", {{200, 10}})}),
       "replace g -> h: g0" + says(148, 2)},
      {"not where it is not asked for",
       with(comes, [](ClusterView& view) { view.policy.rebalance = false; }), ""},
      {"nor without times", with(comes, [](ClusterView& view) { view.times.clear(); }), ""},
      {"nor where a job's steps are unknown",
       with(comes, [](ClusterView& view) { view.groups[0].running[3].remaining_steps = 0; }), ""},
      {"not twice within the minimum run time",
       with(comes,
            [](ClusterView& view) {
              for (RunningJob& job : view.groups[0].running) job.moved_s = 899;
            }),
       ""},
      {"but after it",
       with(comes,
            [](ClusterView& view) {
              for (RunningJob& job : view.groups[0].running) job.moved_s = 900;
            }),
       moves_two},
      {"no job that leaves, or is on its way here",
       with(comes,
            [](ClusterView& view) {
              view.groups[0].running[0].leaving = true;
              view.groups[0].running[1].coming = true;
            }),
       "replace g -> a base=m 1024/100: g2" + says(80, 2)},
      {"out of no group that is being formed, or changes",
       with(comes, [](ClusterView& view) { view.groups[0].forming = true; }), ""},
      {"into none that a job which waits is to have",
       with(on({}, {Running("g", "slow", four), Running("h", "slow", {{200, 100}})}),
            [](ClusterView& view) {
              QueuedJob other = Steps("x", 100, 200, 1, "n");
              other.longest_sequence = 3000;
              view.queue = {other};
              view.policy.evict = false;
            }),
       "wait #1: x (all workers train other base models (m); waits until one is free)\n"},
      {"a job that comes goes first, and those that train make room for all",
       with(comes, [](ClusterView& view) { view.queue = {Steps("x", 100)}; }),
       "form a base=m 1024/100: x\nreplace g -> a base=m 1024/100: g0" + says(80, 2)},
      {"a share that the time model cannot tell from none",
       with(comes, [](ClusterView& view) { view.policy.least_share = 0.34; }), ""},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
}

}  // namespace
}  // namespace lorad::planner
