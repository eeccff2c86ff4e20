#include "tests/sim/history.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/job_states.h"
#include "tests/sim/idleness.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
// What may happen after the last calamity, until all has ended.
constexpr int64_t kEventsToEndMax = 500'000;
constexpr int64_t kTimeToEndUs = 1000 * kSecondUs;

int Draw(std::mt19937_64& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<uint64_t>(to - from + 1));
}

std::vector<Machine> DrawMachines(std::mt19937_64& random) {
  std::vector<Machine> machines;
  const int workers = Draw(random, 1, 3);
  const int64_t order_us = std::vector{500, 2000, 20'000, 60'000}[random() % 4];
  for (int i = 0; i < workers; ++i) {
    Machine& machine = machines.emplace_back(Machine{absl::StrCat("worker-", i)});
    machine.order_us = order_us;
    if (random() % 3 == 0) {
      machine.device = "cuda";
      machine.multiprocessors = 16;
    }
    if (i > 0) machine.memory_bytes = int64_t{1} << Draw(random, 27, 34);
  }
  if (random() % 5 == 0) machines.push_back(machines.front());  // two of one name
  return machines;
}

// Of each kind of calamity how likely it is: one kind alone, all alike, or some of them.
std::discrete_distribution<int> DrawCalamities(std::mt19937_64& random) {
  const int kinds = CountKinds() - CountClientKinds();
  std::vector<double> weights(kinds, 0);
  const int style = Draw(random, 0, 3);
  if (style == 0) weights[Draw(random, 0, kinds - 1)] = 1;
  for (double& weight : weights) {
    if (style == 1) weight = 1;
    if (style > 1 && random() % 2 == 0) weight = Draw(random, 0, 9);
  }
  if (style > 1) weights.front() += 1;  // not none at all
  return {weights.begin(), weights.end()};
}

SiteOptions DrawSite(uint64_t seed, std::mt19937_64& random) {
  SiteOptions options;
  options.seed = seed;
  options.machines = DrawMachines(random);
  options.delay_us_max = random() % 2 == 0 ? 2000 : 20'000;
  options.sqlite = random() % 5 == 0;
  options.reserve_bytes = random() % 2 == 0 ? 16'384 : 0;
  options.core.microbatch_tokens = 64;
  options.core.evaluate_sequences = 2;
  options.core.losses_without_progress_max = 1'000'000;
  options.core.lease_ms = 5000;
  options.core.patience_floor_ms = 20'000;
  return options;
}

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

void CheckEnd(Stage& stage) {
  std::set<std::string> names, cancelled;
  for (const auto& client : stage.jobs) {
    if (client->cancelled()) cancelled.insert(client->acknowledged());
    if (client->acknowledged().empty()) continue;  // it vanished
    INFO("two jobs of one name, " << client->acknowledged());
    REQUIRE(names.insert(client->acknowledged()).second);
  }
  const auto check = [&](const v1::Job& job) {
    INFO(job.ShortDebugString());
    REQUIRE((job.state() == v1::Job::SUCCEEDED ||
             (job.state() == v1::Job::CANCELLED && cancelled.contains(job.name()))));
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

History DrawHistory(uint64_t seed) {
  std::mt19937_64 random(seed);
  History history;
  history.site = DrawSite(seed, random);
  const int64_t length_us = std::vector{2, 4, 8, 30}[random() % 4] * kSecondUs;
  const auto add = [&](int kind) {
    const int64_t at_us = static_cast<int64_t>(random() % static_cast<uint64_t>(length_us));
    const uint64_t a = random(), b = random() >> 1;
    history.happenings.push_back({0, at_us, kind, a, b});
  };
  for (int i = Draw(random, 3, 9); i > 0; --i) add(kJobKind);
  for (int i = Draw(random, 0, 10); i > 0; --i) add(Draw(random, 1, CountClientKinds() - 1));
  std::discrete_distribution<int> calamities = DrawCalamities(random);
  for (int i = Draw(random, 0, 30); i > 0; --i) add(CountClientKinds() + calamities(random));
  std::ranges::stable_sort(history.happenings, {}, &Happening::at_us);
  int number = 0;
  for (Happening& happening : history.happenings) happening.number = number++;
  return history;
}

History Part(const History& history, const std::vector<int>& numbers, int workers) {
  History part = history;
  std::erase_if(part.happenings, [&](const Happening& happening) {
    return std::ranges::count(numbers, happening.number) == 0;
  });
  if (workers > 0 && workers < static_cast<int>(part.site.machines.size())) {
    part.site.machines.resize(workers);
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
  Stage stage(history.site);
  Site& site = stage.site;
  site.AddModel();
  site.AddDataset("train.jsonl", 13);
  site.AddDataset("valid.jsonl", 5);
  Idleness idleness(site, history.site);
  idleness.Begin();
  const int64_t begin_us = site.now_us();
  int64_t last_us = begin_us;
  for (const Happening& happening : history.happenings) {
    last_us = begin_us + happening.at_us;
    site.At(last_us, [&stage, &happening] { Happen(stage, happening); });
  }
  site.Sleep(std::max<int64_t>(last_us - site.now_us(), 0));
  site.Sleep(Site::kStopPatienceUs + kSecondUs);  // whoever is to be stopped has been
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
  numbers = Shrink(
      numbers, [&](const std::vector<int>& kept) { return still_fails(kept, workers); }, tries_max);
  while (workers > 1 && still_fails(numbers, workers - 1)) --workers;
  return Part(history, numbers, workers);
}

}  // namespace lorad::sim
