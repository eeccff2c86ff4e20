// What happens in a history, and among whom, drawn from its seed.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tests/sim/history.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr uint64_t kCrowdEvery = 200;  // of histories one has a crowd, which takes long
// Of a CPU's memory: room for some jobs of rank 4 or one of rank 65, and for none of rank 256.
constexpr int64_t kSmallBytes = 5'760'000;

int Draw(std::mt19937_64& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<uint64_t>(to - from + 1));
}

// Enough for any job, for jobs of a low rank, or for some of those at once.
int64_t DrawMemory(std::mt19937_64& random, bool gpu) {
  if (random() % 2 == 0) return int64_t{1} << Draw(random, 27, 34);
  return gpu ? Draw(random, 73'000'000, 76'000'000) : Draw(random, kSmallBytes, 6'500'000);
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
    if (i > 0) machine.memory_bytes = DrawMemory(random, machine.device == "cuda");
  }
  if (random() % 5 == 0) machines.push_back(machines.front());  // two of one name
  return machines;
}

// As many as the largest model needs, each with room for a layer of it and little more, and spare
// ones, some of which have more room, other numerics, or come later.
std::vector<Machine> DrawStageMachines(std::mt19937_64& random, int stages) {
  std::vector<Machine> machines;
  const int workers = stages + Draw(random, 0, 2);
  const int64_t order_us = std::vector{2000, 10'000, 40'000}[random() % 3];
  for (int i = 0; i < workers; ++i) {
    Machine& machine = machines.emplace_back(Machine{absl::StrCat("worker-", i)});
    machine.order_us = random() % 3 == 0 ? 5 * order_us : order_us;  // others wait for it
    machine.threads = 1;
    machine.memory_bytes = kStageBytes + Draw(random, 0, kStageBytes / 12);
    if (i < stages) continue;
    if (random() % 3 == 0) machine.memory_bytes *= 2;
    if (random() % 4 == 0) machine.numerics_id = "other";
    if (random() % 2 == 0) machine.joins_us = Draw(random, 1, 10'000'000);
  }
  return machines;
}

// Kinds of calamities: those of groups of several workers come last, and those of few behind them.
int CountKindsOfAll() {
  return static_cast<int>(std::ranges::count_if(
      Calamities(), [](const Kind& kind) { return !kind.of_stages && !kind.of_few; }));
}
int CountKindsOfStages() {
  return static_cast<int>(std::ranges::count(Calamities(), false, &Kind::of_few));
}

// Of each kind of calamity how likely it is: one kind alone, all alike, or some of them.
std::discrete_distribution<int> DrawCalamities(std::mt19937_64& random, bool stages) {
  const int kinds = stages ? CountKindsOfStages() : CountKindsOfAll();
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

// Where jobs end their workers nobody else does: who is innocent must not fail.
std::discrete_distribution<int> SparingWorkers() {
  std::vector<double> weights;
  for (const Kind& kind : Calamities())
    weights.push_back(kind.spares_workers && !kind.of_few ? 1 : 0);
  return {weights.begin(), weights.end()};
}

SiteOptions DrawSite(uint64_t seed, std::mt19937_64& random) {
  SiteOptions options;
  options.seed = seed;
  options.machines = DrawMachines(random);
  options.delay_us_max = random() % 2 == 0 ? 2000 : 20'000;
  options.file_us_max = std::vector{0, 0, 10'000, 40'000}[random() % 4];
  options.sqlite = random() % 5 == 0;
  options.reserve_bytes = random() % 2 == 0 ? 16'384 : 0;
  options.core.microbatch_tokens = 64;
  options.core.evaluate_sequences = 2;
  options.core.losses_without_progress_max = 1'000'000;
  options.core.lease_ms = 5000;
  options.core.patience_floor_ms = 20'000;
  if (random() % 3 == 0) options.core.rows_max = 2;
  if (random() % 3 == 0) options.core.watch_revisions_max = Draw(random, 100, 300);
  if (seed % 4 == 0) options.core.watch_keep_ms = 20'000;
  options.core.watch_memory_max = 5 + static_cast<int64_t>(seed % 60);
  return options;
}

// Of each whether there is any, and how much.
Rates DrawRates(std::mt19937_64& random) {
  Rates rates;
  for (double* rate : {&rates.long_rows, &rates.high_rank, &rates.owns}) {
    if (random() % 2 == 0) *rate = 0.1 * Draw(random, 1, 6);
  }
  if (random() % 4 == 0) rates.poisoned = 0.3;
  if (random() % 20 == 0) rates.deadly = 0.3;
  return rates;
}

// A site whose models need 1 to 4 workers. Jobs of a high rank would fit nowhere; those of long rows
// have groups cut, to be formed again.
void DrawStages(std::mt19937_64& random, History* history) {
  const int stages = Draw(random, 1, kLayersMax);
  history->workers_min = stages;
  history->site.machines = DrawStageMachines(random, stages);
  history->rates.high_rank = 0;
  history->rates.long_rows = 0.1 * Draw(random, 2, 5);
  for (int layers = 0; layers <= stages; ++layers) {
    // Mostly the one that needs the most workers.
    if (layers < stages && random() % 2 == 0) continue;
    history->rates.layers.push_back(layers);
    if (layers > 0) history->site.layers.push_back(layers);
  }
}

// One more worker, which would be taken first.
Machine& AddFirst(const char* name, History* history) {
  std::vector<Machine>& machines = history->site.machines;
  Machine machine = machines.front();
  machine.worker = name;
  ++history->workers_min;
  return *machines.insert(machines.begin(), machine);
}

// It is joined, and then no tensor passes between it and the next largest one, or all others. Of
// those with room for one layer it has the most, by which they are taken; all jobs need as many as
// any, and nobody asks, so that none is busy alone; and no worker is lost, whose failures would be
// forgotten.
void AddNarrow(bool from_all, History* history) {
  std::vector<Machine> others = history->site.machines;
  std::erase_if(others, [&](const Machine& one) {
    return one.memory_bytes >= 2 * kStageBytes || one.numerics_id != Machine().numerics_id;
  });
  std::ranges::stable_sort(others, std::ranges::greater(), &Machine::memory_bytes);
  AddFirst("narrow", history).memory_bytes = others.front().memory_bytes;
  history->rates.layers = {history->rates.layers.back()};
  std::erase_if(history->happenings, [](const Happening& one) {
    const int calamity = one.kind - CountClientKinds();
    return one.kind == kAsksKind || (calamity >= 0 && !Calamities()[calamity].spares_workers);
  });
  if (!from_all) others.resize(1);
  for (const Machine& other : others) history->site.narrow.emplace_back("narrow", other.worker);
}

// Which of kNarrowEvery histories of stages: none that mutations.md names, lest its seeds turn.
constexpr uint64_t kNarrowForEver = 8, kNarrowForAWhile = 14;
bool IsOf(uint64_t which, uint64_t seed) { return seed / kStagesEvery % kNarrowEvery == which; }

// In one history of six, of stages or not; none of those either.
bool AreToldToEnd(uint64_t seed) { return seed % 12 > 9; }

// What few histories of stages have besides what others have.
void AddRare(uint64_t seed, History* history) {
  const uint64_t number = seed / kStagesEvery;
  // It does for groups of one alone.
  if (number % kIsolatedEvery == kIsolatedEvery - 1) AddFirst("isolated", history).isolated = true;
  if (IsOf(kNarrowForEver, seed)) AddNarrow(number / kNarrowEvery % 2 == 0, history);
}

// Two workers, of which the second has room for small jobs alone, and hardly anything goes wrong.
void DrawCrowd(std::mt19937_64& random, History* history) {
  history->site.machines = {{"worker-0"}, {"worker-1"}};
  history->site.machines[1].memory_bytes = kSmallBytes;
  history->site.core.request_ids_max = 100;
  history->happenings = {{0, kSecondUs, kCrowdKind, random(), random() >> 1}};
  for (int i = Draw(random, 0, 3); i > 0; --i) {
    const int64_t at_us = static_cast<int64_t>(random() % 4'000'000);
    history->happenings.push_back({0, at_us, kJobKind, random(), random() >> 1});
  }
}

constexpr uint64_t kOnce = 10;  // b of an ask: one answer, and its client asks for nothing twice

// One slow worker, whom somebody asks for long answers of one base model, and jobs of others.
void DrawTalkative(std::mt19937_64& random, History* history) {
  history->site.machines = {{"worker-0"}};
  history->site.machines[0].order_us = 200'000;
  history->rates.owns = 0.8;
  const auto add = [&](int64_t at_us, int kind, uint64_t a, uint64_t b) {
    history->happenings.push_back({0, at_us, kind, a, b});
  };
  for (int i = Draw(random, 1, 3); i > 0; --i) {
    add(static_cast<int64_t>(random() % 2'000'000), kAsksKind, 16 * (random() % 1000) + 5, kOnce);
  }
  for (int i = Draw(random, 1, 4); i > 0; --i) {
    const int64_t at_us = 2 * kSecondUs + static_cast<int64_t>(random() % 20'000'000);
    add(at_us, kJobKind, random(), random() >> 1);
  }
}

// One slow worker, whom somebody asks a base model, and more jobs of others than it has time for.
void DrawBesieged(std::mt19937_64& random, History* history) {
  history->site.machines = {{"worker-0"}};
  history->site.machines[0].order_us = 200'000;
  history->rates.owns = 1;
  for (int i = Draw(random, 1, 3); i > 0; --i) {
    history->happenings.push_back({0, 0, kAsksKind, 16 * (random() % 1000), kOnce});
  }
  int64_t at_us = 0;
  for (int i = 0; i < 30; ++i) {
    at_us += Draw(random, 200, 3000) * 1000;
    history->happenings.push_back({0, at_us, kJobKind, random(), random() >> 1});
  }
}

// Two or three slow workers, nothing goes wrong, and whoever waits may soon take the place of who
// has run for a second or some; the jobs are long, and some have soon got the most points.
void DrawJostling(std::mt19937_64& random, History* history) {
  const int workers = Draw(random, 2, 3);
  history->site.machines.clear();
  for (int i = 0; i < workers; ++i) {
    history->site.machines.push_back({.worker = absl::StrCat("worker-", i), .order_us = 400'000});
  }
  planner::SchedulePolicy& policy = history->site.core.policy;
  policy.minimum_run_s = Draw(random, 1, 3);
  policy.points_per_hour = random() % 4 > 0 ? 3600 : 0;
  policy.points_max = random() % 2 == 0 ? Draw(random, 1, 4) : 100;
  policy.fair_share = random() % 3 == 0;
  if (policy.fair_share) history->site.core.share_label = "team";
  history->rates.owns = 0.1 * Draw(random, 1, 10);
  history->rates.epochs_max = 20;
  history->rates.priorities = 1 + random() % 2;
  for (int i = workers + Draw(random, 2, 7); i > 0; --i) {
    const int64_t at_us = static_cast<int64_t>(random() % 20'000'000);
    history->happenings.push_back({0, at_us, kJobKind, random(), random() >> 1});
  }
}

// Equal workers that say how long they take, and jobs of two base models or some, short ones and
// long ones, of low ranks and high ones, which move to where others have left. Nothing goes wrong.
void DrawLopsided(std::mt19937_64& random, History* history) {
  const int workers = Draw(random, 2, 3);
  history->site.machines.clear();
  for (int i = 0; i < workers; ++i) {
    history->site.machines.push_back({.worker = absl::StrCat("worker-", i),
                                      .order_us = 10'000,
                                      .pass_ms = 10,
                                      .token_ms = 5,
                                      .rank_ms = 0.02,
                                      .truthful = true});
  }
  history->site.core.policy.minimum_run_s = Draw(random, 1, 5);
  history->rates.owns = 0.1 * Draw(random, 0, 8);
  history->rates.high_rank = 0.1 * Draw(random, 0, 5);
  history->rates.evaluates = random() % 2 == 0;
  history->rates.epochs_max = 60;
  history->rates.priorities = 1;
  const auto add = [&](int64_t at_us, int kind) {
    const uint64_t a = random(), b = random() >> 1;
    history->happenings.push_back({0, at_us, kind, a, b});
  };
  const int64_t length_us = Draw(random, 1, 60) * kSecondUs;
  const auto at_us = [&] {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(length_us));
  };
  for (int i = workers + Draw(random, 0, 4); i > 0; --i) add(at_us(), kJobKind);
  for (int i = Draw(random, 0, 4); i > 0; --i)
    add(at_us(), Draw(random, kOthersKind, kAsksKind - 1));
}

// A large worker and small ones, and a stream of jobs of one priority that lasts longer than most of
// them: some fit the large one alone. Nothing goes wrong.
void DrawUnlike(std::mt19937_64& random, History* history) {
  const Machine machine{.worker = "worker-0",
                        .order_us = 10'000,
                        .pass_ms = 10,
                        .token_ms = 15,
                        .rank_ms = 0.002,
                        .truthful = true};
  history->site.machines = {machine};
  for (int i = Draw(random, 1, 3); i > 0; --i) {
    Machine& small = history->site.machines.emplace_back(machine);
    small.worker = absl::StrCat("worker-", history->site.machines.size() - 1);
    small.memory_bytes = kSmallBytes + Draw(random, 0, 100'000);
  }
  history->site.in_turn = true;
  planner::SchedulePolicy& policy = history->site.core.policy;
  policy.minimum_run_s = Draw(random, 1, 5);
  if (random() % 4 == 0) policy.points_per_hour = 3600;
  policy.evict = random() % 8 > 0;
  history->rates.owns = 0.1 * Draw(random, 1, 6);
  history->rates.high_rank = 0.1 * Draw(random, 3, 6);
  history->rates.evaluates = random() % 4 == 0;
  history->rates.epochs_max = std::vector{8, 16}[random() % 2];
  history->rates.priorities = 1;
  int64_t at_us = 0;
  for (int i = Draw(random, 10, 24); i > 0; --i) {
    at_us += Draw(random, 100, 1500) * 1000;
    history->happenings.push_back({0, at_us, kJobKind, random(), random() >> 1});
  }
}

int KindOf(std::string_view name) {
  for (int kind = 0; kind < CountKinds(); ++kind) {
    if (name == NameOfKind(kind)) return kind;
  }
  std::abort();
}

// Workers die again and again, and the coordinator soon after each. A minute of that fails nobody.
void DrawRestless(std::mt19937_64& random, History* history) {
  const int dies = KindOf("a worker dies"), killed = KindOf("the coordinator is killed");
  history->site.core.losses_without_progress_max =
      server::CoreOptions().losses_without_progress_max;
  const auto add = [&](int64_t at_us, int kind) {
    const uint64_t a = random(), b = random() >> 1;
    history->happenings.push_back({0, at_us, kind, a, b});
  };
  for (int i = Draw(random, 1, 3); i > 0; --i) add(0, kJobKind);
  const int pause_ms = std::vector{60, 200, 600, 2000}[random() % 4];
  int64_t at_us = 100'000;
  while (at_us < 50 * kSecondUs) {
    at_us += Draw(random, 20, pause_ms) * 1000;
    add(at_us, dies);
    at_us += Draw(random, 1, pause_ms) * 1000;
    if (random() % 4 > 0) add(at_us, killed);
  }
}

void Number(std::vector<Happening>& happenings) {
  std::ranges::stable_sort(happenings, {}, &Happening::at_us);
  int number = 0;
  for (Happening& happening : happenings) happening.number = number++;
}

}  // namespace

History DrawHistory(uint64_t seed) {
  std::mt19937_64 random(seed);
  History history;
  history.site = DrawSite(seed, random);
  const bool stages = seed % kStagesEvery == 2;
  if (!stages && random() % kCrowdEvery == 0) {
    DrawCrowd(random, &history);
    Number(history.happenings);
    return history;
  }
  if (seed % kRestlessEvery == 9) {
    DrawRestless(random, &history);
    Number(history.happenings);
    return history;
  }
  if (seed % kTalkativeEvery == 21) {
    DrawTalkative(random, &history);
    Number(history.happenings);
    return history;
  }
  if (seed % kBesiegedEvery == 53) {
    DrawBesieged(random, &history);
    Number(history.happenings);
    return history;
  }
  if (seed % kJostlingEvery == 25) {
    DrawJostling(random, &history);
    Number(history.happenings);
    return history;
  }
  if (seed % kLopsidedEvery == 17) {
    DrawLopsided(random, &history);
    Number(history.happenings);
    return history;
  }
  if (seed % kUnlikeEvery == 37) {
    DrawUnlike(random, &history);
    Number(history.happenings);
    return history;
  }
  history.rates = DrawRates(random);
  if (stages) DrawStages(random, &history);
  const int64_t length_us = std::vector{2, 4, 8, 30}[random() % 4] * kSecondUs;
  const auto add = [&](int kind) {
    const int64_t at_us = static_cast<int64_t>(random() % static_cast<uint64_t>(length_us));
    const uint64_t a = random(), b = random() >> 1;
    history.happenings.push_back({0, at_us, kind, a, b});
  };
  for (int i = Draw(random, 3, 9); i > 0; --i) add(kJobKind);
  for (int i = Draw(random, 0, 10); i > 0; --i) add(Draw(random, kOthersKind, kAsksKind - 1));
  std::discrete_distribution<int> calamities = DrawCalamities(random, stages);
  if (history.rates.deadly > 0) {
    history.site.core.losses_without_progress_max =
        server::CoreOptions().losses_without_progress_max;
    calamities = SparingWorkers();
  }
  for (int i = Draw(random, 0, 30); i > 0; --i) add(CountClientKinds() + calamities(random));
  for (int i = stages && history.rates.deadly == 0 ? Draw(random, 0, 4) : 0; i > 0; --i) {
    const int kinds = CountClientKinds() + CountKindsOfStages();
    add(Draw(random, CountClientKinds() + CountKindsOfAll(), kinds - 1));
  }
  // The last to be drawn, so that seeds of before have what they had.
  for (int i = Draw(random, 0, 5); i > 0; --i) add(kAsksKind);
  for (int i = random() % 3 == 0 ? Draw(random, 1, 3) : 0; i > 0; --i) add(kFinishKind);
  for (int i = stages && IsOf(kNarrowForAWhile, seed) ? Draw(random, 2, 8) : 0; i > 0; --i) {
    add(KindOf("two workers reach each other with small messages alone for a while"));
  }
  for (int i = AreToldToEnd(seed) ? Draw(random, 1, 12) : 0; i > 0; --i) {
    add(KindOf("a worker is told to end"));
  }
  Number(history.happenings);
  if (stages) AddRare(seed, &history);
  // In one of five the workers die with their coordinator, as far as that knows.
  for (Machine& machine : history.site.machines) machine.outlives = seed % 5 != 1;
  return history;
}

}  // namespace lorad::sim
