// What is foreseen beside what comes of it: random clusters are replayed under the policy itself
// (planner/replay), and in some turns of it planner/foresight/foresee.h is asked.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "planner/replay/replay.h"
#include "tests/planner/by_name.h"
#include "tests/planner/replay/fixtures.h"

namespace lorad::planner {
namespace {

constexpr double kComeBy = 600;  // all jobs do

// Few workers, many jobs: of unlike priorities, sizes and base models. Some take hours.
History Crowd(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  std::vector<HistoryWorker> workers;
  for (int64_t i = 0, count = 1 + below(3); i < count; ++i) {
    workers.push_back(WithRoomFor(There("w" + std::to_string(i)), 1 + below(3)));
  }
  const bool two_models = below(2) > 0;
  const int32_t priorities = static_cast<int32_t>(1 + below(3));
  std::vector<HistoryJob> jobs;
  for (int64_t i = 0, count = 5 + below(15); i < count; ++i) {
    const auto comes_s = static_cast<double>(below(static_cast<int64_t>(kComeBy)));
    const int64_t steps = below(4) > 0 ? 100 + below(3000) : 10'000 + below(20'000);
    HistoryJob job = Comes("j" + std::to_string(i), comes_s, steps, 200,
                           two_models && below(3) == 0 ? "n" : "m");
    job.checkpoint_steps = 1;
    jobs.push_back(Urgent(job, static_cast<int32_t>(below(priorities))));
  }
  return Of(std::move(workers), std::move(jobs), static_cast<double>(below(10)));
}

struct Asked {
  double at_s = 0;
  ByName seen;      // as is
  ByName draining;  // by one that evicts nobody
};

// The errors of forecasts as they are judged (cost/forecast_errors.h).
struct Errors {
  std::vector<double> of;
  void Add(double predicted_s, double actual_s) {
    of.push_back(std::abs(std::log((actual_s + 2) / (predicted_s + 2))));
  }
  double Quantile(double share) {
    std::ranges::sort(of);
    return of[static_cast<size_t>(share * static_cast<double>(of.size() - 1))];
  }
};

// The policy, which is asked about the future in its first turn after all jobs have come.
struct Asker {
  std::vector<Decision> operator()(const ClusterView& view) {
    for (const GroupView& group : view.groups) placed.insert(group.jobs.begin(), group.jobs.end());
    const std::optional<double> now_s = NowOf(view);
    if (!asked && now_s && *now_s > kComeBy + 30) {
      asked = {*now_s, ForeseeByName(view), {}};
      ClusterView drains = view;
      drains.policy.evict = false;
      asked->draining = ForeseeByName(drains);
    }
    return Schedule(view);
  }

  // By a job that has waited since it came. None: there is none.
  std::optional<double> NowOf(const ClusterView& view) const {
    for (const QueuedJob& job : view.queue) {
      if (placed.contains(job.job)) continue;
      return comes_s.at(job.job) + static_cast<double>(job.waited_s);
    }
    return std::nullopt;
  }

  std::map<std::string, double> comes_s;
  std::set<std::string> placed;
  std::optional<Asked> asked;
};

TEST_CASE("what is foreseen comes, also where jobs take the places of others") {
  Errors starts, ends, draining_starts, draining_ends;
  int64_t evictions = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    const History history = Crowd(seed);
    Asker asker;
    for (const HistoryJob& job : history.jobs) asker.comes_s[job.content.job] = job.comes_s;
    const Outcome outcome = Replay(history, {}, std::ref(asker));
    if (!asker.asked) continue;
    const Asked& asked = *asker.asked;
    evictions += outcome.evictions;
    for (size_t j = 0; j < history.jobs.size(); ++j) {
      const auto seen = asked.seen.find(history.jobs[j].content.job);
      if (outcome.jobs[j].ends_s <= asked.at_s) continue;
      REQUIRE(seen != asked.seen.end());
      const Foreseen& draining = asked.draining.at(seen->first);
      ends.Add(seen->second.end_s, outcome.jobs[j].ends_s - asked.at_s);
      draining_ends.Add(draining.end_s, outcome.jobs[j].ends_s - asked.at_s);
      double started_s = kNever;
      for (const Stay& stay : outcome.stays) {
        if (stay.job == j) started_s = std::min(started_s, stay.from_s);
      }
      if (started_s <= asked.at_s) continue;
      starts.Add(seen->second.start_s, started_s - asked.at_s);
      draining_starts.Add(draining.start_s, started_s - asked.at_s);
    }
  }
  std::cout << starts.of.size() << " starts: " << starts.Quantile(0.5) << ", 9 in 10 "
            << starts.Quantile(0.9) << "; without evictions " << draining_starts.Quantile(0.5)
            << ", " << draining_starts.Quantile(0.9) << "\n"
            << ends.of.size() << " ends: " << ends.Quantile(0.5) << ", 9 in 10 "
            << ends.Quantile(0.9) << "; without evictions " << draining_ends.Quantile(0.5) << ", "
            << draining_ends.Quantile(0.9) << "; " << evictions << " evictions\n";
  CHECK(evictions > 1000);
  CHECK(starts.Quantile(0.5) < 0.01);
  CHECK(starts.Quantile(0.9) < 0.1);
  CHECK(ends.Quantile(0.5) < 0.01);
  CHECK(ends.Quantile(0.9) < 0.2);
  // That is due to evictions.
  CHECK(draining_starts.Quantile(0.9) > 10 * starts.Quantile(0.9));
}

TEST_CASE("turns of two base models on one worker are foreseen, whoever overtakes whom") {
  int64_t shared = 0;  // jobs for which no group was formed
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<HistoryJob> jobs;
    for (uint64_t i = 0, count = 2 + random() % 20; i < count; ++i) {
      const auto steps = 1 + static_cast<int64_t>(random() % (random() % 2 == 0 ? 20 : 400));
      const auto tokens = 1 + static_cast<int64_t>(random() % 1500);
      const std::string base_model = random() % 2 == 0 ? "m" : "n";
      jobs.push_back(Comes("j" + std::to_string(i), 0, steps, tokens, base_model));
    }
    const History history =
        Of({WithRoomFor(There("w"), 4)}, jobs, static_cast<double>(random() % 10));
    std::optional<ByName> seen;
    const auto decide = [&](const ClusterView& view) {
      if (!seen) seen = ForeseeByName(view);
      return Schedule(view);
    };
    SchedulePolicy policy;
    policy.evict = false;
    const Outcome outcome = Replay(history, policy, decide, {.turn_s = 0});
    for (size_t j = 0; j < jobs.size(); ++j) {
      CHECK(outcome.jobs[j].ends_s == Approx(seen->at(jobs[j].content.job).end_s));
    }
    shared += std::ssize(jobs) - outcome.groups;
  }
  std::cout << shared << " jobs shared turns of others\n";
  CHECK(shared > 500);
}

}  // namespace
}  // namespace lorad::planner
