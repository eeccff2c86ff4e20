// Tokens a second of the CPU engine on SmolLM2's shape with 1 and with 4 packed adapters (rank 8,
// all seven targets, 4 x 256 tokens a step, every token trained), beside what the measured product
// ceiling allows and, with --peft, beside PEFT on torch in the same run with the same threads.
//
//   bazel run -c opt //tests/bench:cpu_training -- [--threads N] [--steps N] [--peft]
//       [--python $PWD/.cache/peft/bin/python]
//
// --peft wants an interpreter with torch, transformers and peft, for example
//   python3 -m venv .cache/peft && .cache/peft/bin/pip install torch transformers peft
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "spdlog/spdlog.h"
#include "storage/models/model_directory.h"
#include "tests/bench/product_ceiling.h"
#include "tests/worker/harness.h"
#include "worker/host/process.h"

namespace lorad::worker {
namespace {

constexpr int64_t kSequences = 4;
constexpr int kRank = 8;
// Of PEFT's speed, with 1 and with 4 adapters.
constexpr double kBar = 1.5;

struct Options {
  int threads = 0;
  int64_t steps = 5;
  bool small = false;
  bool peft = false;
  std::string python = "python3";
  int64_t tokens() const { return small ? 32 : 256; }  // of a sequence
};

nlohmann::json Config(const Options& options) {
  nlohmann::json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"hidden_size", 576},
      {"intermediate_size", 1536},
      {"num_hidden_layers", 30},
      {"num_attention_heads", 9},
      {"num_key_value_heads", 3},
      {"max_position_embeddings", 8192},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", 100000.0},
      {"tie_word_embeddings", true},
      {"vocab_size", 49152},
      {"torch_dtype", "float32"},
  };
  if (options.small) {
    config["hidden_size"] = 72;
    config["intermediate_size"] = 192;
    config["num_hidden_layers"] = 2;
    config["vocab_size"] = 1000;
  }
  return config;
}

// A directory with SmolLM2's config and weights from a seed; removed at the end.
class ModelFolder {
 public:
  explicit ModelFolder(const Options& options)
      : path_(std::filesystem::temp_directory_path() /
              ("cpu_training." + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << Config(options).dump(2);
    std::ofstream(path_ / "random_weights.json") << R"({"seed": 1})";
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  std::string path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

TestJob MakeJob(int number, int64_t sequences, const Options& options, int64_t vocabulary) {
  TestJob job;
  job.spec.set_job("job-" + std::to_string(number));
  job.spec.set_rank(kRank);
  job.spec.set_scale(2);
  for (const char* target :
       {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
    job.spec.add_target_modules(target);
  }
  job.spec.set_beta1(0.9);
  job.spec.set_beta2(0.999);
  job.spec.set_eps(1e-8);
  job.spec.set_max_grad_norm(1);
  job.batch = sequences;
  job.learning_rate = [](int64_t) { return 1e-4; };
  std::mt19937_64 random(number);
  for (int64_t i = 0; i < sequences; ++i) {
    TestRow row;
    for (int64_t t = 0; t < options.tokens(); ++t) {
      row.ids.push_back(static_cast<int32_t>(random() % vocabulary));
    }
    row.labels = row.ids;
    job.rows.push_back(row);
  }
  return job;
}

struct Result {
  double tokens_per_second = 0;
  double loss = 0;  // of the first step
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;  // peak less what the process held before the model
};

Result TrainPacked(const std::string& model, int adapters, const Options& options,
                   int64_t vocabulary) {
  // The kernel forgets the peak of what ran before.
  std::ofstream("/proc/self/clear_refs") << "5";
  Harness harness({.model_path = model,
                   .threads = options.threads,
                   .capacity_tokens = static_cast<int32_t>(kSequences * options.tokens()),
                   .longest_sequence = static_cast<int32_t>(options.tokens())});
  harness.Form();
  std::vector<TestJob> jobs;
  for (int i = 0; i < adapters; ++i) {
    jobs.push_back(MakeJob(i, kSequences / adapters, options, vocabulary));
  }
  Result result;
  result.planned_bytes = harness.formed().reserved_bytes();
  std::vector<TestJob*> train;
  for (TestJob& job : jobs) {
    result.planned_bytes += harness.Load(job).bytes();
    train.push_back(&job);
  }
  harness.Step(train);  // warm-up
  const Clock clock = SteadyClock();
  double fastest_ms = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < options.steps; ++i) {
    const double begin_ms = clock();
    harness.Step(train);
    fastest_ms = std::min(fastest_ms, clock() - begin_ms);
  }
  result.tokens_per_second =
      static_cast<double>(kSequences * options.tokens()) / (fastest_ms / 1000);
  for (const TestJob& job : jobs) {
    result.loss += harness.steps(job.name()).at(0).loss() / adapters;
  }
  result.measured_bytes = PeakResidentBytes() - harness.formed().baseline_resident_bytes();
  return result;
}

// What the script beside this file prints: {"1": {"tokens_per_second", "loss"}, "4": {...}}.
nlohmann::json TrainPeft(const std::string& model, const Options& options) {
  const std::string command = options.python + " tests/bench/peft_training.py " + model + " " +
                              std::to_string(options.threads) + " " +
                              std::to_string(options.steps) + " " +
                              std::to_string(options.tokens());
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return nullptr;
  std::string text;
  char piece[4096];
  while (const size_t count = fread(piece, 1, sizeof(piece), pipe)) text.append(piece, count);
  if (pclose(pipe) != 0) return nullptr;
  return nlohmann::json::parse(text, nullptr, false);
}

int Run(Options options) {
  if (options.threads == 0) options.threads = static_cast<int>(std::thread::hardware_concurrency());
  spdlog::set_level(spdlog::level::warn);
  const ModelFolder folder(options);
  const auto directory = storage::ModelDirectory::Open(folder.path());
  if (!directory.ok()) {
    std::cerr << directory.status().ToString() << "\n";
    return 1;
  }
  const int64_t vocabulary = directory->description().vocabulary;
  const auto parameters = static_cast<double>(storage::ParameterCount(directory->description()));
  const double flops = bench::MeasureProductCeiling(bench::SmolLm2(), options.threads).large_flops;
  const double ceiling = flops / (4 * parameters);
  std::printf("%d threads; products at %.0f GFLOP/s allow %.0f tok/s\n", options.threads,
              flops / 1e9, ceiling);
  const nlohmann::json peft = options.peft ? TrainPeft(folder.path(), options) : nlohmann::json();
  if (options.peft && !peft.is_object()) {
    std::cerr << options.python << " could not run tests/bench/peft_training.py\n";
    return 1;
  }
  bool good = true;
  std::printf("%-10s %8s %9s %8s %8s %12s %12s\n", "adapters", "tok/s", "ceiling", "PEFT", "ratio",
              "planned MiB", "peak/plan");
  for (const int adapters : {1, 4}) {
    const Result result = TrainPacked(folder.path(), adapters, options, vocabulary);
    const double memory =
        static_cast<double>(result.measured_bytes) / static_cast<double>(result.planned_bytes);
    std::printf("%-10d %8.1f %8.0f%%", adapters, result.tokens_per_second,
                100 * result.tokens_per_second / ceiling);
    if (peft.is_object()) {
      const nlohmann::json& peer = peft.at(std::to_string(adapters));
      const double speed = peer.at("tokens_per_second");
      const double ratio = result.tokens_per_second / speed;
      std::printf(" %8.1f %7.2fx", speed, ratio);
      good = good && ratio >= kBar;
      good = good && std::abs(peer.at("loss").get<double>() - result.loss) < 0.05;
    } else {
      std::printf(" %8s %8s", "-", "-");
    }
    std::printf(" %12.1f %11.2f%%\n", static_cast<double>(result.planned_bytes) / (1 << 20),
                100 * memory);
    // Random weights know nothing: the loss is that of a uniform guess.
    good = good && std::abs(result.loss - std::log(static_cast<double>(vocabulary))) < 0.5;
    if (!options.small) good = good && std::abs(memory - 1) < 0.02;
  }
  std::printf(good ? "as it should be\n" : "NOT as it should be\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace lorad::worker

int main(int argc, char** argv) {
  lorad::worker::Options options;
  CLI::App app{"Tokens a second of training on the CPU"};
  app.add_option("--threads", options.threads, "Threads (default: all cores)");
  app.add_option("--steps", options.steps,
                 "Steps that are timed; the fastest counts, of PEFT's as well")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--small", options.small, "A toy shape, as a test");
  app.add_flag("--peft", options.peft, "Compare with PEFT on torch");
  app.add_option("--python", options.python, "Interpreter with torch, transformers and peft");
  CLI11_PARSE(app, argc, argv);
  return lorad::worker::Run(options);
}
