// What the engine generates greedily of the real SmolLM2 against what transformers does
// (README.md): 64 tokens of 50 prompts, half of them with an adapter, all in one company. Every
// token must be the same: the engines' log probabilities differ by 2e-5, and transformers' most
// likely tokens are 6e-4 and more ahead of the next ones. Takes minutes (generate_smollm2_test):
//   bazel run //tests/golden:generate_smollm2 -- $(tools/fetch-smollm2) [TOKENS]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/worker/answers.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

// Absolute; 1.8e-5 was seen over 3,200 tokens.
constexpr double kLogProbabilityTolerance = 1e-4;
constexpr size_t kPrompts = 50;
const std::string kRun = "smollm2_gsm8k_r4_qv";

struct Expected {
  Answer answer;
  std::vector<int32_t> tokens;
  std::vector<double> log_probability;
  double margin = 0;  // of the most likely token before the next one, at the least
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
                     .log_probability = answer.at("log_probability").get<std::vector<double>>(),
                     .margin = answer.at("margin").get<double>()});
    }
  }
  return all;
}

// Says where an answer is another one, and how near each other two tokens were there for
// transformers at the least.
bool Check(const Expected& expected, size_t number) {
  const std::vector<int32_t> got = expected.answer.tokens();
  if (got == expected.tokens) return true;
  const auto at = std::mismatch(got.begin(), got.end(), expected.tokens.begin()).first;
  std::printf("answer %zu is another from token %ld on; two of transformers' were %.2g apart\n",
              number, static_cast<long>(at - got.begin()), expected.margin);
  return false;
}

int Run(const std::string& model, const std::string& folder, size_t tokens) {
  std::vector<Expected> all = ReadExpected(folder + "/generated.json");
  if (all.size() != kPrompts) throw std::runtime_error("generated.json has not 50 answers");
  for (Expected& expected : all) {
    expected.tokens.resize(std::min(tokens, expected.tokens.size()));
  }
  Harness harness(
      {.model_path = model, .threads = 2, .capacity_tokens = 1024, .longest_sequence = 128});
  harness.Form();
  harness.bulk.SetContent("final", AdapterContent(folder + "/final", kRun));
  harness.Load(Adapter());
  if (!harness.slot_failed().empty()) throw std::runtime_error(harness.slot_failed()[0].message());
  std::vector<Answer*> answers;
  for (Expected& expected : all) answers.push_back(&expected.answer);
  for (size_t i = 0; i < all.at(0).tokens.size(); ++i) Continue(&harness, answers);
  size_t equal = 0;
  double worst = 0;
  for (const Expected& expected : all) {
    if (Check(expected, static_cast<size_t>(&expected - all.data()))) ++equal;
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
