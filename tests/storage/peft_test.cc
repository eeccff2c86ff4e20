#include "storage/adapters/peft.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "storage/files/files.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/safetensors_bytes.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;

// What PEFT 0.21.0 wrote for a run of tests/golden (its target_modules in our order).
constexpr char kByPeft[] = R"({
  "alora_invocation_tokens": null,
  "alpha_pattern": {},
  "arrow_config": null,
  "auto_mapping": null,
  "base_model_name_or_path": null,
  "bias": "none",
  "corda_config": null,
  "ensure_weight_tying": false,
  "eva_config": null,
  "exclude_modules": null,
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "kasa_config": null,
  "layer_replication": null,
  "layers_pattern": null,
  "layers_to_transform": null,
  "loftq_config": {},
  "lora_alpha": 8,
  "lora_bias": false,
  "lora_dropout": 0.0,
  "lora_ga_config": null,
  "megatron_config": null,
  "megatron_core": "megatron.core",
  "modules_to_save": null,
  "monteclora_config": null,
  "peft_type": "LORA",
  "peft_version": "0.21.0",
  "qalora_group_size": 16,
  "r": 4,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "q_proj",
    "v_proj"
  ],
  "target_parameters": null,
  "task_type": "CAUSAL_LM",
  "trainable_token_indices": null,
  "use_bdlora": null,
  "use_dora": false,
  "use_qalora": false,
  "use_rslora": true,
  "velora_config": null
}
)";

std::string Patched(const std::string& patch) {
  nlohmann::json json = nlohmann::json::parse(kByPeft);
  json.merge_patch(nlohmann::json::parse(patch));
  return json.dump();
}

std::string Message(const std::string& config) {
  const auto parsed = ParsePeftConfig(config);
  if (parsed.ok()) return "ok";
  return std::string(parsed.status().GetPayload("lorad/reason").value()) + ": " +
         std::string(parsed.status().message());
}

TEST_CASE("an adapter config is read and written as PEFT does", "[peft]") {
  const auto config = ParsePeftConfig(kByPeft);
  REQUIRE(config.ok());
  CHECK(config->rank == 4);
  CHECK(config->alpha == 8);
  CHECK(config->rslora);
  CHECK(LoraScale(config->alpha, config->rank, config->rslora) == 4);
  CHECK(config->target_modules == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(WritePeftConfig(*config) == kByPeft);
}

TEST_CASE("every field survives a round trip", "[peft]") {
  PeftConfig config;
  config.rank = 13;
  config.alpha = 6.5;
  config.dropout = 0.05;
  config.base_model = "a \"model\"";
  config.target_modules = {"down_proj", "k_proj"};
  config.exclude_modules = {"layers.2.mlp.down_proj"};
  config.layers_to_transform = {0, 2};
  config.layers_pattern = {"layers"};
  config.rank_pattern = {{"k_proj", 2}, {"layers.0.mlp.down_proj", 32}};
  config.alpha_pattern = {{"k_proj", 0.5}};
  const auto again = ParsePeftConfig(WritePeftConfig(config));
  REQUIRE(again.ok());
  CHECK(again->rank == 13);
  CHECK(again->alpha == 6.5);
  CHECK(again->dropout == 0.05);
  CHECK_FALSE(again->rslora);
  CHECK(again->base_model == config.base_model);
  CHECK(again->target_modules == config.target_modules);
  CHECK(again->exclude_modules == config.exclude_modules);
  CHECK(again->layers_to_transform == config.layers_to_transform);
  CHECK(again->layers_pattern == config.layers_pattern);
  CHECK(again->rank_pattern == config.rank_pattern);
  CHECK(again->alpha_pattern == config.alpha_pattern);
  CHECK(LoraScale(again->alpha, again->rank, again->rslora) == 0.5);
}

TEST_CASE("options that change results are refused by name", "[peft]") {
  struct Case {
    std::string patch;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"{}", "ok"},
      {R"({"peft_type": "LOHA"})", "ADAPTER_UNSUPPORTED: peft_type \"LOHA\""},
      {R"({"r": null})", "ADAPTER_INVALID: r is missing"},
      {R"({"r": 0})", "r is 0; it must be a whole number from 1 to 512"},
      {R"({"r": 513})", "from 1 to 512"},
      {R"({"lora_alpha": 0})", "lora_alpha is 0"},
      {R"({"lora_dropout": 1.0})", "lora_dropout is 1.0"},
      {R"({"use_rslora": 1})", "use_rslora is 1; it must be true or false"},
      {R"({"use_dora": true})", "ADAPTER_UNSUPPORTED: use_dora = true"},
      {R"({"rank_pattern": {"q_proj": 2}})", "ok"},
      {R"({"rank_pattern": {"q_proj": 0}})",
       "rank_pattern.q_proj is 0; it must be a whole number from 1 to 512"},
      {R"({"rank_pattern": {"": 2}})", "rank_pattern has an empty name"},
      {R"({"rank_pattern": ["q_proj"]})", "rank_pattern must be an object"},
      {R"({"alpha_pattern": {"q_proj": 0.5}})", "ok"},
      {R"({"alpha_pattern": {"q_proj": -1}})", "alpha_pattern.q_proj is -1; it must be a number"},
      {R"({"bias": "all"})", "bias = \"all\""},
      {R"({"modules_to_save": ["lm_head"]})", "modules_to_save"},
      {R"({"modules_to_save": []})", "ok"},
      {R"({"layers_to_transform": [1]})", "ok"},
      {R"({"layers_to_transform": 1})", "ok"},
      {R"({"layers_to_transform": [-1]})", "layers_to_transform must be numbers of layers"},
      {R"({"layers_to_transform": [1], "target_modules": ".*q_proj"})",
       "layers_to_transform needs target_modules as a list of names"},
      {R"({"layers_pattern": "layers"})", "layers_pattern needs layers_to_transform"},
      {R"({"layers_pattern": [1], "layers_to_transform": [1]})", "layers_pattern must be names"},
      {R"({"fan_in_fan_out": true})", "fan_in_fan_out"},
      {R"({"lora_bias": true})", "lora_bias"},
      {R"({"exclude_modules": "x"})", "ok"},
      {R"({"exclude_modules": ["a b"]})", "exclude_modules has \"a b\"; give names"},
      {R"({"trainable_token_indices": [1]})", "trainable_token_indices"},
      {R"({"task_type": "SEQ_CLS"})", "task_type = \"SEQ_CLS\""},
      {R"({"task_type": null})", "ok"},
      {R"({"init_lora_weights": "pissa"})", "init_lora_weights = \"pissa\""},
      {R"({"init_lora_weights": "gaussian"})", "ok"},
      {R"({"init_lora_weights": false})", "ok"},
      {R"({"some_future_option": 1})", "\"some_future_option\" = 1 is not known"},
      {R"({"target_modules": null})", "target_modules is missing"},
      {R"({"target_modules": ""})", "target_modules is empty"},
      {R"({"target_modules": []})", "must be a list"},
      {R"({"target_modules": [1]})", "give names such as q_proj, or paths"},
      {R"({"target_modules": ["model.layers.0.self_attn.q_proj"]})", "ok"},
      {R"({"target_modules": ".*q_proj"})", "ok"},
      {R"({"target_modules": "all-linear"})", "ok"},
      {R"({"target_modules": ["v_proj", "q_proj", "q_proj"]})", "ok"},
  };
  for (const Case& each : cases) {
    INFO(each.patch);
    CHECK_THAT(Message(Patched(each.patch)), Contains(each.message));
  }
  CHECK_THAT(Message("nonsense"), Contains("not JSON: parse error at line 1, column 2"));
  CHECK_THAT(Message("[]"), Contains("must be a JSON object"));
}

std::vector<TensorEntry> Entries(const std::vector<NamedShape>& tensors) {
  std::vector<TensorEntry> entries;
  for (const NamedShape& tensor : tensors) {
    entries.push_back({tensor.name, TensorType::kF32, tensor.shape});
  }
  return entries;
}

// Those that this config asks for on this model.
std::vector<TensorEntry> TensorsOf(const std::string& config, const ModelDescription& model) {
  const ResolvedTargets targets = ResolveTargets(ParsePeftConfig(config).value(), model);
  REQUIRE(targets.problems.empty());
  return Entries(PeftTensors(targets.modules));
}

// An adapter of rank 4 on q_proj and v_proj of the tiny model.
struct TinyAdapter {
  TempDirectory directory;
  ModelDescription model = DescribeModel(kTiny).value();
  std::string config = kByPeft;
  std::vector<TensorEntry> tensors = TensorsOf(kByPeft, model);

  absl::StatusOr<PeftAdapter> Open() {
    directory.Write("adapter_config.json", config);
    directory.Write("adapter_model.safetensors", SafetensorsOf(tensors, {{"format", "pt"}}));
    return PeftAdapter::Open(directory.path());
  }
  std::string Message() {
    const auto adapter = Open();
    if (!adapter.ok()) return std::string(adapter.status().message());
    const absl::Status fits = adapter->CheckFits(model);
    return fits.ok() ? "ok" : "does not fit: " + std::string(fits.message());
  }
};

TEST_CASE("an adapter's tensors are named and ordered as PEFT's", "[peft]") {
  const TinyAdapter tiny;
  REQUIRE(tiny.tensors.size() == 8);
  CHECK(tiny.tensors[0].name == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  CHECK(tiny.tensors[0].shape == std::vector<int64_t>{4, 8});
  CHECK(tiny.tensors[3].name == "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight");
  CHECK(tiny.tensors[3].shape == std::vector<int64_t>{4, 4});
}

TEST_CASE("an adapter is checked against itself and a model", "[peft]") {
  CHECK(TinyAdapter().Message() == "ok");
  {
    TinyAdapter tiny;
    tiny.config = Patched(R"({"target_modules": "all-linear"})");
    tiny.tensors = TensorsOf(tiny.config, tiny.model);
    CHECK(tiny.Message() == "ok");
    tiny.tensors.resize(8);
    CHECK_THAT(tiny.Message(), Contains("does not fit") && Contains("missing tensor"));
  }
  {
    TinyAdapter tiny;
    tiny.tensors.erase(tiny.tensors.begin());
    CHECK_THAT(tiny.Message(),
               Contains("missing tensor") && Contains("layers.0.self_attn.q_proj.lora_A"));
  }
  {
    TinyAdapter tiny;
    tiny.tensors.erase(tiny.tensors.begin(), tiny.tensors.begin() + 2);
    CHECK_THAT(tiny.Message(), Contains("does not fit") && Contains("missing tensor"));
  }
  {
    TinyAdapter tiny;
    for (TensorEntry& tensor : tiny.tensors) {
      tensor.name.replace(tensor.name.find("layers."), 8, "layers.7");
    }
    tiny.tensors.resize(4);
    CHECK_THAT(tiny.Message(), Contains("surplus tensor"));
  }
  {
    TinyAdapter tiny;
    tiny.tensors[0].shape = {5, 8};
    CHECK_THAT(tiny.Message(), Contains("has shape [5, 8], but r is 4"));
    tiny.tensors[0].shape = {4, 9};
    CHECK_THAT(tiny.Message(), Contains("has shape [4, 9], the base model asks for [4, 8]"));
    tiny.tensors[0].shape = {32};
    CHECK_THAT(tiny.Message(), Contains("has shape [32]"));
  }
  {
    TinyAdapter tiny;
    tiny.tensors[0].type = TensorType::kF64;
    CHECK_THAT(tiny.Message(), Contains("has type F64"));
  }
  {
    TinyAdapter tiny;
    tiny.tensors.push_back({"base_model.model.lm_head.weight", TensorType::kF32, {16, 8}});
    CHECK_THAT(tiny.Message(), Contains("is not named as PEFT names LoRA matrices"));
  }
  {
    TinyAdapter tiny;
    tiny.config = Patched(R"({"target_modules": ["q_proj"]})");
    CHECK_THAT(tiny.Message(), Contains("tensors for \"v_proj\", which target_modules lacks"));
    tiny.config = Patched(R"({"target_modules": ["q_proj", "v_proj", "o_proj"]})");
    CHECK_THAT(tiny.Message(), Contains("no tensors for target module \"o_proj\""));
  }
  {
    TinyAdapter tiny;
    for (const char* targets :
         {R"(["self_attn.q_proj", "v_proj"])", R"(".*self_attn\\.(q|v)_proj")",
          R"("model\\.layers\\.[01]\\..*\\.[qv]_proj")"}) {
      INFO(targets);
      tiny.config = Patched(absl::StrCat(R"({"target_modules": )", targets, "}"));
      CHECK(tiny.Message() == "ok");
    }
    tiny.config = Patched(R"({"target_modules": ".*q_proj"})");
    CHECK_THAT(tiny.Message(), Contains("tensors for \"v_proj\", which target_modules lacks"));
    tiny.config = Patched(R"({"target_modules": "q_proj|v_proj"})");  // all of a path
    CHECK_THAT(tiny.Message(), Contains("no tensors for target module \"q_proj|v_proj\""));
    tiny.config = Patched(R"({"target_modules": "(q_proj"})");
    CHECK_THAT(tiny.Message(),
               Contains("the regular expression \"(q_proj\" is wrong at character"));
    tiny.config = Patched(R"({"target_modules": "(([a-z0-9._]+)+)+[0-9]{9}"})");
    CHECK_THAT(tiny.Message(), Contains("takes too long") && Contains("it backtracks"));
  }
  {
    TinyAdapter tiny;
    tiny.tensors.clear();
    CHECK_THAT(tiny.Message(), Contains("no tensors at all"));
  }
}

TEST_CASE("matrices have the rank that patterns give their module", "[peft]") {
  TinyAdapter tiny;
  tiny.config = Patched(R"({"rank_pattern": {"v_proj": 2}, "layers_to_transform": [1],
                            "exclude_modules": ["k_proj"]})");
  tiny.tensors = TensorsOf(tiny.config, tiny.model);
  REQUIRE(tiny.tensors.size() == 4);
  CHECK(tiny.tensors[3].shape == std::vector<int64_t>{4, 2});
  CHECK(tiny.Message() == "ok");
  tiny.tensors[2].shape = {4, 8};
  CHECK_THAT(tiny.Message(), Contains("has shape [4, 8], but its rank in rank_pattern is 2"));
  tiny.tensors[2].shape = {2, 8};
  tiny.config = Patched(R"({"rank_pattern": {"v_proj": 2}, "layers_to_transform": [0, 1]})");
  CHECK_THAT(tiny.Message(), Contains("no tensors for \"0\" of layers_to_transform"));
  tiny.config = Patched(R"({"rank_pattern": {"v_proj": 2}, "layers_to_transform": [0]})");
  CHECK_THAT(tiny.Message(),
             Contains("tensors for \"q_proj\", which target_modules lacks or other fields"));
  tiny.config = Patched(R"({"rank_pattern": {"v_proj": 2, "x": 3}})");
  CHECK_THAT(tiny.Message(), Contains("no tensors for \"x\" of rank_pattern"));
  tiny.config = Patched(R"({"rank_pattern": {"v_proj": 2}})");
  CHECK_THAT(tiny.Message(), Contains("does not fit") && Contains("missing tensor"));
}

TEST_CASE("PEFT writes out what all-linear means, modules that are left out too", "[peft]") {
  TinyAdapter tiny;
  tiny.config = Patched(R"({"target_modules": ["model.layers.0.self_attn.q_proj",
                            "model.layers.1.self_attn.q_proj", "k_proj"],
                            "exclude_modules": ".*(layers\\.0|k_proj).*"})");
  tiny.tensors = TensorsOf(tiny.config, tiny.model);
  CHECK(tiny.tensors.size() == 2);
  CHECK(tiny.Message() == "ok");
}

TEST_CASE("beside a tower the text model's modules alone are named", "[peft]") {
  PeftConfig config;
  config.target_modules = {"q_proj", "v_proj"};
  const auto written = [&config](const std::string& layer) {
    SafetensorsHeader header;
    TensorInfo tensor;
    tensor.name = PeftKey(layer + ".self_attn.q_proj", 'A');
    header.tensors.push_back(tensor);
    return nlohmann::json::parse(WritePeftConfig(ForTensors(config, header)))["target_modules"];
  };
  CHECK(written("model.layers.0") == nlohmann::json({"q_proj", "v_proj"}));
  CHECK(written("model.language_model.layers.0") ==
        R"(model\.language_model\.layers\.\d+\.\w+\.(q_proj|v_proj))");
  config.layers_to_transform = {0};
  config.exclude_modules = {"v_proj"};
  config.rank_pattern = {{"q_proj", 2}};
  CHECK(written("model.layers.0") == nlohmann::json({"q_proj", "v_proj"}));
  CHECK(written("model.language_model.layers.0") ==
        R"(model\.language_model\.layers\.((0)\.\w+\.(q_proj)))");
}

TEST_CASE("values that are not finite are found", "[peft]") {
  TinyAdapter tiny;
  REQUIRE(tiny.Open().ok());
  CHECK(tiny.Open()->CheckFinite().ok());
  std::string bytes = tiny.directory.Read("adapter_model.safetensors");
  const float bad = std::numeric_limits<float>::infinity();
  bytes.replace(bytes.size() - 4, 4, reinterpret_cast<const char*>(&bad), 4);
  tiny.directory.Write("adapter_model.safetensors", bytes);
  const auto adapter = PeftAdapter::Open(tiny.directory.path());
  REQUIRE(adapter.ok());
  CHECK_THAT(std::string(adapter->CheckFinite().message()),
             Contains("layers.1.self_attn.v_proj.lora_B.weight") && Contains("not finite"));
}

TEST_CASE("an adapter whose file becomes shorter while it is read is an error", "[peft]") {
  TinyAdapter tiny;
  const auto adapter = tiny.Open();
  REQUIRE(adapter.ok());
  std::filesystem::resize_file(tiny.directory / "adapter_model.safetensors", 100);
  const absl::Status status = adapter->CheckFinite();
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()), Contains("has become shorter"));
}

}  // namespace
}  // namespace lorad::storage
