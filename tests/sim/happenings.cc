#include "tests/sim/happenings.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/clients/asking_client.h"
#include "tests/sim/clients/crowd.h"

namespace lorad::sim {
namespace {

v1::Job RandomJob(const Rates& rates, uint64_t a, uint64_t b) {
  const auto draw = [&a](uint64_t kinds) {
    const uint64_t drawn = a % kinds;
    a /= kinds;
    return static_cast<int>(drawn);
  };
  const auto falls = [&draw](double share) { return draw(1000) < share * 1000; };
  v1::Job job;
  job.set_base_model("m");
  job.set_training_dataset(falls(rates.long_rows) ? "long.jsonl" : "train.jsonl");
  if (draw(2) == 0 && rates.evaluates) job.set_validation_dataset("valid.jsonl");
  v1::AdapterConfig& adapter = *job.mutable_adapter();
  adapter.set_rank(falls(rates.high_rank) ? 65 << draw(4) >> 1 : 4);
  adapter.set_alpha(8);
  adapter.add_target_modules("q_proj");
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_epochs(1 + draw(rates.epochs_max));
  training.set_batch_size(2 + draw(4));
  training.set_max_length(61 + draw(4));
  training.set_learning_rate(1e-3);
  if (falls(rates.poisoned)) {
    training.set_learning_rate(1.5 * kFiniteRateMax);
    training.set_warmup_steps(draw(6));
  } else if (falls(rates.deadly)) {
    training.set_learning_rate(1.5 * kSurvivedRateMax);
  }
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_checkpoint_every_steps(draw(4));
  training.set_eval_every_steps(draw(4));
  training.set_seed(b % 1000);
  if ((b >> 52) % 4 == 0) training.set_checkpoint_keep_last(static_cast<int>((b >> 54) % 3));
  const bool evaluates = !job.validation_dataset().empty() && training.eval_every_steps() > 0 &&
                         training.checkpoint_every_steps() > 0;
  if (evaluates && (b >> 56) % 3 == 0) training.set_checkpoint_keep_best(1 + (b >> 58) % 2);
  job.set_priority(draw(rates.priorities));
  (*job.mutable_labels())["team"] = draw(2) == 0 ? "a" : "b";
  if (!rates.layers.empty()) {
    const int layers = rates.layers[static_cast<size_t>(draw(rates.layers.size()))];
    if (layers > 0) job.set_base_model(NameOfLayers(layers));
  }
  return job;
}

// ---- clients ----

void CreatesJob(Stage& stage, const Happening& h) {
  JobClient::Plan plan;
  plan.job = RandomJob(stage.rates, h.a, h.b);
  plan.request_id = absl::StrCat("request-", h.number);
  constexpr const char* kOwn[] = {"model", "dataset", "adapter"};
  for (uint64_t i = 0; i < std::size(kOwn); ++i) {
    if ((h.b >> (20 + 10 * i)) % 1000 < stage.rates.owns * 1000) plan.owns.insert(kOwn[i]);
  }
  if (h.b % 3 == 0 && !stage.jobs.empty()) {
    const JobClient& from = *stage.jobs[h.b / 3 % stage.jobs.size()];
    const bool fits = from.planned().adapter().rank() == plan.job.adapter().rank() &&
                      from.planned().base_model() == plan.job.base_model();
    if (fits && plan.owns.empty()) plan.from = &from;
  }
  plan.deletes = h.b / 100 % 4 == 0;
  plan.deletes_checkpoint = h.b / 1000 % 3 == 0;
  stage.jobs.push_back(std::make_unique<JobClient>(stage.site, stage.census, plan));
  if (h.b / 3000 % 4 == 0) stage.jobs.back()->AskTwice();
  stage.jobs.back()->Begin();
}

// While the one worker that they fit is away; all others are smaller.
void CrowdComes(Stage& stage, const Happening& h) {
  if (stage.site.workers() < 2) return;
  WorkerProcess& worker = stage.site.worker(0);
  worker.Kill(/*restart=*/false);
  CrowdClient::Plan plan;
  plan.jobs = 260;
  plan.large = RandomJob({}, h.a, h.b);
  plan.large.mutable_adapter()->set_rank(256);
  plan.large.set_priority(2);
  plan.small = RandomJob({}, h.a, h.b);
  plan.request_id = absl::StrCat("crowd-", h.number);
  plan.at_end = [&worker] {
    if (!worker.running()) worker.Start();
  };
  stage.others.push_back(std::make_unique<CrowdClient>(stage.site, stage.census, plan));
  stage.others.back()->Begin();
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
  Add(stage, h, std::make_unique<CuriousClient>(stage.site, RandomJob({}, h.a, h.b)));
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

// Each of a job that there is, at its newest checkpoint, or of its base model.
void AsksAdapters(Stage& stage, const Happening& h) {
  std::string base_model = "m", job;
  if (!stage.jobs.empty()) {
    const JobClient& of = *stage.jobs[h.a % stage.jobs.size()];
    job = of.acknowledged();
    if (!job.empty()) base_model = of.planned().base_model();
  }
  std::vector<server::AskedAnswer> asks(1 + h.b % 5);
  for (size_t i = 0; i < asks.size(); ++i) {
    const uint64_t drawn = (h.b >> (4 + 8 * i)) + h.a;
    asks[i].base_model = base_model;
    if (drawn % 3 > 0) asks[i].job = job;
    asks[i].prompt.assign(1 + drawn / 3 % 40, 1);
    // Some go on for so long that jobs come beside them.
    asks[i].max_tokens = drawn % 16 == 5 ? 300 : 1 + static_cast<int32_t>(drawn / 7 % 20);
    asks[i].seed = drawn;
  }
  Add(stage, h, std::make_unique<AskingClient>(stage.site, std::move(asks)));
}

void Finishes(Stage& stage, const Happening& h) {
  if (!stage.jobs.empty()) stage.jobs[h.a % stage.jobs.size()]->Finish();
}

constexpr Kind kClients[] = {
    {"somebody creates a job", CreatesJob},
    {"somebody creates more jobs than are looked at", CrowdComes},
    {"somebody creates a model, dataset or adapter", CreatesResource},
    {"somebody asks for an estimate", Asks},
    {"somebody lists", Lists},
    {"somebody reads what was", Reads},
    {"somebody watches", Watches},
    {"somebody asks adapters", AsksAdapters},
    {"somebody has a job finish", Finishes},
};

const Kind& KindAt(int kind) {
  return kind < CountClientKinds() ? kClients[kind] : Calamities()[kind - CountClientKinds()];
}

}  // namespace

int CountClientKinds() { return static_cast<int>(std::size(kClients)); }

int CountKinds() { return CountClientKinds() + static_cast<int>(Calamities().size()); }

const char* NameOfKind(int kind) { return KindAt(kind).name; }

void Happen(Stage& stage, const Happening& happening) {
  KindAt(happening.kind).happen(stage, happening);
}

}  // namespace lorad::sim
