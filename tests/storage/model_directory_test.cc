#include "storage/models/model_directory.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "storage/files/files.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/safetensors_bytes.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;

std::vector<TensorEntry> TinyTensors() {
  std::vector<TensorEntry> entries;
  for (const NamedShape& tensor : AllTensors(DescribeModel(kTiny).value())) {
    entries.push_back({tensor.name, TensorType::kF32, tensor.shape});
  }
  return entries;
}

// A sound model whose entries a test then changes.
struct TinyModel {
  TempDirectory directory;
  std::vector<TensorEntry> tensors = TinyTensors();

  absl::StatusOr<ModelDirectory> Open() {
    directory.Write("config.json", kTiny);
    directory.Write("model.safetensors", SafetensorsOf(tensors, {}));
    return ModelDirectory::Open(directory.path());
  }
  std::string Message() {
    const auto model = Open();
    return model.ok() ? "ok" : std::string(model.status().message());
  }
};

TEST_CASE("a model in one file is opened and read", "[model_directory]") {
  TinyModel tiny;
  auto opened = tiny.Open();
  REQUIRE(opened.ok());
  const ModelDirectory model = *std::move(opened);
  CHECK(model.weight_bytes() == RealFiles().Size(tiny.directory / "model.safetensors").value());
  CHECK_FALSE(model.has_tokenizer());
  std::vector<float> norm(8);
  REQUIRE(model.ReadTensor("model.norm.weight", norm.data()).ok());
  CHECK(norm[7] == norm[0] + 7);
  CHECK(absl::IsNotFound(model.ReadText("tokenizer.json").status()));
}

TEST_CASE("missing, surplus and misshapen tensors are named", "[model_directory]") {
  {
    TinyModel tiny;
    tiny.tensors.erase(tiny.tensors.begin() + 3);
    CHECK_THAT(tiny.Message(), Contains("missing tensor \"" + TinyTensors()[3].name + "\""));
  }
  {
    TinyModel tiny;
    tiny.tensors.push_back({"model.layers.2.mlp.up_proj.weight", TensorType::kF32, {12, 8}});
    CHECK_THAT(tiny.Message(), Contains("surplus tensor \"model.layers.2.mlp.up_proj.weight\""));
  }
  {
    TinyModel tiny;
    tiny.tensors[0].shape = {17, 8};
    CHECK_THAT(tiny.Message(), Contains("has shape [17, 8], the config asks for [16, 8]"));
  }
  {
    TinyModel tiny;
    tiny.tensors[0] = {tiny.tensors[0].name, TensorType::kI32, tiny.tensors[0].shape};
    CHECK_THAT(tiny.Message(), Contains("has type I32"));
  }
}

TEST_CASE("harmless surplus tensors are accepted", "[model_directory]") {
  TinyModel tiny;
  tiny.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", TensorType::kF32, {2}});
  tiny.tensors.push_back({"lm_head.weight", TensorType::kF32, {16, 8}});
  CHECK(tiny.Message() == "ok");
}

TEST_CASE("a sharded model is read by its index", "[model_directory]") {
  const TempDirectory directory;
  directory.Write("config.json", kTiny);
  const std::vector<TensorEntry> tensors = TinyTensors();
  const std::vector<TensorEntry> first(tensors.begin(), tensors.begin() + 5);
  const std::vector<TensorEntry> second(tensors.begin() + 5, tensors.end());
  directory.Write("one.safetensors", SafetensorsOf(first, {}));
  directory.Write("two.safetensors", SafetensorsOf(second, {}));
  nlohmann::json map;
  for (const TensorEntry& tensor : first) map[tensor.name] = "one.safetensors";
  for (const TensorEntry& tensor : second) map[tensor.name] = "two.safetensors";
  const auto open = [&](const nlohmann::json& weight_map) {
    const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}};
    directory.Write("model.safetensors.index.json", index.dump());
    const auto model = ModelDirectory::Open(directory.path());
    return model.ok() ? "ok" : std::string(model.status().message());
  };
  CHECK(open(map) == "ok");
  CHECK_THAT(open(nlohmann::json::object()), Contains("no weight_map"));
  nlohmann::json wrong = map;
  wrong[second[0].name] = "one.safetensors";
  CHECK_THAT(open(wrong), Contains("\"" + second[0].name + "\" is not in \"one.safetensors\""));
  wrong[second[0].name] = "../two.safetensors";
  CHECK_THAT(open(wrong), Contains("no safetensors file of this directory"));
  wrong[second[0].name] = "three.safetensors";
  CHECK_THAT(open(wrong), Contains("it names \"three.safetensors\", which is not there"));
  directory.Write("two.safetensors", SafetensorsOf(tensors, {}));
  CHECK_THAT(open(map), Contains("is in another file of the model too"));
}

TEST_CASE("a directory that is no model is told so", "[model_directory]") {
  const TempDirectory directory;
  const auto missing = ModelDirectory::Open(directory / "absent");
  CHECK(absl::IsNotFound(missing.status()));
  CHECK(missing.status().GetPayload("lorad/reason").value() == "MODEL_NOT_FOUND");
  CHECK_THAT(std::string(ModelDirectory::Open(directory.path()).status().message()),
             Contains("no config.json"));
  directory.Write("config.json", kTiny);
  CHECK_THAT(std::string(ModelDirectory::Open(directory.path()).status().message()),
             Contains("neither model.safetensors nor"));
  directory.Write("config.json", "{}");
  CHECK_THAT(std::string(ModelDirectory::Open(directory.path()).status().message()),
             Contains("config.json: neither architectures nor model_type"));
}

TEST_CASE("the fingerprint changes when a file does", "[model_directory]") {
  TinyModel tiny;
  const std::string first = tiny.Open().value().fingerprint();
  CHECK(ModelDirectory::Open(tiny.directory.path()).value().fingerprint() == first);
  tiny.directory.Write("tokenizer.json", "{}");
  const auto with_tokenizer = ModelDirectory::Open(tiny.directory.path()).value();
  CHECK(with_tokenizer.fingerprint() != first);
  CHECK(with_tokenizer.has_tokenizer());
  std::filesystem::remove(tiny.directory / "tokenizer.json");
  std::filesystem::last_write_time(
      tiny.directory / "model.safetensors",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK(ModelDirectory::Open(tiny.directory.path()).value().fingerprint() != first);
}

TEST_CASE("files that were changed since they were opened are told", "[model_directory]") {
  TinyModel tiny;
  const auto model = tiny.Open();
  REQUIRE(model.ok());
  CHECK(model->CheckUnchanged().ok());
  const std::string weights = tiny.directory / "model.safetensors";
  const auto time = std::filesystem::last_write_time(weights);
  std::filesystem::last_write_time(weights, time + std::chrono::nanoseconds(1));
  const absl::Status changed = model->CheckUnchanged();
  CHECK(absl::IsFailedPrecondition(changed));
  CHECK(changed.GetPayload("lorad/reason").value() == "MODEL_CHANGED");
  std::filesystem::last_write_time(weights, time);
  CHECK(model->CheckUnchanged().ok());
  std::filesystem::resize_file(weights, 100);
  CHECK(absl::IsInvalidArgument(model->CheckUnchanged()));
}

TEST_CASE("weights from a seed depend on seed and name alone", "[model_directory]") {
  const TempDirectory directory;
  directory.Write("config.json", kTiny);
  const auto read = [&](const std::string& seed, const char* name) {
    directory.Write("random_weights.json", seed);
    std::vector<float> values(16 * 8);
    const auto model = ModelDirectory::Open(directory.path());
    REQUIRE(model.ok());
    REQUIRE(model->ReadTensor(name, values.data()).ok());
    return values;
  };
  const auto embedding = read(R"({"seed": 1})", "model.embed_tokens.weight");
  CHECK(embedding == read(R"({"seed": 1})", "model.embed_tokens.weight"));
  CHECK(embedding != read(R"({"seed": 2})", "model.embed_tokens.weight"));
  CHECK(embedding != read(R"({"seed": 1})", "model.layers.0.mlp.up_proj.weight"));
  CHECK(read(R"({"seed": 1})", "model.norm.weight")[7] == 1.0f);
  double squares = 0;
  for (const float value : embedding) squares += static_cast<double>(value) * value;
  CHECK(std::sqrt(squares / static_cast<double>(embedding.size())) == Approx(0.02).epsilon(0.2));
  directory.Write("random_weights.json", "{}");
  CHECK_THAT(std::string(ModelDirectory::Open(directory.path()).status().message()),
             Contains("it must be {\"seed\": N}"));
}

// VmRSS of this process in bytes.
int64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmRSS:") {
      int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
  }
  return 0;
}

TEST_CASE("reading a large tensor leaves the resident set flat", "[model_directory]") {
  const TempDirectory directory;
  const int64_t vocabulary = 1 << 22;  // x 8 x 2 bytes = 64 MiB
  nlohmann::json config = nlohmann::json::parse(kTiny);
  config["vocab_size"] = vocabulary;
  directory.Write("config.json", config.dump());
  std::vector<TensorEntry> tensors = TinyTensors();
  for (TensorEntry& tensor : tensors) {
    tensor.type = TensorType::kBF16;
    if (tensor.name == "model.embed_tokens.weight") tensor.shape = {vocabulary, 8};
  }
  const SafetensorsLayout layout(tensors, {});
  directory.Write("model.safetensors", layout.prefix());
  std::filesystem::resize_file(directory / "model.safetensors", layout.file_bytes());
  const auto model = ModelDirectory::Open(directory.path());
  REQUIRE(model.ok());
  std::vector<float> values(static_cast<size_t>(vocabulary) * 8, 1.0f);
  const int64_t before = ResidentBytes();
  REQUIRE(model->ReadTensor("model.embed_tokens.weight", values.data()).ok());
  CHECK(values.back() == 0.0f);
  CHECK(ResidentBytes() - before < int64_t{12} << 20);
}

}  // namespace
}  // namespace lorad::storage
