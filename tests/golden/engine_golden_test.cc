// The engine against PEFT's own runs (README.md): losses, gradient norms and final matrices, packed
// together and one at a time.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "storage/adapters/peft.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

constexpr double kLossTolerance = 1e-5;    // relative
constexpr double kNormTolerance = 1e-4;    // relative; PEFT's is a float32 sum
constexpr double kMatrixTolerance = 1e-4;  // relative Frobenius

const std::string kFolder = "tests/golden/";

struct GoldenJob {
  TestJob job;
  nlohmann::json expected;
  std::string folder;
};

GoldenJob ReadJob(const std::string& folder) {
  GoldenJob golden;
  golden.folder = kFolder + folder;
  golden.expected = nlohmann::json::parse(ReadFile(golden.folder + "/expected.json"));
  const nlohmann::json& hyper = golden.expected.at("hyper");
  const auto config =
      storage::ParsePeftConfig(ReadFile(golden.folder + "/init/adapter_config.json"));
  REQUIRE(config.ok());
  TestJob& job = golden.job;
  job.spec.set_job(folder);
  job.spec.set_rank(config->rank);
  job.spec.set_scale(config->scale());
  for (const std::string& target : config->target_modules) job.spec.add_target_modules(target);
  job.spec.set_beta1(hyper.at("beta1"));
  job.spec.set_beta2(hyper.at("beta2"));
  job.spec.set_eps(hyper.at("eps"));
  job.spec.set_weight_decay(hyper.at("weight_decay"));
  job.spec.set_max_grad_norm(hyper.at("max_grad_norm"));
  job.content = folder;
  job.rows = ReadTokenRows(golden.folder + "/train.jsonl");
  job.batch = hyper.at("batch_size");
  // The schedules are the planner's to test.
  const auto rates = golden.expected.at("lr").get<std::vector<double>>();
  job.learning_rate = [rates](int64_t t) { return rates.at(t); };
  return golden;
}

void CheckRun(Harness* harness, GoldenJob* golden) {
  const std::vector<v1::StepDone>& steps = harness->steps(golden->job.name());
  const size_t count = golden->expected.at("loss").size();
  REQUIRE(steps.size() == count);
  double worst_loss = 0;
  double worst_norm = 0;
  for (size_t t = 0; t < count; ++t) {
    const double loss = golden->expected.at("loss")[t];
    const double norm = golden->expected.at("grad_norm")[t];
    worst_loss = std::max(worst_loss, std::abs(steps[t].loss() - loss) / loss);
    worst_norm = std::max(worst_norm, std::abs(steps[t].grad_norm() - norm) / norm);
  }
  const double matrices = WorstDistance(harness->Shard(golden->job), golden->folder + "/final");
  WARN(golden->job.name() << ": worst relative error of a loss " << worst_loss << ", of a norm "
                          << worst_norm << ", of a matrix " << matrices);
  CHECK(worst_loss < kLossTolerance);
  CHECK(worst_norm < kNormTolerance);
  CHECK(matrices < kMatrixTolerance);
}

void Train(const std::string& model, const std::vector<GoldenJob*>& jobs) {
  Harness harness({.model_path = kFolder + model + "/model",
                   .threads = 2,
                   .capacity_tokens = 256,
                   .longest_sequence = 128});
  harness.Form();
  std::vector<TestJob*> train;
  for (GoldenJob* golden : jobs) {
    harness.bulk.SetContent(golden->job.content,
                            AdapterContent(golden->folder + "/init", golden->job.name()));
    harness.Load(golden->job);
    REQUIRE(harness.slot_failed().empty());
    train.push_back(&golden->job);
  }
  for (int step = 1; step <= 12; ++step) harness.Step(train, step == 12);
  for (GoldenJob* golden : jobs) CheckRun(&harness, golden);
}

struct Model {
  std::string name;
  std::vector<std::string> adapters;
};
const Model kModels[] = {
    {"llama_gqa_untied", {"r8_all", "r4_qv_rslora"}},
    {"qwen2_bias_tied", {"r16_attn", "r8_mlp"}},
};

TEST_CASE("packed together, the golden runs come out as PEFT's") {
  for (const Model& model : kModels) {
    std::vector<GoldenJob> golden;
    for (const std::string& adapter : model.adapters) {
      golden.push_back(ReadJob(model.name + "/" + adapter));
    }
    std::vector<GoldenJob*> jobs;
    for (GoldenJob& job : golden) jobs.push_back(&job);
    Train(model.name, jobs);
  }
}

TEST_CASE("one at a time, the golden runs come out as PEFT's") {
  for (const Model& model : kModels) {
    for (const std::string& adapter : model.adapters) {
      GoldenJob golden = ReadJob(model.name + "/" + adapter);
      Train(model.name, {&golden});
    }
  }
}

}  // namespace
}  // namespace lorad::worker
