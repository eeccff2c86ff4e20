// What holds of every replay, on random histories under random settings; and how long one takes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>
#include <iostream>
#include <map>
#include <random>
#include <utility>

#include "planner/replay/baselines.h"
#include "planner/replay/replay.h"
#include "tests/planner/replay/fixtures.h"

namespace lorad::planner {
namespace {

constexpr double kRounding = 1e-4;
constexpr Turns kTurns{.turn_s = 2, .look_s = 30};

struct Span {
  double from_s = 0;
  double to_s = 0;
};

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int64_t Below(uint32_t bound) { return static_cast<int64_t>(random_() % bound); }

 private:
  std::mt19937 random_;
};

History Draw(Random& random) {
  std::vector<HistoryWorker> workers;
  for (int64_t w = 0, count = 1 + random.Below(4); w < count; ++w) {
    const bool changes = random.Below(3) == 0;
    const auto comes_s = static_cast<double>(changes ? random.Below(600) : 0);
    const double goes_s = changes && w > 0 ? comes_s + 60 + static_cast<double>(random.Below(900))
                                           : kNever;  // somebody stays
    workers.push_back(
        WithRoomFor(There("w" + std::to_string(w), comes_s, goes_s), 1 + random.Below(5)));
  }
  std::vector<HistoryJob> jobs;
  for (int64_t j = 0, count = 2 + random.Below(24); j < count; ++j) {
    HistoryJob job =
        Comes("j" + std::to_string(j), static_cast<double>(random.Below(900)),
              1 + random.Below(900), 50 + random.Below(900), random.Below(3) == 0 ? "n" : "m");
    job.content.priority = static_cast<int32_t>(random.Below(3));
    job.checkpoint_steps = random.Below(60);
    if (random.Below(4) == 0)
      job.content.adapter = ShareAdapter(AdapterShape(4, {"q_proj", "v_proj"}));
    jobs.push_back(job);
  }
  History history = Of(std::move(workers), std::move(jobs), static_cast<double>(random.Below(20)));
  history.empty_group_s = static_cast<double>(random.Below(300));
  return history;
}

// Steps and time: every step is taken, and a job is in a group or in the queue.
void CheckJobs(const History& history, const Outcome& outcome) {
  std::vector<std::vector<Stay>> stays(history.jobs.size());
  for (const Stay& stay : outcome.stays) stays[stay.job].push_back(stay);
  for (size_t j = 0; j < history.jobs.size(); ++j) {
    const HistoryJob& job = history.jobs[j];
    INFO("job " << job.content.job);
    REQUIRE(outcome.jobs[j].ends_s < kNever);
    double steps = 0, inside_s = 0, last_s = job.comes_s;
    for (const Stay& stay : stays[j]) {
      const HistoryWorker& worker = history.workers[stay.worker];
      REQUIRE(stay.from_s >= last_s);
      REQUIRE(stay.from_s >= worker.comes_s);
      REQUIRE(stay.to_s <= worker.goes_s);
      REQUIRE(stay.lost <= stay.steps + kRounding);
      if (stay.to_s < worker.goes_s) REQUIRE(stay.lost == 0);
      steps += stay.steps - stay.lost;
      inside_s += stay.to_s - stay.from_s;
      last_s = stay.to_s;
    }
    REQUIRE(steps == Approx(static_cast<double>(job.content.remaining_steps)).margin(kRounding));
    REQUIRE(last_s == outcome.jobs[j].ends_s);
    REQUIRE(outcome.jobs[j].waited_s == Approx(last_s - job.comes_s - inside_s).margin(kRounding));
  }
}

void CheckGroups(const History& history, const Outcome& outcome) {
  std::map<int64_t, std::pair<size_t, Span>> groups;
  for (const Stay& stay : outcome.stays) {
    const auto [entry, is_new] =
        groups.try_emplace(stay.group, stay.worker, Span{stay.from_s, stay.to_s});
    auto& [worker, span] = entry->second;
    REQUIRE(worker == stay.worker);
    span.from_s = std::min(span.from_s, stay.from_s);
    span.to_s = std::max(span.to_s, stay.to_s);
  }
  std::vector<std::vector<Span>> spans(history.workers.size());
  for (const auto& [group, entry] : groups) spans[entry.first].push_back(entry.second);
  for (std::vector<Span>& of_worker : spans) {
    std::ranges::sort(of_worker, {}, &Span::from_s);
    for (size_t i = 1; i < of_worker.size(); ++i) {
      REQUIRE(of_worker[i].from_s >= of_worker[i - 1].to_s);  // no two at once
    }
  }
}

// By worker: when somebody is on it, by begin.
std::vector<std::vector<Span>> UsedSpans(const History& history, const Outcome& outcome) {
  std::vector<std::vector<Span>> spans(history.workers.size());
  for (const Stay& stay : outcome.stays) spans[stay.worker].push_back({stay.from_s, stay.to_s});
  for (std::vector<Span>& of_worker : spans) std::ranges::sort(of_worker, {}, &Span::from_s);
  return spans;
}

// The longest that `worker` has nobody while somebody waits over `wait`.
double LongestIdle(const HistoryWorker& worker, const std::vector<Span>& used, const Span& wait) {
  double free_s = std::max(worker.comes_s, wait.from_s), longest_s = 0;
  const double end_s = std::min(worker.goes_s, wait.to_s);
  for (const Span& span : used) {
    longest_s = std::max(longest_s, std::min(span.from_s, end_s) - free_s);
    free_s = std::max(free_s, span.to_s);
  }
  return std::max(longest_s, end_s - free_s);
}

void CheckIdleness(const History& history, const Outcome& outcome) {
  const std::vector<std::vector<Span>> used = UsedSpans(history, outcome);
  std::vector<std::vector<Span>> waits(history.jobs.size());
  std::vector<double> since_s;
  for (const HistoryJob& job : history.jobs) since_s.push_back(job.comes_s);
  std::vector<Stay> stays = outcome.stays;
  std::ranges::sort(stays, {}, &Stay::from_s);
  for (const Stay& stay : stays) {
    waits[stay.job].push_back({since_s[stay.job], stay.from_s});
    since_s[stay.job] = stay.to_s;
  }
  for (size_t j = 0; j < waits.size(); ++j) {
    const QueuedJob& job = history.jobs[j].content;
    for (size_t w = 0; w < history.workers.size(); ++w) {
      const WorkerView& worker = history.workers[w].view;
      if (!FitsAlone(job, worker.device, worker.budget_bytes, 0)) continue;
      for (const Span& wait : waits[j]) {
        INFO(job.job << " waits from " << wait.from_s << " to " << wait.to_s << " beside "
                     << worker.name);
        REQUIRE(LongestIdle(history.workers[w], used[w], wait) <= kTurns.turn_s + kRounding);
      }
    }
  }
}

TEST_CASE("All steps are done, no worker has two groups, nobody waits beside an idle worker") {
  int64_t moves = 0, evictions = 0, reforms = 0, losses = 0;
  for (const uint32_t seed : Seeds()) {
    for (uint32_t i = 0; i < 90; ++i) {
      INFO("seed " << seed << " history " << i);
      Random random(seed + i);
      const History history = Draw(random);
      SchedulePolicy policy;
      policy.evict = random.Below(3) != 0;
      policy.rebalance = random.Below(4) != 0;
      policy.minimum_run_s = 10 + random.Below(300);
      const Outcome outcome = Replay(history, policy, Schedule, kTurns);
      CheckJobs(history, outcome);
      CheckGroups(history, outcome);
      CheckIdleness(history, outcome);
      for (const Decide& other : {Decide(FirstComeFirstServed), Decide(GangByGang)}) {
        const Outcome beside = Replay(history, policy, other, kTurns);
        CheckJobs(history, beside);
        CheckGroups(history, beside);
        REQUIRE(beside.moves + beside.evictions == 0);
      }
      moves += outcome.moves;
      evictions += outcome.evictions;
      reforms += outcome.reforms;
      for (const Stay& stay : outcome.stays) losses += stay.lost > 0;
    }
  }
  std::cout << moves << " moves, " << evictions << " evictions, " << reforms << " reforms, "
            << losses << " jobs lost steps\n";
  CHECK(moves > 50);
  CHECK(evictions > 50);
  CHECK(losses > 50);
}

TEST_CASE("10,000 jobs on 64 workers take seconds") {
  Random random(1);
  std::vector<HistoryWorker> workers;
  for (int w = 0; w < 64; ++w) workers.push_back(There("w" + std::to_string(w)));
  std::vector<HistoryJob> jobs;
  for (int j = 0; j < 10'000; ++j) {
    jobs.push_back(Comes("j" + std::to_string(j), static_cast<double>(random.Below(120'000)),
                         1 + random.Below(2000), 50 + random.Below(900),
                         random.Below(3) == 0 ? "n" : "m"));
  }
  const History history = Of(std::move(workers), std::move(jobs), 5);
  const std::clock_t start = std::clock();
  const Outcome outcome = Replay(history, {}, Schedule);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const Summary summary = Summarize(history, outcome);
  std::cout << seconds << " s for " << outcome.turns << " turns, " << outcome.moves
            << " moves, idle " << summary.idle_share << "\n";
  CHECK(summary.ended == 10'000);
  CHECK(seconds < 60);  // about five, alone on its core
}

}  // namespace
}  // namespace lorad::planner
