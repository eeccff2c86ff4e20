#include "tests/sim/worker/models.h"

#include <catch2/catch.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "storage/adapters/checkpoint.h"
#include "storage/adapters/peft.h"
#include "storage/tensors/safetensors.h"
#include "tests/storage/published_configs.h"

namespace lorad::sim {
namespace {

BaseModel Make(std::string folder, std::string config_json) {
  auto description = storage::DescribeModel(config_json);
  REQUIRE(description.ok());
  planner::ModelShape shape = server::ShapeOf(*description);
  return {std::move(folder), std::move(config_json), *std::move(description), std::move(shape)};
}

// Nearly all of a layer is its MLP, and no product is so wide that the workspace grows with it.
std::string ConfigOf(int layers) {
  return absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "head_dim": 4, "hidden_size": 512, "intermediate_size": 384, "max_position_embeddings": 64,
    "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": true, "vocab_size": 16, "num_hidden_layers": )",
                      layers, "}");
}

// The matrices of attention blocks in the range: blocks are halves of layers, attention first.
std::vector<storage::NamedShape> MatricesOf(const BaseModel& model,
                                            const planner::StageRange& range, int rank) {
  storage::PeftConfig config;
  config.rank = rank;
  config.target_modules = {"q_proj"};
  const auto modules = storage::ResolveTargets(config, model.description).modules;
  std::vector<storage::TargetModule> of_range;
  for (size_t layer = 0; layer < modules.size(); ++layer) {
    const auto block = static_cast<int32_t>(2 * layer);
    if (range.first_block <= block && block < range.end_block) of_range.push_back(modules[layer]);
  }
  return storage::PeftTensors(of_range);
}

float FirstValue(const std::string& job, int64_t step, const std::string& tensor) {
  uint32_t hash = 2166136261;
  for (const unsigned char c : absl::StrCat(job, " ", step, " ", tensor)) {
    hash = (hash ^ c) * 16777619;
  }
  return static_cast<float>(hash % (1 << 20));
}

std::string Write(std::vector<storage::TensorEntry> entries,
                  const std::map<std::string, std::string>& metadata, const std::string& job,
                  int64_t step) {
  const storage::SafetensorsLayout layout(std::move(entries), metadata);
  std::string bytes;
  storage::SafetensorsWriter writer(layout, [&bytes](std::string_view piece) {
    bytes += piece;
    return absl::OkStatus();
  });
  REQUIRE(writer.Start().ok());
  for (const storage::TensorInfo& tensor : layout.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    const float first = FirstValue(job, step, tensor.name);
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    REQUIRE(writer.Append(values.data(), tensor.elements()).ok());
  }
  writer.Finish();
  return bytes;
}

storage::TensorEntry EntryOf(const storage::NamedShape& matrix, const char* suffix) {
  return {matrix.name + suffix, storage::TensorType::kF32, matrix.shape};
}

}  // namespace

const BaseModel& TinyModel() {
  static const auto* const model = new BaseModel(Make("model", storage::kTiny));
  return *model;
}

const BaseModel& ModelOfLayers(int layers) {
  REQUIRE((layers >= 1 && layers <= kLayersMax));
  static const auto* const models = [] {
    auto* const made = new std::vector<BaseModel>();
    for (int n = 1; n <= kLayersMax; ++n) made->push_back(Make(NameOfLayers(n), ConfigOf(n)));
    return made;
  }();
  return (*models)[static_cast<size_t>(layers - 1)];
}

std::string NameOfLayers(int layers) { return absl::StrCat("layers-", layers); }

const BaseModel& ModelNamed(std::string_view name) {
  for (int layers = 1; layers <= kLayersMax; ++layers) {
    if (name == NameOfLayers(layers)) return ModelOfLayers(layers);
  }
  return TinyModel();
}

const BaseModel& ModelAt(std::string_view path) {
  return ModelNamed(path.substr(path.rfind('/') + 1));
}

std::string ShardOf(const BaseModel& model, const planner::StageRange& range,
                    const worker::v1::UploadShardRequest::Header& header, int rank) {
  std::vector<storage::TensorEntry> entries;
  for (const storage::NamedShape& matrix : MatricesOf(model, range, rank)) {
    for (const char* suffix : {"", storage::kFirstMomentSuffix, storage::kSecondMomentSuffix}) {
      entries.push_back(EntryOf(matrix, suffix));
    }
  }
  return Write(std::move(entries),
               storage::ShardMetadata({header.job(), header.step(), header.numerics_id()}),
               header.job(), header.step());
}

std::map<std::string, std::string> TensorFilesOf(const BaseModel& model, const std::string& job,
                                                 int64_t step, int rank) {
  std::vector<storage::TensorEntry> masters, moments;
  for (const storage::NamedShape& matrix :
       MatricesOf(model, planner::WholeModel(model.shape), rank)) {
    masters.push_back(EntryOf(matrix, ""));
    moments.push_back(EntryOf(matrix, storage::kFirstMomentSuffix));
    moments.push_back(EntryOf(matrix, storage::kSecondMomentSuffix));
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  return {{storage::kAdapterModelFile, Write(std::move(masters), metadata, job, step)},
          {storage::kOptimizerFile, Write(std::move(moments), metadata, job, step)}};
}

}  // namespace lorad::sim
