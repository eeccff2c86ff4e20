// The engine in this process against PEFT's run on the real SmolLM2 (README.md). Takes minutes:
//   bazel run //tests/golden:engine_smollm2 -- $(tools/fetch-smollm2)
// tests/e2e does the same through the command line, as a test.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "storage/datasets/dataset_encode.h"
#include "storage/models/model_directory.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "worker/host/process.h"

namespace lorad::worker {
namespace {

constexpr double kLossTolerance = 2e-5;
constexpr double kMatrixTolerance = 5e-4;

template <typename T>
T Take(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}

std::vector<TestRow> EncodeRows(const std::string& model, const std::string& path) {
  const storage::ModelDirectory directory = Take(storage::ModelDirectory::Open(model));
  const storage::TextModel text = Take(storage::LoadTextModel(directory));
  std::vector<TestRow> rows;
  std::istringstream lines(ReadFile(path));
  std::string line;
  while (std::getline(lines, line)) {
    const storage::DatasetRow row = Take(storage::ParseRow(line));
    storage::EncodedRow encoded =
        Take(storage::EncodeRow(row, text, {.max_length = 512})).sequences.at(0);
    rows.push_back({std::move(encoded.ids), std::move(encoded.labels)});
  }
  return rows;
}

int Run(const std::string& model, const std::string& folder, int64_t steps,
        const std::string& shard_path) {
  const auto expected = nlohmann::json::parse(ReadFile(folder + "/expected.json"));
  TestJob job;
  job.spec.set_job("smollm2");
  job.spec.set_rank(4);
  job.spec.set_scale(2);
  job.spec.add_target_modules("q_proj");
  job.spec.add_target_modules("v_proj");
  job.spec.set_beta1(0.9);
  job.spec.set_beta2(0.999);
  job.spec.set_eps(1e-8);
  job.spec.set_max_grad_norm(1);
  job.batch = 4;
  job.rows = EncodeRows(model, folder + "/train.jsonl");
  const auto rates = expected.at("lr").get<std::vector<double>>();
  job.learning_rate = [rates](int64_t t) { return rates.at(t); };
  job.content = "init";
  Harness harness(
      {.model_path = model, .threads = 2, .capacity_tokens = 1024, .longest_sequence = 512});
  harness.Form();
  harness.bulk.SetContent("init", AdapterContent(folder + "/init", "smollm2"));
  harness.Load(job);
  double worst = 0;
  while (job.step < steps) {
    const double want = expected.at("loss")[job.step];
    harness.Step({&job}, job.step + 1 == steps);
    const v1::StepDone& done = harness.steps("smollm2").back();
    worst = std::max(worst, std::abs(done.loss() - want) / want);
    std::printf("step %2ld: loss %.7f, PEFT's %.7f; norm %.5f; %ld tokens in %.1f s\n",
                static_cast<long>(done.step()), done.loss(), want, done.grad_norm(),
                static_cast<long>(done.tokens()), done.step_time_ms() / 1000);
  }
  bool good = worst < kLossTolerance;
  std::printf("worst relative error of a loss %.2g\n", worst);
  if (!shard_path.empty()) std::ofstream(shard_path, std::ios::binary) << harness.Shard(job);
  if (steps == static_cast<int64_t>(rates.size())) {
    const double distance = WorstDistance(harness.Shard(job), folder + "/final");
    std::printf("worst relative distance of a matrix %.2g\n", distance);
    good = good && distance < kMatrixTolerance;
  }
  std::printf(
      "peak over plan: %.2f %%\n",
      100.0 *
          static_cast<double>(PeakResidentBytes() - harness.formed().baseline_resident_bytes()) /
          static_cast<double>(harness.formed().reserved_bytes()));
  return good ? 0 : 1;
}

}  // namespace
}  // namespace lorad::worker

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: engine_smollm2 MODEL_DIRECTORY [STEPS [SHARD_TO_WRITE]]\n");
    return 2;
  }
  try {
    return lorad::worker::Run(argv[1], "tests/golden/smollm2_gsm8k_r4_qv",
                              argc > 2 ? std::stol(argv[2]) : 10, argc > 3 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
