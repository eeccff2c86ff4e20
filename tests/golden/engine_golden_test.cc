// The engine against PEFT's own runs (README.md): losses, gradient norms and final matrices, packed
// together and one at a time.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/golden/golden_run.h"
#include "tests/worker/transport/join.h"

namespace lorad::worker {
namespace {

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

void Train(const std::string& model, const std::vector<GoldenJob*>& jobs,
           const std::vector<int32_t>& cuts = {}) {
  Harness harness({.model_path = kGoldenFolder + model + "/model",
                   .threads = 2,
                   .capacity_tokens = 256,
                   .longest_sequence = 128,
                   .cuts = cuts,
                   .in_flight = static_cast<int32_t>(cuts.size()) + 1,
                   .open_listener = ListenByASocket});
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
    {"qwen3", {"r4_all", "r3_some", "r4_loraplus", "patterns", "all_linear", "regex"}},
    {"qwen3_yarn", {"r4_all"}},
    {"mistral_window", {"r4_all"}},
    {"gemma", {"r4_all"}},
    {"gemma2", {"r4_all"}},
    {"gemma3", {"r4_all"}},
    {"gemma3_tower", {"r4_all"}},
    {"mistral3_tower", {"r4_all"}},
    {"phi3", {"r4_all", "all_linear"}},
    {"smollm3", {"r4_all"}},
    {"olmo2", {"r4_all"}},
    {"olmo3", {"r4_all"}},
    {"granite", {"r4_all"}},
};

void TrainTogether(const Model& model, const std::vector<int32_t>& cuts = {}) {
  std::vector<GoldenJob> golden;
  for (const std::string& adapter : model.adapters) {
    golden.push_back(ReadGoldenJob(model.name + "/" + adapter));
  }
  std::vector<GoldenJob*> jobs;
  for (GoldenJob& job : golden) jobs.push_back(&job);
  Train(model.name, jobs, cuts);
}

TEST_CASE("packed together, the golden runs come out as PEFT's") {
  for (const Model& model : kModels) TrainTogether(model);
}

TEST_CASE("in two, three and four stages over sockets, the golden runs come out as PEFT's") {
  for (const Model& model : kModels) {
    for (const std::vector<int32_t>& cuts :
         std::vector<std::vector<int32_t>>{{3}, {1, 4}, {1, 2, 5}}) {
      INFO(model.name << " in " << cuts.size() + 1 << " stages");
      TrainTogether(model, cuts);
    }
  }
}

TEST_CASE("one at a time, the golden runs come out as PEFT's") {
  for (const Model& model : kModels) {
    for (const std::string& adapter : model.adapters) {
      GoldenJob golden = ReadGoldenJob(model.name + "/" + adapter);
      Train(model.name, {&golden});
    }
  }
}

}  // namespace
}  // namespace lorad::worker
