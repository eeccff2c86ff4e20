#include "tests/worker/join_and_leave.h"

#include <catch2/catch.hpp>

#include "tests/worker/rows.h"

namespace lorad::worker {

const std::vector<std::string> kAllTargets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};

std::vector<TestJob> Jobs() {
  return {MakeJob("small", 4, {"q_proj", "down_proj"}, RandomRows(12, 20, 100, 1), 4),
          MakeJob("all", 16, kAllTargets, RandomRows(12, 20, 100, 2), 3),
          MakeJob("mlp", 64, {"gate_proj", "up_proj"}, RandomRows(12, 20, 100, 3), 2)};
}

Outcome JoinAndLeave(Harness* harness) {
  harness->Form();
  std::vector<TestJob> jobs = Jobs();
  Outcome outcome;
  harness->Load(jobs[0]);
  harness->Step({&jobs[0]});
  harness->Load(jobs[1]);
  harness->Load(jobs[2]);
  harness->Step({&jobs[0], &jobs[1], &jobs[2]});
  outcome.evaluated.push_back(harness->Evaluate(jobs[1], jobs[1].rows));
  // The one that leaves is saved, and it alone: a slot is freed behind the shard of its last save,
  // and that of the step before may still be on its way.
  v1::Window window = harness->NewWindow();
  harness->AddSteps({&jobs[2]}, true, nullptr, &window);
  harness->AddSteps({&jobs[0], &jobs[1]}, false, nullptr, &window);
  harness->Run(std::move(window));
  harness->Free(jobs[2]);
  harness->Step({&jobs[0], &jobs[1]}, true);
  harness->Free(jobs[1]);
  harness->Step({&jobs[0]}, true);
  outcome.evaluated.push_back(harness->Evaluate(jobs[0], jobs[0].rows));
  for (const TestJob& job : jobs) {
    outcome.shards[job.name()] = harness->Shard(job);
    for (const v1::StepDone& step : harness->steps(job.name())) {
      outcome.losses[job.name()].push_back(step.loss());
      outcome.norms[job.name()].push_back(step.grad_norm());
    }
  }
  return outcome;
}

Outcome JoinAndLeave(const Harness::Options& options) {
  Harness harness(options);
  return JoinAndLeave(&harness);
}

void CheckEqual(const Outcome& got, const Outcome& want) {
  CHECK(got.losses == want.losses);
  CHECK(got.norms == want.norms);
  CHECK(got.evaluated == want.evaluated);
  for (const auto& [job, shard] : want.shards) {
    INFO(job);
    CHECK((got.shards.at(job) == shard));
  }
}

}  // namespace lorad::worker
