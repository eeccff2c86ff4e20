// A model in stages, each with a worker of its own, in one process: whatever its cuts, the
// microbatches in flight, the transport and the company, an adapter gets the bits that one worker
// gives it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "storage/tensors/safetensors.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "worker/transport/in_process.h"

namespace lorad::worker {
namespace {

const std::vector<std::string> kAll = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                       "gate_proj", "up_proj", "down_proj"};

// Three layers: six blocks.
std::string Untied() {
  return MakeRandomModel(std::filesystem::temp_directory_path() / "stages_model");
}
std::string Tied() {
  return MakeTiedRandomModel(std::filesystem::temp_directory_path() / "stages_tied");
}

Harness::Options Group(const std::string& model) {
  return {.model_path = model, .threads = 1, .capacity_tokens = 128, .longest_sequence = 100};
}

Harness::Options InStages(Harness::Options options, std::vector<int32_t> cuts, int32_t in_flight,
                          const InProcessOptions& transport = {}) {
  options.cuts = std::move(cuts);
  options.in_flight = in_flight;
  options.join = [transport](int stages) { return JoinInProcess(stages, transport); };
  return options;
}

// Of ranks 4 to 64, with dropout; "mlp" has no matrix in a stage that is one attention block.
std::vector<TestJob> Jobs() {
  return {MakeJob("small", 4, {"q_proj", "down_proj"}, RandomRows(12, 20, 100, 1), 4),
          MakeJob("all", 16, kAll, RandomRows(12, 20, 100, 2), 3),
          MakeJob("mlp", 64, {"gate_proj", "up_proj"}, RandomRows(12, 20, 100, 3), 2)};
}

// What has come of each job.
struct Outcome {
  std::map<std::string, std::vector<double>> losses, norms;
  std::map<std::string, std::string> shards;
  std::vector<double> evaluated;
};

// "small" trains alone, is joined by both others, which leave one after the other.
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
  harness->Step({&jobs[2], &jobs[0], &jobs[1]}, true);
  outcome.shards["mlp"] = harness->Shard(jobs[2]);
  harness->Free(jobs[2]);
  harness->Step({&jobs[0], &jobs[1]}, true);
  outcome.shards["all"] = harness->Shard(jobs[1]);
  harness->Free(jobs[1]);
  harness->Step({&jobs[0]}, true);
  outcome.shards["small"] = harness->Shard(jobs[0]);
  outcome.evaluated.push_back(harness->Evaluate(jobs[0], jobs[0].rows));
  for (const TestJob& job : jobs) {
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

TEST_CASE("one to four stages give one worker's bits, wherever the model is cut") {
  const std::vector<std::vector<int32_t>> cuts = {{3},    {1},       {5},      {2, 4},
                                                  {1, 2}, {1, 3, 5}, {1, 2, 3}};
  for (const std::string& model : {Untied(), Tied()}) {
    const Outcome one = JoinAndLeave(Group(model));
    REQUIRE(one.losses.at("small").size() == 5);
    for (const std::vector<int32_t>& cut : cuts) {
      INFO(model << ", " << cut.size() + 1 << " stages, the second from block " << cut[0] << " on");
      CheckEqual(JoinAndLeave(InStages(Group(model), cut, static_cast<int32_t>(cut.size()) + 1)),
                 one);
    }
  }
}

TEST_CASE("one worker's bits, whatever is in flight and computed again") {
  const Outcome one = JoinAndLeave(Group(Untied()));
  for (const int32_t in_flight : {1, 2, 3, 6}) {
    for (const auto recomputation :
         {v1::FormGroup::NOTHING, v1::FormGroup::PRODUCTS, v1::FormGroup::BLOCKS}) {
      INFO(in_flight << " in flight, computing " << v1::FormGroup::Recomputation_Name(recomputation)
                     << " again");
      Harness::Options options = InStages(Group(Untied()), {1, 4}, in_flight);
      options.recomputation = recomputation;
      CheckEqual(JoinAndLeave(options), one);
    }
  }
}

TEST_CASE("one worker's bits over transports that are late, slow and shuffled") {
  using Moment = InProcessOptions::Moment;
  const Outcome one = JoinAndLeave(Group(Untied()));
  for (const Moment moment : {Moment::kAtOnce, Moment::kAtLast, Moment::kShuffled}) {
    for (const int64_t delay_us_max : {0, 2000}) {
      for (const bool late : {false, true}) {
        INFO("moment " << static_cast<int>(moment) << ", at most " << delay_us_max << " us"
                       << (late ? ", on a late device" : ""));
        const InProcessOptions transport{
            .moment = moment, .delay_us_max = delay_us_max, .seed = 20261125};
        Harness::Options options = InStages(Group(Untied()), {2, 3}, 3, transport);
        options.late = late;
        CheckEqual(JoinAndLeave(options), one);
      }
    }
  }
}

}  // namespace
}  // namespace lorad::worker
