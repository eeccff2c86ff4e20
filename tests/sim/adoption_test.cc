// Sites in which nothing goes wrong but that the coordinator dies, again and again: the next one
// finds every group with its workers, and no job goes back to its checkpoint.
#include <catch2/catch.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "server/core/rules/job_states.h"
#include "server/store/store_reads.h"
#include "tests/sim/site.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int kSites = 60;
constexpr int kDeaths = 6;

v1::Job JobOf(const std::string& model, int number, std::mt19937_64& random) {
  v1::Job job;
  job.set_base_model(model);
  job.set_training_dataset("train.jsonl");
  job.set_validation_dataset("valid.jsonl");
  job.mutable_adapter()->set_rank(2 + number);
  job.mutable_adapter()->set_alpha(8);
  job.mutable_adapter()->add_target_modules("q_proj");
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_max_steps(60);
  training.set_batch_size(2);
  training.set_max_length(64);
  training.set_learning_rate(0.1);
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_checkpoint_every_steps(static_cast<int32_t>(random() % 3 == 0 ? 10 : 0));
  training.set_eval_every_steps(static_cast<int32_t>(random() % 2 == 0 ? 9 : 0));
  return job;
}

SiteOptions OptionsOf(uint64_t seed, int stages) {
  SiteOptions options;
  options.seed = seed;
  options.delay_us_max = seed % 2 == 0 ? 2000 : 20'000;
  options.core.microbatch_tokens = 64;
  options.core.evaluate_sequences = 2;
  options.core.lease_ms = 30'000;  // that workers wait through all deaths
  options.core.patience_floor_ms = 20'000;
  options.machines.clear();
  for (int i = 0; i < stages; ++i) {
    Machine& machine = options.machines.emplace_back(Machine{absl::StrCat("worker-", i)});
    machine.order_us = seed % 3 == 0 ? 20'000 : 2000;
    if (stages == 1) continue;
    machine.threads = 1;
    machine.memory_bytes = kStageBytes;
  }
  if (stages > 1) options.layers = {stages};
  return options;
}

struct Outcome {
  int64_t adoptions = 0;
  int64_t windows_sent_again = 0;  // to workers that they had not come to
};

// Between its first start and its end no job was in the queue.
void CheckJobs(Site& site, const std::vector<std::string>& jobs) {
  for (const std::string& name : jobs) {
    v1::ListEventsRequest request;
    request.set_job(name);
    request.set_page_size(1000);
    const auto told = server::ReadEvents(site.store(), request);
    REQUIRE(told.ok());
    for (const v1::Event& event : told->events()) {
      INFO(event.ShortDebugString());
      REQUIRE(event.reason() != "NUMERICS_MISMATCH");
      const bool falls_back =
          event.from_state() == v1::Job::RUNNING && event.to_state() == v1::Job::QUEUED;
      REQUIRE_FALSE(falls_back);
    }
  }
}

Outcome Play(uint64_t seed, int stages) {
  Site site(OptionsOf(seed, stages));
  site.AddModels();
  site.AddDataset("train.jsonl", 13);
  site.AddDataset("valid.jsonl", 5);
  const std::string model = stages == 1 ? "m" : NameOfLayers(stages);
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) {
    const v1::Job content = JobOf(model, i, site.random());
    const std::string id = absl::StrCat("job ", i);
    jobs.push_back(std::get<v1::Job>(site.Call([&]() -> server::Request {
                     return server::CreateJob{.job = content, .request_id = {id, id}};
                   })).name());
  }
  const auto job_of = [&](const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    return std::get<v1::Job>(site.Call([&]() -> server::Request { return request; }));
  };
  const auto wait = [&](const auto& done) {
    const int64_t until_us = site.now_us() + 300 * kSecondUs;
    for (const std::string& name : jobs) {
      while (!done(job_of(name))) {
        REQUIRE(site.now_us() < until_us);
        site.Sleep(20'000);
      }
    }
  };
  wait([](const v1::Job& job) { return job.step() > 0; });
  for (int death = 0; death < kDeaths; ++death) {
    site.Sleep(static_cast<int64_t>(site.random()() % (kSecondUs / 2)));
    site.RunUntil([&] { return site.serves(); }, 100'000);
    const int64_t deaths = site.deaths();
    site.EndCoordinator(Site::Death::kKill, static_cast<int64_t>(site.random()() % 12));
    site.RunUntil([&] { return site.deaths() > deaths; }, 100'000);
  }
  wait([](const v1::Job& job) { return !server::IsLive(job.state()); });
  site.CheckAll();
  for (const std::string& name : jobs) REQUIRE(job_of(name).state() == v1::Job::SUCCEEDED);
  CheckJobs(site, jobs);
  return {site.adoptions(), site.windows_sent_again()};
}

TEST_CASE("a coordinator that dies finds its groups again") {
  for (const int stages : {1, 2, 3}) {
    Outcome all;
    for (uint64_t seed = 1; seed <= kSites; ++seed) {
      INFO(stages << " stages, seed " << seed);
      const Outcome outcome = Play(seed, stages);
      all.adoptions += outcome.adoptions;
      all.windows_sent_again += outcome.windows_sent_again;
    }
    std::cout << "adoption_test: " << stages << " stages: found " << all.adoptions << " times in "
              << kSites * kDeaths << " deaths, windows sent again " << all.windows_sent_again
              << '\n';
    REQUIRE(all.adoptions > kSites);
    REQUIRE(all.windows_sent_again > 0);
  }
}

}  // namespace
}  // namespace lorad::sim
