// What the engine generates greedily of the real SmolLM2 against what transformers does
// (README.md): 64 tokens of 32 prompts, half of them with an adapter; and how fast some answers are
// together, and one after the other. Takes minutes:
//   bazel run //tests/golden:generate_smollm2 -- $(tools/fetch-smollm2)
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/worker/answers.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

// Absolute; 1.1e-5 was seen over 320 tokens.
constexpr double kLogProbabilityTolerance = 1e-4;
constexpr size_t kTimedAnswers = 16;
constexpr int kTimedTokens = 4;
const std::string kRun = "smollm2_gsm8k_r4_qv";

struct Expected {
  Answer answer;
  std::vector<int32_t> tokens;
  std::vector<double> log_probability;
};

TestJob Adapter() {
  TestJob job;
  job.spec.set_job(kRun);
  job.spec.set_rank(4);
  job.spec.set_scale(2);
  job.spec.add_target_modules("q_proj");
  job.spec.add_target_modules("v_proj");
  job.content = "final";
  return job;
}

std::vector<Expected> ReadExpected(const std::string& path) {
  std::vector<Expected> all;
  const auto generated = nlohmann::json::parse(ReadFile(path));
  for (const auto& [run, answers] : generated.items()) {
    for (const nlohmann::json& answer : answers) {
      all.push_back({.answer = Ask(run, answer.at("prompt").get<std::vector<int32_t>>()),
                     .tokens = answer.at("tokens").get<std::vector<int32_t>>(),
                     .log_probability = answer.at("log_probability").get<std::vector<double>>()});
    }
  }
  return all;
}

double SecondsOf(Harness* harness, const std::vector<std::vector<Answer*>>& parties) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::vector<Answer*>& party : parties) {
    for (int i = 0; i < kTimedTokens; ++i) Continue(harness, party);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Time(Harness* harness, const std::vector<Expected>& all) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < kTimedAnswers; ++i) {
    const Answer& asked = all[i * all.size() / kTimedAnswers].answer;
    answers.push_back(
        Ask(asked.job, {asked.ids.begin(), asked.ids.begin() + static_cast<int>(asked.prompt)}));
  }
  std::vector<Answer> again = answers;
  std::vector<Answer*> together;
  for (Answer& answer : answers) together.push_back(&answer);
  std::vector<std::vector<Answer*>> one_by_one;
  for (Answer& answer : again) one_by_one.push_back({&answer});
  const double packed = SecondsOf(harness, {together});
  const double alone = SecondsOf(harness, one_by_one);
  std::printf("%zu answers, %d tokens each: %.2f s together, %.2f s one after the other\n",
              kTimedAnswers, kTimedTokens, packed, alone);
  std::fflush(stdout);
}

int Run(const std::string& model, const std::string& folder, size_t tokens) {
  std::vector<Expected> all = ReadExpected(folder + "/generated.json");
  for (Expected& expected : all) {
    expected.tokens.resize(std::min(tokens, expected.tokens.size()));
  }
  Harness harness(
      {.model_path = model, .threads = 2, .capacity_tokens = 1024, .longest_sequence = 128});
  harness.Form();
  harness.bulk.SetContent("final", AdapterContent(folder + "/final", kRun));
  harness.Load(Adapter());
  if (!harness.slot_failed().empty()) throw std::runtime_error(harness.slot_failed()[0].message());
  Time(&harness, all);
  std::vector<Answer*> answers;
  for (Expected& expected : all) answers.push_back(&expected.answer);
  for (size_t i = 0; i < all.at(0).tokens.size(); ++i) Continue(&harness, answers);
  size_t equal = 0;
  double worst = 0;
  for (const Expected& expected : all) {
    if (expected.answer.tokens() == expected.tokens) ++equal;
    for (size_t i = 0; i < expected.tokens.size(); ++i) {
      worst = std::max(
          worst, std::abs(expected.answer.log_probability.at(i) - expected.log_probability[i]));
    }
  }
  std::printf("%zu of %zu answers of %zu tokens are transformers'; a log probability is %.2g off\n",
              equal, all.size(), all.at(0).tokens.size(), worst);
  return equal == all.size() && worst < kLogProbabilityTolerance ? 0 : 1;
}

}  // namespace
}  // namespace lorad::worker

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: generate_smollm2 MODEL_DIRECTORY [TOKENS]\n");
    return 2;
  }
  try {
    return lorad::worker::Run(argv[1], "tests/golden/smollm2_gsm8k_r4_qv",
                              argc > 2 ? std::stoul(argv[2]) : 64);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
