#include "tests/worker/rows.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "storage/checkpoint.h"
#include "storage/peft.h"
#include "storage/safetensors.h"

namespace lorad::worker {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<TestRow> ReadTokenRows(const std::string& path) {
  std::vector<TestRow> rows;
  std::istringstream lines(ReadFile(path));
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line);
    rows.push_back({json.at("input_ids").get<std::vector<int32_t>>(),
                    json.at("labels").get<std::vector<int32_t>>()});
  }
  return rows;
}

std::string AdapterContent(const std::string& directory, const std::string& job) {
  std::string content;
  const absl::Status status = storage::StreamAdapter(directory, job, [&](std::string_view piece) {
    content.append(piece);
    return absl::OkStatus();
  });
  INFO(status.ToString());
  REQUIRE(status.ok());
  return content;
}

double WorstDistance(const std::string& shard, const std::string& peft_directory) {
  const auto header = storage::ParseSafetensorsHeader(shard, shard.size());
  REQUIRE(header.ok());
  const auto expected =
      storage::SafetensorsFile::Open(peft_directory + "/" + storage::kAdapterModelFile);
  REQUIRE(expected.ok());
  double worst = 0;
  for (const storage::TensorInfo& want : expected->tensors()) {
    INFO(want.name);
    const storage::TensorInfo* got = header->Find(want.name);
    REQUIRE(got != nullptr);
    REQUIRE(got->shape == want.shape);
    std::vector<float> wanted(want.elements());
    std::vector<float> had(got->elements());
    REQUIRE(expected->ReadFloats(want, wanted.data()).ok());
    std::memcpy(had.data(), shard.data() + header->data_begin + got->begin, got->bytes());
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      difference += std::pow(double{had[i]} - wanted[i], 2);
      norm += std::pow(double{wanted[i]}, 2);
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

std::string MakeRandomModel(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const nlohmann::json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"hidden_size", 64},
      {"intermediate_size", 160},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 16},
      {"max_position_embeddings", 1024},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 10000.0},
      {"tie_word_embeddings", false},
      {"vocab_size", 384},
      {"torch_dtype", "float32"},
  };
  std::ofstream(folder + "/config.json") << config.dump(2);
  std::ofstream(folder + "/random_weights.json") << R"({"seed": 5})";
  return folder;
}

std::vector<TestRow> RandomRows(int64_t count, int64_t shortest, int64_t longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TestRow> rows(count);
  for (TestRow& row : rows) {
    const int64_t length = shortest + static_cast<int64_t>(random() % (longest - shortest + 1));
    for (int64_t i = 0; i < length; ++i) {
      row.ids.push_back(static_cast<int32_t>(random() % 384));
      row.labels.push_back(i == length - 1 || random() % 2 == 0 ? row.ids.back() : -100);
    }
  }
  return rows;
}

TestJob MakeJob(const std::string& name, int rank, const std::vector<std::string>& targets,
                std::vector<TestRow> rows, int64_t batch) {
  TestJob job;
  job.spec.set_job(name);
  job.spec.set_rank(rank);
  job.spec.set_scale(2);
  job.spec.set_dropout(0.1);
  for (const std::string& target : targets) job.spec.add_target_modules(target);
  job.spec.set_init_seed(11);
  job.spec.set_seed(12);
  job.spec.set_beta1(0.9);
  job.spec.set_beta2(0.999);
  job.spec.set_eps(1e-8);
  job.spec.set_weight_decay(0.01);
  job.spec.set_max_grad_norm(1);
  job.rows = std::move(rows);
  job.batch = batch;
  job.learning_rate = [](int64_t) { return 1e-3; };
  return job;
}

}  // namespace lorad::worker
