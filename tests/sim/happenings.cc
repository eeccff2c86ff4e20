#include "tests/sim/happenings.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/lies.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

v1::Job RandomJob(uint64_t a, uint64_t b) {
  const auto draw = [&a](uint64_t kinds) {
    const uint64_t drawn = a % kinds;
    a /= kinds;
    return static_cast<int>(drawn);
  };
  v1::Job job;
  job.set_base_model("m");
  job.set_training_dataset("train.jsonl");
  if (draw(2) == 0) job.set_validation_dataset("valid.jsonl");
  v1::AdapterConfig& adapter = *job.mutable_adapter();
  adapter.set_rank(4);
  adapter.set_alpha(8);
  adapter.add_target_modules("q_proj");
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_epochs(1 + draw(3));
  training.set_batch_size(2 + draw(4));
  training.set_max_length(64);
  training.set_learning_rate(1e-3);
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_checkpoint_every_steps(draw(4));
  training.set_eval_every_steps(draw(4));
  training.set_seed(b % 1000);
  job.set_priority(draw(3));
  return job;
}

// ---- clients ----

void CreatesJob(Stage& stage, const Happening& h) {
  JobClient::Plan plan;
  plan.job = RandomJob(h.a, h.b);
  plan.request_id = absl::StrCat("request-", h.number);
  if (h.b % 3 == 0 && !stage.jobs.empty()) {
    plan.from = stage.jobs[h.b / 3 % stage.jobs.size()].get();
  }
  plan.deletes = h.b / 100 % 4 == 0;
  plan.deletes_checkpoint = h.b / 1000 % 3 == 0;
  stage.jobs.push_back(std::make_unique<JobClient>(stage.site, stage.census, plan));
  if (h.b / 3000 % 4 == 0) stage.jobs.back()->AskTwice();
  stage.jobs.back()->Begin();
}

void Add(Stage& stage, const Happening& h, std::unique_ptr<Client> client) {
  stage.others.push_back(std::move(client));
  if (h.b / 10 % 4 == 0) stage.others.back()->AskTwice();
  stage.others.back()->Begin();
}

void CreatesResource(Stage& stage, const Happening& h) {
  constexpr const char* kKinds[] = {"model", "dataset", "adapter"};
  Add(stage, h,
      std::make_unique<ResourceClient>(stage.site, stage.census, kKinds[h.a % 3],
                                       absl::StrCat("resource-", h.number)));
}

void Asks(Stage& stage, const Happening& h) {
  Add(stage, h, std::make_unique<CuriousClient>(stage.site, RandomJob(h.a, h.b)));
}

void Lists(Stage& stage, const Happening& h) {
  constexpr const char* kKinds[] = {"job", "model", "dataset", "adapter"};
  Add(stage, h,
      std::make_unique<ListClient>(stage.site, stage.census, kKinds[h.a % 4],
                                   1 + static_cast<int>(h.b % 3)));
}

void Reads(Stage& stage, const Happening& h) {
  if (stage.jobs.empty() || !stage.site.serves()) return;
  const std::string& name = stage.jobs[h.a % stage.jobs.size()]->acknowledged();
  if (!name.empty()) ReadJob(stage.site, name);
}

void Watches(Stage& stage, const Happening& h) {
  std::set<std::string> names;
  if (h.a % 2 == 0 && !stage.jobs.empty()) {
    const std::string& name = stage.jobs[h.a / 2 % stage.jobs.size()]->acknowledged();
    if (!name.empty()) names.insert(name);
  }
  const int64_t pause_us = 10'000 + static_cast<int64_t>(h.b % 200'000);
  stage.watchers.push_back(std::make_unique<Watcher>(stage.site, std::move(names), pause_us));
  stage.watchers.back()->Begin();
}

// ---- calamities ----

int NumberOf(const Stage& stage, const Happening& h) {
  return static_cast<int>(h.a % static_cast<uint64_t>(stage.site.workers()));
}

WorkerProcess& WorkerOf(Stage& stage, const Happening& h) {
  return stage.site.worker(NumberOf(stage, h));
}

Mischief& MischiefOf(Stage& stage, const Happening& h) { return WorkerOf(stage, h).mischief(); }

int Of(uint64_t drawn, int kinds) { return static_cast<int>(drawn % static_cast<uint64_t>(kinds)); }

template <Site::Death death>
void EndsAtStep(Stage& stage, const Happening& h) {
  stage.site.EndCoordinator(death, Of(h.a, 30));
}

template <Site::Death death>
void EndsAtEffect(Stage& stage, const Happening& h) {
  stage.site.EndCoordinatorAtEffect(death, Of(h.a, 60));
}

void IsStopped(Stage& stage, const Happening&) { stage.site.StopCoordinator(); }

void WorkerDies(Stage& stage, const Happening& h) { WorkerOf(stage, h).Kill(); }

void StreamBreaks(Stage& stage, const Happening& h) {
  if (h.b % 2 == 0) return stage.site.CutStream(NumberOf(stage, h));
  MischiefOf(stage, h).cut_after = Of(h.b / 2, 40);
}

void IsSilent(Stage& stage, const Happening& h) { WorkerOf(stage, h).Silence(); }

void IsSlow(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).slowness = 2 + Of(h.b, 200);
  stage.site.At(stage.site.now_us() + Of(h.b, 10) * kSecondUs,
                [&stage, h] { MischiefOf(stage, h).slowness = 1; });
}

void Hangs(Stage& stage, const Happening& h) {
  WorkerProcess& worker = WorkerOf(stage, h);
  worker.Hang(true);
  stage.site.At(stage.site.now_us() + (1 + Of(h.b, 60)) * kSecondUs,
                [&worker] { worker.Hang(false); });
}

void Lies(Stage& stage, const Happening& h) {
  Mischief& mischief = MischiefOf(stage, h);
  mischief.lie = Of(h.b, CountLies());
  mischief.lies = 1 + Of(h.b / 1000, 8);
}

void LiesOfShards(Stage& stage, const Happening& h) {
  Mischief& mischief = MischiefOf(stage, h);
  mischief.shard_lie = Of(h.b, CountShardLies());
  mischief.shard_lies = 1 + Of(h.b / 1000, 4);
}

void RepeatsMessages(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).repeats = 1 + Of(h.b, 20);
}

void LosesUploads(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).lost_uploads = 1 + Of(h.b, 3);
}

void RepeatsUploads(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).repeated_uploads = 1 + Of(h.b, 5);
}

// By days, both ways; after a week that is really over request_ids are forgotten.
void ClockJumps(Stage& stage, const Happening& h) {
  constexpr int64_t kDayUs = 86'400 * kSecondUs;
  const int64_t days = static_cast<int64_t>(h.a % 6) - 3;
  stage.site.SetWallClock(Site::kWallAheadUs + days * kDayUs + static_cast<int64_t>(h.b % kDayUs));
}

void StandsStill(Stage& stage, const Happening& h) {
  stage.site.StandStill((1 + Of(h.a, 40)) * kSecondUs);
}

int64_t EndOf(const Stage& stage, const Happening& h, int64_t us_max) {
  return stage.site.now_us() + 10'000 + static_cast<int64_t>(h.b) % us_max;
}

void DiskFails(Stage& stage, const Happening& h) {
  const auto rate = [&](int bit) { return h.a >> bit & 1 ? 0.01 : 0; };
  stage.site.SetFaults(
      {.no_space = rate(0), .write_error = rate(1), .sync_error = rate(2), .read_error = rate(3)});
  stage.site.At(EndOf(stage, h, 3 * kSecondUs), [&stage] { stage.site.SetFaults({}); });
}

void DiskIsFull(Stage& stage, const Happening& h) {
  stage.site.SetRoom(h.a % 20'000);
  stage.site.At(EndOf(stage, h, 40 * kSecondUs),
                [&stage] { stage.site.SetRoom(SimDisk::kUnbounded); });
}

void DiskIsReadOnly(Stage& stage, const Happening& h) {
  stage.site.SetReadOnly(true);
  stage.site.At(EndOf(stage, h, 20 * kSecondUs), [&stage] { stage.site.SetReadOnly(false); });
}

void CancelsJob(Stage& stage, const Happening& h) {
  if (!stage.jobs.empty()) stage.jobs[h.a % stage.jobs.size()]->Cancel();
}

void ClientVanishes(Stage& stage, const Happening& h) {
  const bool of_job = h.b % 2 == 0;
  if (of_job && !stage.jobs.empty()) stage.jobs[h.a % stage.jobs.size()]->Vanish();
  if (!of_job && !stage.others.empty()) stage.others[h.a % stage.others.size()]->Vanish();
}

void WatchIsCut(Stage& stage, const Happening& h) {
  if (!stage.watchers.empty()) stage.watchers[h.a % stage.watchers.size()]->Cut();
}

struct Kind {
  const char* name;
  void (*happen)(Stage& stage, const Happening& h);
};

constexpr Kind kClients[] = {
    {"somebody creates a job", CreatesJob},
    {"somebody creates a model, dataset or adapter", CreatesResource},
    {"somebody asks for an estimate", Asks},
    {"somebody lists", Lists},
    {"somebody reads what was", Reads},
    {"somebody watches", Watches},
};

constexpr Kind kCalamities[] = {
    {"the coordinator is killed", EndsAtStep<Site::Death::kKill>},
    {"the coordinator is killed at an effect on the disk", EndsAtEffect<Site::Death::kKill>},
    {"power is lost", EndsAtStep<Site::Death::kPowerLoss>},
    {"power is lost at an effect on the disk", EndsAtEffect<Site::Death::kPowerLoss>},
    {"the coordinator is stopped", IsStopped},
    {"a worker dies", WorkerDies},
    {"a worker's stream breaks", StreamBreaks},
    {"a worker is silent", IsSilent},
    {"a worker is slow", IsSlow},
    {"a worker hangs", Hangs},
    {"a worker lies", Lies},
    {"a worker lies of shards", LiesOfShards},
    {"a worker's messages come twice", RepeatsMessages},
    {"a worker's uploads are lost", LosesUploads},
    {"a worker's uploads come twice", RepeatsUploads},
    {"the wall clock jumps", ClockJumps},
    {"all stands still", StandsStill},
    {"the disk fails now and then", DiskFails},
    {"the disk is full", DiskIsFull},
    {"the disk is read-only", DiskIsReadOnly},
    {"a job is cancelled", CancelsJob},
    {"a client vanishes", ClientVanishes},
    {"a watch is cut", WatchIsCut},
};

const Kind& KindAt(int kind) {
  return kind < CountClientKinds() ? kClients[kind] : kCalamities[kind - CountClientKinds()];
}

}  // namespace

int CountClientKinds() { return static_cast<int>(std::size(kClients)); }

int CountKinds() { return CountClientKinds() + static_cast<int>(std::size(kCalamities)); }

const char* NameOfKind(int kind) { return KindAt(kind).name; }

void Happen(Stage& stage, const Happening& happening) {
  KindAt(happening.kind).happen(stage, happening);
}

void Calm(Stage& stage) {
  stage.site.SpareCoordinator();
  stage.site.SetFaults({});
  if (stage.site.disk_was_ill()) {
    stage.site.SetRoom(SimDisk::kUnbounded);
    stage.site.SetReadOnly(false);
  }
  for (int i = 0; i < stage.site.workers(); ++i) {
    stage.site.worker(i).mischief() = {};
    stage.site.worker(i).Hang(false);
  }
}

}  // namespace lorad::sim
