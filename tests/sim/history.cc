#include "tests/sim/history.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/window/learning_rate.h"
#include "server/core/rules/job_states.h"
#include "tests/sim/idleness.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
// What may happen after the last calamity, until all has ended.
constexpr int64_t kEventsToEndMax = 500'000;
constexpr int64_t kTimeToEndUs = 1000 * kSecondUs;

bool AllHaveEnded(const Stage& stage) {
  return std::ranges::all_of(stage.jobs, [](const auto& client) { return client->ended(); }) &&
         std::ranges::all_of(stage.others, [](const auto& client) { return client->ended(); }) &&
         std::ranges::all_of(stage.watchers,
                             [](const auto& watcher) { return watcher->settled(); });
}

v1::ListJobsResponse AllJobs(Site& site) {
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  return std::get<v1::ListJobsResponse>(site.Call([&] { return request; }));
}

// Also those of clients who are not there any more.
void WaitForJobs(Site& site) {
  const int64_t until_us = site.now_us() + kTimeToEndUs;
  for (;;) {
    const v1::ListJobsResponse all = AllJobs(site);
    const auto live = std::ranges::find_if(
        all.jobs(), [](const v1::Job& job) { return server::IsLive(job.state()); });
    if (live == all.jobs().end()) return;
    INFO("it does not end: " << live->ShortDebugString());
    REQUIRE(site.now_us() < until_us);
    site.Sleep(kSecondUs);
  }
}

// Empty: it has no reason to.
std::string WhyItFails(const v1::Job& job) {
  if (job.training().learning_rate() > kSurvivedRateMax) return "WORKER_LOST";
  planner::LearningRateOptions options;
  options.schedule = planner::Schedule::kConstant;
  options.peak = job.training().learning_rate();
  options.warmup_steps = job.training().warmup_steps();
  options.total_steps = job.total_steps();
  const double last = planner::LearningRate(options, job.total_steps() - 1);
  return last > kFiniteRateMax ? "NOT_FINITE" : "";
}

// What is in use when newer checkpoints come goes soon after its use, which is looked at every 20 s. A
// client that vanished uses what it asked for 30 s more, which are looked at every 30 s.
void LetCheckpointsGo(Stage& stage) {
  constexpr int64_t kGoneUs = 85 * kSecondUs;
  const bool any = std::ranges::any_of(stage.jobs, [](const auto& client) {
    const v1::TrainingConfig& training = client->planned().training();
    return training.checkpoint_keep_last() > 0 || training.checkpoint_keep_best() > 0;
  });
  if (any) stage.site.Sleep(kGoneUs);
}

void CheckEnd(Stage& stage) {
  LetCheckpointsGo(stage);
  std::set<std::string> names;
  const std::set<std::string>& cancelled = stage.census[kCancelled];
  for (const auto& client : stage.jobs) {
    if (client->acknowledged().empty()) continue;  // it vanished
    INFO("two jobs of one name, " << client->acknowledged());
    REQUIRE(names.insert(client->acknowledged()).second);
  }
  const auto check = [&](const v1::Job& job) {
    INFO(job.ShortDebugString());
    if (job.state() == v1::Job::CANCELLED) {
      REQUIRE(cancelled.contains(job.name()));
    } else {
      // One that was to finish may have ended before the step that fails it.
      const bool early = job.finish_step() > 0 && job.state() == v1::Job::SUCCEEDED;
      const std::string why = early ? "" : WhyItFails(job);
      REQUIRE(job.error().reason() == why);
      REQUIRE(job.state() == (why.empty() ? v1::Job::SUCCEEDED : v1::Job::FAILED));
    }
  };
  const v1::ListJobsResponse all = AllJobs(stage.site);
  for (const v1::Job& job : all.jobs()) check(job);
  for (const auto& client : stage.jobs) {
    const v1::Job& seen = client->job();
    if (!seen.name().empty() && !server::IsLive(seen.state())) check(seen);
  }
  for (const std::string& name : stage.census["job"]) {
    INFO("acknowledged, and not there: " << name);
    REQUIRE(std::ranges::count(all.jobs(), name, &v1::Job::name) == 1);
  }
  for (const auto& watcher : stage.watchers) watcher->Check();
  stage.site.CheckAll();
}

uint64_t Mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x100000001b3; }

}  // namespace

History Part(const History& history, const std::vector<int>& numbers, int workers) {
  History part = history;
  std::erase_if(part.happenings, [&](const Happening& happening) {
    return std::ranges::count(numbers, happening.number) == 0;
  });
  const int kept = std::max(workers, history.workers_min);
  if (workers > 0 && kept < static_cast<int>(part.site.machines.size())) {
    part.site.machines.resize(kept);
  }
  return part;
}

std::vector<int> NumbersOf(const History& history) {
  std::vector<int> numbers;
  for (const Happening& happening : history.happenings) numbers.push_back(happening.number);
  return numbers;
}

std::string ToText(const History& history) {
  std::string text = absl::StrCat("site_test --seed ", history.site.seed, " --seeds 1 --workers ",
                                  history.site.machines.size(), " --keep ",
                                  absl::StrJoin(NumbersOf(history), ","), "\n");
  for (const Happening& happening : history.happenings) {
    char line[160];
    std::snprintf(line, sizeof line, "  %3d  %9.3f s  %s\n", happening.number,
                  static_cast<double>(happening.at_us) / kSecondUs, NameOfKind(happening.kind));
    text += line;
  }
  return text;
}

Tally Play(const History& history) {
  Stage stage(history.site, history.rates);
  Site& site = stage.site;
  site.script().finite_rate_max = kFiniteRateMax;
  site.script().survived_rate_max = kSurvivedRateMax;
  site.AddModels();
  site.AddDataset("train.jsonl", 13);
  site.AddDataset("valid.jsonl", 5);
  site.AddDataset("long.jsonl", 7, Site::kLongRow);
  Idleness idleness(site, history.site);
  idleness.Begin();
  const int64_t begin_us = site.now_us();
  int64_t last_us = begin_us;
  for (const Happening& happening : history.happenings) {
    last_us = begin_us + happening.at_us;
    site.At(last_us, [&stage, &happening] { Happen(stage, happening); });
  }
  site.Sleep(std::max<int64_t>(last_us - site.now_us(), 0));
  // Whoever is to be stopped has been; one that was paused meanwhile ends when it goes on.
  site.Sleep(Site::kStopPatienceUs);
  site.RunUntil([&] { return !site.paused(); }, kEventsToEndMax);
  site.Sleep(kSecondUs);
  Calm(stage);
  site.RunUntil([&] { return AllHaveEnded(stage); }, kEventsToEndMax);
  WaitForJobs(site);
  site.RunUntil([&] { return AllHaveEnded(stage) && site.serves() && site.unanswered() == 0; },
                kEventsToEndMax);
  CheckEnd(stage);

  Tally tally;
  tally.simulated_us = site.now_us() - begin_us;
  tally.deaths = site.deaths();
  tally.closings = site.closings();
  tally.adoptions = site.adoptions();
  for (const int64_t value : {site.now_us(), site.disk().effects(), site.disk().syncs(),
                              site.deaths(), static_cast<int64_t>(site.random()())}) {
    tally.fingerprint = Mix(tally.fingerprint, static_cast<uint64_t>(value));
  }
  return tally;
}

History ShrinkHistory(const History& history, const std::function<bool(const History&)>& fails,
                      int tries_max) {
  int workers = static_cast<int>(history.site.machines.size());
  int tries = 0;
  std::vector<int> numbers = NumbersOf(history);
  const auto still_fails = [&](const std::vector<int>& kept, int with) {
    return tries++ < tries_max && fails(Part(history, kept, with));
  };
  // Workers first, while all happenings are there to fail with fewer; with fewer workers fewer
  // happenings may do.
  for (bool fewer = true; fewer;) {
    while (workers > history.workers_min && still_fails(numbers, workers - 1)) --workers;
    numbers = Shrink(
        numbers, [&](const std::vector<int>& kept) { return still_fails(kept, workers); },
        tries_max);
    fewer = workers > history.workers_min && still_fails(numbers, workers - 1);
  }
  return Part(history, numbers, workers);
}

}  // namespace lorad::sim
