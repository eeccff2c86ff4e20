#include "tests/worker/rows.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>

#include "storage/adapters/peft.h"
#include "storage/adapters/shard_reader.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::worker {
namespace {

void Require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Require(file.good(), "cannot read " + path);
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
  const auto reader = storage::ShardReader::OfAdapter(storage::RealFiles(), directory, job);
  Require(reader.ok(), reader.status().ToString());
  std::string content;
  for (;;) {
    const absl::StatusOr<std::string> piece = (*reader)->Next();
    Require(piece.ok(), piece.status().ToString());
    if (piece->empty()) return content;
    content += *piece;
  }
}

double WorstDistance(const std::string& shard, const std::string& peft_directory) {
  const auto header = storage::ParseSafetensorsHeader(shard, shard.size());
  Require(header.ok(), header.status().ToString());
  const auto expected =
      storage::SafetensorsFile::Open(peft_directory + "/" + storage::kAdapterModelFile);
  Require(expected.ok(), expected.status().ToString());
  double worst = 0;
  for (const storage::TensorInfo& want : expected->tensors()) {
    const storage::TensorInfo* got = header->Find(want.name);
    Require(got != nullptr && got->shape == want.shape, "no " + want.name + " in the shard");
    std::vector<float> wanted(want.elements());
    std::vector<float> had(got->elements());
    Require(expected->ReadFloats(want, wanted.data()).ok(), "cannot read " + want.name);
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

namespace {

std::string WriteRandomModel(const std::string& folder, const nlohmann::json& sizes) {
  nlohmann::json config = {
      {"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"},    {"hidden_act", "silu"},
      {"max_position_embeddings", 1024},       {"rms_norm_eps", 1e-6},     {"rope_theta", 10000.0},
      {"tie_word_embeddings", false},          {"torch_dtype", "float32"},
  };
  config.update(sizes);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump(2);
  std::ofstream(folder + "/random_weights.json") << R"({"seed": 5})";
  return folder;
}

const nlohmann::json kGoldenSizes = {{"hidden_size", 64},        {"intermediate_size", 160},
                                     {"num_hidden_layers", 3},   {"num_attention_heads", 4},
                                     {"num_key_value_heads", 2}, {"vocab_size", 384}};

}  // namespace

std::string Spoiled(std::string shard) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto header = storage::ParseSafetensorsHeader(shard, shard.size());
  if (!header.ok()) throw std::runtime_error(header.status().ToString());
  for (const storage::TensorInfo& tensor : header->tensors) {
    if (tensor.name.find("lora_B.weight") == std::string::npos) continue;
    if (tensor.name.find(".exp_avg") != std::string::npos) continue;
    std::memcpy(&shard[header->data_begin + tensor.begin], &infinity, sizeof(infinity));
    return shard;
  }
  throw std::runtime_error("no matrix B");
}

std::string MakeRandomModel(const std::string& folder) {
  return WriteRandomModel(folder, kGoldenSizes);
}

std::string MakeTiedRandomModel(const std::string& folder) {
  nlohmann::json sizes = kGoldenSizes;
  sizes["tie_word_embeddings"] = true;
  return WriteRandomModel(folder, sizes);
}

std::string MakeWideRandomModel(const std::string& folder) {
  return WriteRandomModel(folder, {{"hidden_size", 576},
                                   {"intermediate_size", 1536},
                                   {"num_hidden_layers", 1},
                                   {"num_attention_heads", 9},
                                   {"num_key_value_heads", 3},
                                   {"vocab_size", 2048}});
}

std::string MakeSmolLm2Model(const std::string& folder) {
  return WriteRandomModel(folder, {{"hidden_size", 576},
                                   {"intermediate_size", 1536},
                                   {"num_hidden_layers", 30},
                                   {"num_attention_heads", 9},
                                   {"num_key_value_heads", 3},
                                   {"tie_word_embeddings", true},
                                   {"vocab_size", 49152}});
}

std::vector<TestRow> RandomRows(int64_t count, int64_t shortest, int64_t longest, uint64_t seed,
                                int32_t words) {
  std::mt19937_64 random(seed);
  std::vector<TestRow> rows(count);
  for (TestRow& row : rows) {
    const int64_t length = shortest + static_cast<int64_t>(random() % (longest - shortest + 1));
    for (int64_t i = 0; i < length; ++i) {
      row.ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(words)));
      row.labels.push_back(i == length - 1 || random() % 2 == 0 ? row.ids.back() : -100);
    }
  }
  return rows;
}

void AddModules(TestJob* job, const std::string& target, const std::vector<int32_t>& layers,
                int rank) {
  v1::SlotSpec::Modules& modules = *job->spec.add_modules();
  modules.set_target(target);
  modules.mutable_layers()->Add(layers.begin(), layers.end());
  modules.set_rank(rank);
  modules.set_scale(8.0 / rank);
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
