// What the engine generates greedily against what transformers does (generate_runs.py): the same
// tokens, with and without an adapter, all answers of a model together, in stages and on one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/golden/golden_run.h"
#include "tests/worker/answers.h"

namespace lorad::worker {
namespace {

// Of a log probability, absolute. The references' most likely tokens are further ahead than that.
constexpr double kLogProbabilityTolerance = 2e-5;
constexpr size_t kTokens = 64;  // of each answer

const char* const kModels[] = {"llama_gqa_untied",
                               "qwen2_bias_tied",
                               "qwen3",
                               "qwen3_yarn",
                               "mistral_window",
                               "gemma",
                               "gemma2",
                               "gemma3",
                               "gemma3_tower",
                               "mistral3_tower",
                               "phi3",
                               "smollm3",
                               "olmo2",
                               "olmo3",
                               "granite"};

struct Expected {
  Answer answer;
  std::vector<int32_t> tokens;
  std::vector<double> log_probability;
};

// Loads the adapters, as their runs left them, and asks all prompts, each of one of them.
std::vector<Expected> Load(const std::string& model, Harness* harness) {
  const auto generated = nlohmann::json::parse(ReadFile(kGoldenFolder + model + "/generated.json"));
  std::vector<Expected> all;
  for (const auto& [run, answers] : generated.items()) {
    std::string job;
    if (!run.empty()) {
      GoldenJob golden = ReadGoldenJob(model + "/" + run);
      job = golden.job.name();
      harness->bulk.SetContent(job, AdapterContent(golden.folder + "/final", job));
      harness->Load(golden.job);
      REQUIRE(harness->slot_failed().empty());
    }
    for (const nlohmann::json& answer : answers) {
      all.push_back({.answer = Ask(job, answer.at("prompt").get<std::vector<int32_t>>()),
                     .tokens = answer.at("tokens").get<std::vector<int32_t>>(),
                     .log_probability = answer.at("log_probability").get<std::vector<double>>()});
    }
  }
  return all;
}

void CheckModel(const std::string& model, size_t tokens, const std::vector<int32_t>& cuts) {
  Harness harness({.model_path = kGoldenFolder + model + "/model",
                   .threads = 2,
                   .capacity_tokens = 1024,
                   .longest_sequence = 112,
                   .cuts = cuts,
                   .in_flight = static_cast<int32_t>(cuts.size()) + 1});
  harness.Form();
  std::vector<Expected> all = Load(model, &harness);
  REQUIRE(all.size() == 50);
  std::vector<Answer*> answers;
  for (Expected& expected : all) {
    REQUIRE(expected.tokens.size() == kTokens);
    expected.tokens.resize(tokens);
    answers.push_back(&expected.answer);
  }
  for (size_t i = 0; i < tokens; ++i) Continue(&harness, answers);
  double worst = 0;
  for (const Expected& expected : all) {
    INFO((expected.answer.job.empty() ? "no adapter" : expected.answer.job)
         << ", a prompt of " << expected.answer.prompt);
    CHECK(expected.answer.tokens() == expected.tokens);
    for (size_t i = 0; i < tokens; ++i) {
      worst = std::max(
          worst, std::abs(expected.answer.log_probability.at(i) - expected.log_probability[i]));
    }
  }
  WARN(model << " in " << cuts.size() + 1 << " stages: a log probability is " << worst << " off");
  CHECK(worst < kLogProbabilityTolerance);
}

TEST_CASE("what is generated greedily is what transformers generates, with and without adapters") {
  for (const char* model : kModels) CheckModel(model, kTokens, {});
}

TEST_CASE("in two and three stages, what is generated greedily is what transformers generates") {
  for (const char* model : kModels) {
    CheckModel(model, 16, {3});
    CheckModel(model, 16, {1, 4});
  }
}

}  // namespace
}  // namespace lorad::worker
