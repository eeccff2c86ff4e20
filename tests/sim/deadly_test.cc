// Sites with a job whose steps end all stages of its group, one after the other, and one of the same
// base model that harms nobody: the first one fails, and the second loses no worker.
#include <catch2/catch.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "server/core/core.h"
#include "server/core/rules/job_states.h"
#include "tests/sim/site.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int kSites = 60;
constexpr double kSurvivedRate = 1;  // of learning

v1::Job JobOf(int stages, bool deadly) {
  v1::Job job;
  job.set_base_model(NameOfLayers(stages));
  job.set_training_dataset("train.jsonl");
  job.mutable_adapter()->set_rank(4);
  job.mutable_adapter()->set_alpha(8);
  job.mutable_adapter()->add_target_modules("q_proj");
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_max_steps(20);
  training.set_batch_size(2);
  training.set_max_length(64);
  training.set_learning_rate(deadly ? 2 * kSurvivedRate : kSurvivedRate / 10);
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_checkpoint_every_steps(2);
  return job;
}

// Two workers more than a group has: who is left of a lost one can be put together with them.
SiteOptions OptionsOf(uint64_t seed, int stages) {
  SiteOptions options;
  options.seed = seed;
  options.delay_us_max = seed % 2 == 0 ? 2000 : 20'000;
  options.core.microbatch_tokens = 64;
  options.core.losses_without_progress_max = server::CoreOptions().losses_without_progress_max;
  options.machines.clear();
  for (int i = 0; i < stages + 2; ++i) {
    Machine& machine = options.machines.emplace_back(Machine{absl::StrCat("worker-", i)});
    machine.threads = 1;
    machine.memory_bytes = kStageBytes;
    machine.order_us = 2000 + 10'000 * static_cast<int64_t>(seed % 4) * i;  // and die in turn
  }
  options.layers = {stages};
  return options;
}

// How often the innocent job lost workers.
int64_t Play(uint64_t seed, int stages) {
  Site site(OptionsOf(seed, stages));
  site.script().survived_rate_max = kSurvivedRate;
  site.AddModels();
  site.AddDataset("train.jsonl", 13);
  std::vector<std::string> jobs;
  for (const bool deadly : {true, false}) {
    const std::string id = absl::StrCat("job ", jobs.size());
    jobs.push_back(std::get<v1::Job>(site.Call([&]() -> server::Request {
                     return server::CreateJob{.job = JobOf(stages, deadly), .request_id = {id, id}};
                   })).name());
  }
  const auto job_of = [&](const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    return std::get<v1::Job>(site.Call([&]() -> server::Request { return request; }));
  };
  const int64_t until_us = site.now_us() + 1000 * kSecondUs;
  for (const std::string& name : jobs) {
    while (server::IsLive(job_of(name).state())) {
      REQUIRE(site.now_us() < until_us);
      site.Sleep(kSecondUs / 4);
    }
  }
  site.CheckAll();
  CHECK(job_of(jobs[0]).error().reason() == "WORKER_LOST");
  const v1::Job innocent = job_of(jobs[1]);
  INFO(innocent.ShortDebugString());
  REQUIRE(innocent.state() == v1::Job::SUCCEEDED);
  return innocent.attempts() - 1;
}

// There is room for one group, whose workers are dead before the second job has come into it.
TEST_CASE("whoever shares no group with a job that ends its workers loses none") {
  for (const int stages : {3, 4}) {
    int64_t losses = 0;
    for (uint64_t seed = 1; seed <= kSites; ++seed) {
      INFO(stages << " stages, seed " << seed);
      losses += Play(seed, stages);
    }
    std::cout << "deadly_test: " << stages << " stages: the other job lost its workers " << losses
              << " times in " << kSites << " sites\n";
    REQUIRE(losses == 0);
  }
}

}  // namespace
}  // namespace lorad::sim
