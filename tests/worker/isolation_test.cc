// A job's bits do not depend on who shares its microbatches, which slot it has, how its batches are
// cut, how many threads there are, or whether it was evicted, or killed, and resumed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <iostream>
#include <random>

#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

constexpr int64_t kLongest = 900;
constexpr uint64_t kFixedSeed = 20261121;

struct Setting {
  std::string model_path;
  int64_t steps = 0;
  int64_t longest = kLongest;
  int32_t words = 384;
  // Of a layer, as its files have them.
  std::vector<std::string> attention = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::vector<std::string> mlp = {"gate_proj", "up_proj", "down_proj"};

  std::vector<TestRow> Rows(int64_t count, int64_t most, uint64_t seed) const {
    return RandomRows(count, 17, std::min(most, longest), seed, words);
  }
};

// A golden model: features of every kind, borders at 16 and 32.
Setting Family(const std::string& name) {
  Setting setting{"tests/golden/" + name + "/model", 3, 120, 192};
  if (name == "phi3") {
    setting.attention = {"qkv_proj", "o_proj"};
    setting.mlp = {"gate_up_proj", "down_proj"};
  }
  return setting;
}

Setting Small(int64_t steps) {
  return {MakeRandomModel(std::filesystem::temp_directory_path() / "isolation_model"), steps};
}

Setting Wide(int64_t steps) {
  return {MakeWideRandomModel(std::filesystem::temp_directory_path() / "isolation_wide"), steps};
}

TestJob Subject(const Setting& setting) {
  std::vector<std::string> targets = setting.attention;
  if (targets.size() == 4) targets.erase(targets.begin() + 1);  // q, v and o
  targets.push_back(setting.mlp.back());
  return MakeJob("subject", 13, targets, setting.Rows(40, kLongest, 1), 2);
}

// Of other ranks and targets.
std::vector<TestJob> Strangers(const Setting& setting) {
  std::vector<std::string> all = setting.attention;
  all.insert(all.end(), setting.mlp.begin(), setting.mlp.end());
  return {MakeJob("small", 4, {setting.attention[0]}, setting.Rows(20, 300, 2), 3),
          MakeJob("all", 8, all, setting.Rows(20, 200, 3), 2),
          MakeJob("wide", 64, setting.mlp, setting.Rows(20, 500, 4), 1)};
}

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;
  std::string shard;
  double mean_adapters = 0;
};

void Collect(Harness* harness, const TestJob& job, Result* result) {
  for (const v1::StepDone& step : harness->steps(job.name())) {
    result->losses.push_back(step.loss());
    result->norms.push_back(step.grad_norm());
  }
}

Result Alone(const Setting& setting, int threads, int32_t capacity, std::mt19937_64* random,
             v1::FormGroup::Recomputation recomputation = v1::FormGroup::PRODUCTS,
             bool late = false, const std::vector<int32_t>& cuts = {}) {
  Harness harness({.model_path = setting.model_path,
                   .threads = threads,
                   .capacity_tokens = capacity,
                   .longest_sequence = static_cast<int32_t>(kLongest),
                   .recomputation = recomputation,
                   .late = late,
                   .cuts = cuts,
                   .in_flight = static_cast<int32_t>(cuts.size()) + 1});
  harness.Form();
  TestJob job = Subject(setting);
  harness.Load(job);
  while (job.step < setting.steps) harness.Step({&job}, job.step + 1 == setting.steps, random);
  Result result;
  Collect(&harness, job, &result);
  result.shard = harness.Shard(job);
  return result;
}

// Strangers of other ranks and targets join and leave at random steps.
Result InCompany(const Setting& setting, std::mt19937_64* random, bool late = false) {
  Harness harness({.model_path = setting.model_path,
                   .threads = 2,
                   .capacity_tokens = 1500,
                   .longest_sequence = static_cast<int32_t>(kLongest),
                   .late = late});
  harness.Form();
  TestJob job = Subject(setting);
  harness.Load(job);
  std::vector<TestJob> strangers = Strangers(setting);
  std::vector<bool> resident(strangers.size(), false);
  while (job.step < setting.steps) {
    std::vector<TestJob*> jobs = {&job};
    for (size_t i = 0; i < strangers.size(); ++i) {
      if ((*random)() % 8 == 0 || job.step == 0) {
        resident[i] = !resident[i];
        strangers[i].step = 0;
        if (resident[i]) {
          harness.Load(strangers[i]);
        } else {
          harness.Free(strangers[i]);
        }
      }
      if (resident[i]) jobs.push_back(&strangers[i]);
    }
    std::shuffle(jobs.begin(), jobs.end(), *random);
    harness.Step(jobs, job.step + 1 == setting.steps, random);
  }
  Result result;
  Collect(&harness, job, &result);
  result.shard = harness.Shard(job);
  result.mean_adapters = harness.mean_adapters();
  return result;
}

// In company from the first step on, whose slots are before its own; after `stop` steps another
// stranger gets its slot, and it goes on in the first, of one that has left.
Result Evicted(const Setting& setting, int64_t stop, std::mt19937_64* random) {
  Harness harness({.model_path = setting.model_path,
                   .threads = 2,
                   .capacity_tokens = 1500,
                   .longest_sequence = static_cast<int32_t>(kLongest)});
  harness.Form();
  TestJob job = Subject(setting);
  std::vector<TestJob> strangers = Strangers(setting);
  TestJob& newcomer = strangers.back();
  std::vector<TestJob*> jobs;
  const auto join = [&](TestJob* joining) {
    harness.Load(*joining);
    REQUIRE(harness.slot_failed().empty());
    jobs.push_back(joining);
  };
  for (TestJob& stranger : strangers) {
    if (&stranger != &newcomer) join(&stranger);
  }
  join(&job);
  while (job.step < setting.steps) {
    const bool evicted = job.step + 1 == stop;
    harness.Step(jobs, evicted || job.step + 1 == setting.steps, random);
    if (!evicted) continue;
    harness.bulk.SetContent("shard", harness.Shard(job));
    job.content = "shard";
    harness.Free(job);
    jobs = {&strangers[1]};
    join(&newcomer);
    harness.Free(strangers.front());
    join(&job);
  }
  Result result;
  Collect(&harness, job, &result);
  result.shard = harness.Shard(job);
  return result;
}

// Killed after `stop` steps: its worker is gone, and it is resumed from the shard that it had saved
// in a new one of another capacity.
Result Resumed(const Setting& setting, int64_t stop, std::mt19937_64* random) {
  Result result;
  TestJob job = Subject(setting);
  std::string shard;
  for (const int32_t capacity : {2048, 901}) {
    Harness harness({.model_path = setting.model_path,
                     .threads = capacity == 901 ? 1 : 2,
                     .capacity_tokens = capacity,
                     .longest_sequence = static_cast<int32_t>(kLongest)});
    harness.Form();
    if (!shard.empty()) {
      harness.bulk.SetContent("shard", shard);
      job.content = "shard";
    }
    harness.Load(job);
    REQUIRE(harness.slot_failed().empty());
    const int64_t until = shard.empty() ? stop : setting.steps;
    while (job.step < until) harness.Step({&job}, job.step + 1 == until, random);
    Collect(&harness, job, &result);
    shard = harness.Shard(job);
  }
  result.shard = shard;
  return result;
}

void CheckEqual(const Result& got, const Result& want) {
  REQUIRE(got.losses.size() == want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    INFO("step " << i + 1);
    REQUIRE(got.losses[i] == want.losses[i]);
    REQUIRE(got.norms[i] == want.norms[i]);
  }
  REQUIRE(got.shard == want.shard);
}

void RunWithSeed(uint64_t seed, const Setting& setting) {
  std::cout << "seed " << seed << std::endl;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const Result reference = Alone(setting, 1, 900, nullptr);
  CheckEqual(Alone(setting, 2, 4096, &random), reference);
  const Result company = InCompany(setting, &random);
  std::cout << "adapters per microbatch " << company.mean_adapters << std::endl;
  CHECK(company.mean_adapters > 1.2);
  CheckEqual(company, reference);
  const auto stop = [&] { return 1 + static_cast<int64_t>(random() % (setting.steps - 1)); };
  CheckEqual(Evicted(setting, stop(), &random), reference);
  CheckEqual(Resumed(setting, stop(), &random), reference);
}

TEST_CASE("equal bits in any company, fixed seed") { RunWithSeed(kFixedSeed, Small(60)); }

TEST_CASE("equal bits whatever is computed again") {
  const Setting setting = Small(10);
  const Result reference = Alone(setting, 1, 900, nullptr);
  std::mt19937_64 random(kFixedSeed);
  CheckEqual(Alone(setting, 2, 1500, &random, v1::FormGroup::NOTHING), reference);
  CheckEqual(Alone(setting, 2, 1500, &random, v1::FormGroup::BLOCKS), reference);
}

TEST_CASE("equal bits in every family: in company, evicted, killed, in stages, computed again") {
  for (const char* name :
       {"qwen3", "qwen3_yarn", "mistral_window", "gemma", "gemma2", "gemma3", "gemma3_tower",
        "mistral3_tower", "phi3", "smollm3", "olmo2", "olmo3", "granite"}) {
    INFO(name);
    const Setting setting = Family(name);
    RunWithSeed(std::random_device()(), setting);
    const Result reference = Alone(setting, 1, 900, nullptr);
    std::mt19937_64 random(kFixedSeed);
    CheckEqual(Alone(setting, 2, 1500, &random, v1::FormGroup::NOTHING, true), reference);
    CheckEqual(Alone(setting, 2, 1500, &random, v1::FormGroup::BLOCKS), reference);
    CheckEqual(Alone(setting, 1, 1500, &random, v1::FormGroup::NOTHING, true, {1, 4}), reference);
    CheckEqual(Alone(setting, 1, 901, &random, v1::FormGroup::BLOCKS, false, {3}), reference);
  }
}

TEST_CASE("equal bits on a device that does everything as late as it may") {
  const Setting setting = Small(20);
  const Result reference = Alone(setting, 1, 900, nullptr);
  std::mt19937_64 random(kFixedSeed);
  CheckEqual(Alone(setting, 2, 1500, &random, v1::FormGroup::NOTHING, true), reference);
  CheckEqual(InCompany(setting, &random, true), reference);
}

TEST_CASE("equal bits in any company, random seed") {
  RunWithSeed(std::random_device()(), Small(20));
}

TEST_CASE("equal bits in any company at a real model's widths") {
  RunWithSeed(std::random_device()(), Wide(3));
}

}  // namespace
}  // namespace lorad::worker
