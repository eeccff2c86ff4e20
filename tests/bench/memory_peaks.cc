// Peaks of the CPU engine's memory, as rows for the planner's memory fit
// (tests/planner/cost/data/peaks has recordings): a process for each row forms a group on a
// model with random weights, loads an adapter, trains a step of one full microbatch, and prints
// what was counted and the largest resident set that the kernel saw.
//
//   bazel run -c opt //tests/bench:memory_peaks -- [--threads N] [--small]
//
// SmolLM2-135M's shape; with --small a model of a third of its memory.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "CLI/CLI.hpp"
#include "spdlog/spdlog.h"
#include "tests/worker/harness.h"
#include "worker/host/process.h"

namespace lorad::worker {
namespace {

constexpr int32_t kVocabulary = 16384;  // that rows are drawn from

nlohmann::json Config(bool small) {
  nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                           {"model_type", "llama"},
                           {"hidden_act", "silu"},
                           {"hidden_size", 512},
                           {"intermediate_size", 1376},
                           {"num_hidden_layers", 6},
                           {"num_attention_heads", 8},
                           {"num_key_value_heads", 4},
                           {"max_position_embeddings", 8192},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 100000.0},
                           {"tie_word_embeddings", true},
                           {"vocab_size", kVocabulary},
                           {"torch_dtype", "float32"}};
  if (!small) {
    config["hidden_size"] = 576;
    config["intermediate_size"] = 1536;
    config["num_hidden_layers"] = 30;
    config["num_attention_heads"] = 9;
    config["num_key_value_heads"] = 3;
    config["vocab_size"] = 49152;
  }
  return config;
}

struct Row {
  int32_t tokens = 0;  // of the microbatch
  int32_t length = 0;  // of each sequence
  int rank = 0;
};

TestJob MakeJob(const Row& row) {
  TestJob job;
  job.spec.set_job("job");
  job.spec.set_rank(row.rank);
  job.spec.set_scale(2);
  for (const char* target :
       {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
    job.spec.add_target_modules(target);
  }
  job.spec.set_beta1(0.9);
  job.spec.set_beta2(0.999);
  job.spec.set_eps(1e-8);
  job.spec.set_max_grad_norm(1);
  job.batch = row.tokens / row.length;
  job.learning_rate = [](int64_t) { return 1e-4; };
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < job.batch; ++i) {
    TestRow sequence;
    for (int32_t t = 0; t < row.length; ++t) {
      sequence.ids.push_back(static_cast<int32_t>(random() % kVocabulary));
    }
    sequence.labels = sequence.ids;
    job.rows.push_back(sequence);
  }
  return job;
}

void Measure(const std::string& model, const Row& row, int threads) {
  Harness harness({.model_path = model,
                   .threads = threads,
                   .capacity_tokens = row.tokens,
                   .longest_sequence = row.length});
  harness.Form();
  TestJob job = MakeJob(row);
  const int64_t counted = harness.formed().reserved_bytes() + harness.Load(job).bytes();
  harness.Step({&job});
  const int64_t squared = int64_t{row.tokens} * row.length;
  std::printf("%lld,%d,%lld,%lld\n", static_cast<long long>(counted), row.tokens,
              static_cast<long long>(squared), static_cast<long long>(PeakResidentBytes()));
  std::fflush(stdout);
}

int Run(int threads, bool small) {
  spdlog::set_level(spdlog::level::off);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("memory_peaks." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << Config(small).dump(2);
  std::ofstream(folder / "random_weights.json") << R"({"seed": 1})";
  std::printf("counted_bytes,tokens,squared_lengths,peak_bytes\n");
  std::fflush(stdout);
  bool good = true;
  for (const int32_t tokens : {128, 256, 384, 512, 768, 1024}) {
    for (const int32_t length : {128, 256, 512, 1024}) {
      if (length > tokens || tokens % length != 0) continue;
      const Row row{tokens, length, tokens % 256 == 0 ? 16 : 8};
      const pid_t child = fork();
      if (child == 0) {
        Measure(folder, row, threads);
        _exit(0);
      }
      int status = 1;
      waitpid(child, &status, 0);
      good = good && status == 0;
    }
  }
  std::filesystem::remove_all(folder);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace lorad::worker

int main(int argc, char** argv) {
  int threads = 2;
  bool small = false;
  CLI::App app{"Peaks of the CPU engine's memory"};
  app.add_option("--threads", threads, "Threads")->check(CLI::Range(1, 1024));
  app.add_flag("--small", small, "A smaller model");
  CLI11_PARSE(app, argc, argv);
  return lorad::worker::Run(threads, small);
}
