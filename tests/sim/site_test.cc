// Whole histories of a site under chaos: deaths of every kind, power losses, a disk with faults,
// streams that break. A failing seed is printed; `site_test --seed N --seeds 1` runs it alone.
#define CATCH_CONFIG_RUNNER
#include "tests/sim/site.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "server/core/job_states.h"

namespace lorad::sim {
namespace {

using server::Request;

uint64_t first_seed = 1;
uint64_t seeds = 2000;

// What goes wrong in a history. Each kind can be switched off, to see which ones a failure needs.
struct Calamities {
  bool kills = true;
  bool power_losses = true;
  bool disk_faults = true;
  bool worker_deaths = true;
  bool broken_streams = true;
  bool silence = true;
  bool clocks = true;
  bool cancels = true;
};

// A client that asks again under the same request_id until it is told.
class Client {
 public:
  Client(Site& site, v1::Job job, std::string request_id)
      : site_(site), job_(std::move(job)), request_id_(std::move(request_id)) {}

  void Ask() {
    server::CreateJob request;
    request.job = job_;
    request.request_id = {request_id_, job_.SerializeAsString()};
    site_.Ask(request, [this](absl::StatusOr<server::ReplyValue> reply) {
      if (!reply.ok()) return site_.At(site_.now_us() + 100'000, [this] { Ask(); });
      const std::string& name = std::get<v1::Job>(*reply).name();
      if (!acknowledged_.empty()) REQUIRE(name == acknowledged_);
      acknowledged_ = name;
      Look();
    });
  }
  void Cancel() {
    if (acknowledged_.empty()) return;
    cancelled_ = true;
    v1::CancelJobRequest request;
    request.set_name(acknowledged_);
    site_.Ask(request, [](absl::StatusOr<server::ReplyValue>) {});
  }
  const std::string& acknowledged() const { return acknowledged_; }
  bool cancelled() const { return cancelled_; }
  const v1::Job& job() const { return seen_; }
  bool ended() const { return !seen_.name().empty() && !server::IsLive(seen_.state()); }

 private:
  // Asks again and again until the job has ended.
  void Look() {
    v1::GetJobRequest request;
    request.set_name(acknowledged_);
    site_.Ask(request, [this](absl::StatusOr<server::ReplyValue> reply) {
      if (reply.ok()) {
        seen_ = std::get<v1::Job>(*reply);
      } else {
        INFO("job " << acknowledged_ << ": " << reply.status());
        REQUIRE(absl::IsUnavailable(reply.status()));
      }
      if (!ended()) site_.At(site_.now_us() + 500'000, [this] { Look(); });
    });
  }

  Site& site_;
  const v1::Job job_;
  const std::string request_id_;
  std::string acknowledged_;
  bool cancelled_ = false;
  v1::Job seen_;  // without a name: not yet
};

v1::Job RandomJob(std::mt19937_64& random) {
  v1::Job job;
  job.set_base_model("m");
  job.set_training_dataset("train.jsonl");
  if (random() % 2 == 0) job.set_validation_dataset("valid.jsonl");
  v1::AdapterConfig& adapter = *job.mutable_adapter();
  adapter.set_rank(4);
  adapter.set_alpha(8);
  adapter.add_target_modules("q_proj");
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_epochs(1 + static_cast<int>(random() % 3));
  training.set_batch_size(2 + static_cast<int>(random() % 4));
  training.set_max_length(64);
  training.set_learning_rate(1e-3);
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_checkpoint_every_steps(static_cast<int64_t>(random() % 4));
  training.set_eval_every_steps(static_cast<int64_t>(random() % 4));
  job.set_priority(static_cast<int>(random() % 3));
  return job;
}

void Strike(Site& site, const Calamities& with, std::mt19937_64& random, int workers,
            std::vector<std::unique_ptr<Client>>& clients) {
  const int worker = static_cast<int>(random() % workers);
  const auto death = [&] {
    const bool power = with.power_losses && (!with.kills || random() % 2 == 0);
    return power ? Site::Death::kPowerLoss : Site::Death::kKill;
  };
  const bool deaths = with.kills || with.power_losses;
  switch (random() % 8) {
    case 0:
      if (deaths) site.EndCoordinator(death(), static_cast<int64_t>(random() % 30));
      break;
    case 1:
      if (deaths) site.EndCoordinatorAtEffect(death(), static_cast<int64_t>(random() % 60));
      break;
    case 2:
      if (with.worker_deaths) site.worker(worker).Kill();
      break;
    case 3:
      if (with.broken_streams) site.CutStream(worker);
      break;
    case 4:
      if (with.silence) site.worker(worker).Silence();
      break;
    case 5:
      if (with.clocks) site.SetWallClock(static_cast<int64_t>(random() % 4'000'000'000'000'000));
      if (with.clocks && random() % 2 == 0) site.StandStill(20'000'000);
      break;
    case 6:
      if (with.cancels && !clients.empty()) clients[random() % clients.size()]->Cancel();
      break;
    default: {
      const auto rate = [&] { return random() % 2 == 0 ? 0.01 : 0; };
      const FaultRates rates{.no_space = rate(), .write_error = rate(), .sync_error = rate()};
      if (with.disk_faults) site.SetFaults(rates);
    }
  }
}

void RunHistory(uint64_t seed, const Calamities& with) {
  std::mt19937_64 random(seed);
  SiteOptions options;
  options.seed = seed;
  options.workers = 1 + static_cast<int>(seed % 3);
  options.delay_us_max = seed % 2 ? 2000 : 20'000;
  options.sqlite = seed % 5 == 0;
  options.core.microbatch_tokens = 64;
  options.core.evaluate_sequences = 2;
  options.core.losses_without_progress_max = 1'000'000;
  options.core.lease_ms = 5000;
  Site site(options);
  site.AddModel();
  site.AddDataset("train.jsonl", 13);
  site.AddDataset("valid.jsonl", 5);

  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 30; ++i) {
    site.Sleep(static_cast<int64_t>(random() % 300'000));
    if (i % 4 == 0) {
      clients.push_back(
          std::make_unique<Client>(site, RandomJob(random), absl::StrCat("request-", i)));
      clients.back()->Ask();
    }
    Strike(site, with, random, options.workers, clients);
  }
  site.SetFaults({});
  // After the last fault everything ends within a bound.
  site.RunUntil([&] { return std::ranges::all_of(clients, &Client::ended); }, 300'000);
  std::set<std::string> names;
  for (const auto& client : clients) {
    INFO("seed " << seed << ": " << client->job().ShortDebugString());
    REQUIRE(names.insert(client->acknowledged()).second);
    REQUIRE((client->job().state() == v1::Job::SUCCEEDED ||
             (client->job().state() == v1::Job::CANCELLED && client->cancelled())));
  }
  site.CheckAll();
}

TEST_CASE("histories of a site end as they should") {
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    INFO("seed " << seed);
    RunHistory(seed, {});
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << "site_test: " << static_cast<double>(seeds) / took.count()
            << " histories a second\n";
}

}  // namespace
}  // namespace lorad::sim

int main(int argc, char** argv) {
  Catch::Session session;
  using Catch::clara::Opt;
  session.cli(session.cli() | Opt(lorad::sim::first_seed, "seed")["--seed"]("the first seed") |
              Opt(lorad::sim::seeds, "count")["--seeds"]("how many"));
  if (const int error = session.applyCommandLine(argc, argv); error != 0) return error;
  return session.run();
}
