#include "storage/models/model_description.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/storage/published_configs.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;

// `config` with the fields of `patch` put over it (null takes one away).
std::string Patched(const std::string& config, const std::string& patch) {
  nlohmann::json json = nlohmann::json::parse(config);
  json.merge_patch(nlohmann::json::parse(patch));
  return json.dump();
}

// `config` with one field set, also to null.
std::string With(const std::string& config, const std::string& key, const std::string& value) {
  nlohmann::json json = nlohmann::json::parse(config);
  json[key] = nlohmann::json::parse(value);
  return json.dump();
}

std::string Message(const std::string& config) {
  const auto model = DescribeModel(config);
  if (model.ok()) return "ok";
  return std::string(model.status().GetPayload("lorad/reason").value()) + ": " +
         std::string(model.status().message());
}

TEST_CASE("published models have their published number of parameters", "[model_description]") {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {kLlama2_7b, 6'738'415'616},      {kLlama31_8b, 8'030'261'248}, {kLlama32_1b, 1'235'814'400},
      {kTinyLlama, 1'100'048'384},      {kQwen25_05b, 494'032'768},   {kQwen2_7b, 7'615'616'512},
      {kMistral_7b_v03, 7'248'023'552}, {kSmolLm2_135m, 134'515'008},
  };
  for (const auto& [config, parameters] : cases) {
    INFO(config);
    const auto model = DescribeModel(config);
    REQUIRE(model.ok());
    CHECK(ParameterCount(*model) == parameters);
  }
}

TEST_CASE("a description lists blocks, tensors and targets", "[model_description]") {
  const auto model = DescribeModel(kQwen25_05b);
  REQUIRE(model.ok());
  CHECK(model->blocks.size() == 48);
  CHECK(model->tied_head);
  CHECK(model->head_tensor == "model.embed_tokens.weight");
  CHECK(TargetModules(*model) == std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj",
                                                          "gate_proj", "up_proj", "down_proj"});
  const Block& attention = model->blocks[2];
  CHECK(attention.layer == 1);
  CHECK(attention.norm.tensor == "model.layers.1.input_layernorm.weight");
  CHECK(attention.in.out_features() == 896 + 2 * 128);
  CHECK(attention.in.parts[1].bias == "model.layers.1.self_attn.k_proj.bias");
  CHECK(attention.out.parts[0].bias.empty());
  CHECK(ModulePath(attention, attention.in.parts[0]) == "model.layers.1.self_attn.q_proj");
  const auto& mixer = std::get<AttentionSpec>(attention.mixer);
  CHECK(mixer.heads == 14);
  CHECK(mixer.kv_heads == 2);
  CHECK(mixer.head_size == 64);
  CHECK(mixer.scale == 0.125);
  CHECK(mixer.rope.inverse_frequencies.size() == 32);
  const Block& mlp = model->blocks[3];
  CHECK(std::get<GatedMlpSpec>(mlp.mixer).ffn == 4864);
  CHECK(mlp.out.in_features == 4864);
  const std::vector<NamedShape> tensors = AllTensors(*model);
  CHECK(tensors.size() == 2 + 24 * 12);
  CHECK(tensors.front().name == "model.embed_tokens.weight");
  CHECK(std::is_sorted(tensors.begin(), tensors.end(),
                       [](const auto& a, const auto& b) { return a.name < b.name; }));
}

TEST_CASE("rotary frequencies are those of transformers", "[model_description]") {
  // numpy in float32, by the rule of transformers' modeling_rope_utils, for Llama 3.2 1B.
  const std::vector<std::pair<int, float>> expected = {
      {0, 1.0f},
      {1, 0.6636012196540833f},
      {14, 0.0032114461064338684f},
      {15, 0.0012905480107292533f},
      {16, 0.000429556705057621f},
      {17, 9.708286233944818e-05f},
      {31, 9.41830720080361e-08f},
  };
  const auto model = DescribeModel(kLlama32_1b);
  REQUIRE(model.ok());
  const auto& rope = std::get<AttentionSpec>(model->blocks[0].mixer).rope;
  CHECK(rope.type == "llama3");
  CHECK(rope.theta == 500000.0);
  for (const auto& [index, value] : expected) {
    INFO(index);
    CHECK(rope.inverse_frequencies[static_cast<size_t>(index)] == Approx(value).epsilon(2e-7));
  }
}

TEST_CASE("both spellings of a config mean the same", "[model_description]") {
  const auto older = DescribeModel(Patched(kLlama32_1b, R"({
    "dtype": null, "torch_dtype": "bfloat16", "rope_parameters": null, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "type": "llama3"}})"));
  const auto newer = DescribeModel(kLlama32_1b);
  REQUIRE(older.ok());
  REQUIRE(newer.ok());
  CHECK(older->declared_type == newer->declared_type);
  CHECK(std::get<AttentionSpec>(older->blocks[0].mixer).rope.inverse_frequencies ==
        std::get<AttentionSpec>(newer->blocks[0].mixer).rope.inverse_frequencies);
}

TEST_CASE("what is not implemented is refused by name", "[model_description]") {
  struct Case {
    std::string config;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", "MODEL_INVALID: not JSON: parse error at line 1, column 1"},
      {"[]", "MODEL_INVALID: the config must be a JSON object"},
      {"{}", "MODEL_INVALID: neither architectures nor model_type"},
      {Patched(kTiny, R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})"),
       "MODEL_UNSUPPORTED: architecture \"GemmaForCausalLM\""},
      {Patched(kTiny, R"({"architectures": ["LlamaForSequenceClassification"]})"),
       "MODEL_UNSUPPORTED: architecture \"LlamaForSequenceClassification\""},
      {Patched(kTiny, R"({"model_type": "mistral"})"), "(model_type \"mistral\")"},
      {Patched(kTiny, R"({"architectures": ["A", "B"]})"), "must be a list of one name"},
      {Patched(kTiny, R"({"architectures": null})"), "ok"},
      {Patched(kTiny, R"({"hidden_size": null})"), "MODEL_INVALID: hidden_size is missing"},
      {Patched(kTiny, R"({"hidden_size": "8"})"),
       "hidden_size is \"8\"; it must be a whole number"},
      {Patched(kTiny, R"({"hidden_size": 18446744073709551615})"), "must be a whole number"},
      {Patched(kTiny, R"({"hidden_size": -8})"), "must be a whole number from 1"},
      {Patched(kTiny, R"({"vocab_size": 1e3})"), "vocab_size is 1000.0"},
      {Patched(kTiny, R"({"num_attention_heads": 3})"), "no multiple"},
      {Patched(kTiny, R"({"num_attention_heads": 8})"), "the head size is 1"},
      {Patched(kTiny, R"({"num_key_value_heads": null})"), "ok"},
      {Patched(kMistral_7b_v03, R"({"num_key_value_heads": null})"),
       "num_key_value_heads is missing"},
      {Patched(kTiny, R"({"hidden_act": "gelu"})"),
       "MODEL_UNSUPPORTED: hidden_act = \"gelu\" is not implemented (only \"silu\")"},
      {Patched(kTiny, R"({"attention_dropout": 0.1})"), "attention_dropout = 0.1"},
      {Patched(kTiny, R"({"quantization_config": {"bits": 4}})"), "\"quantization_config\" = {"},
      {Patched(kTiny, R"({"attn_logit_softcapping": 50.0})"), "\"attn_logit_softcapping\" = 50.0"},
      {With(kTiny, "attn_logit_softcapping", "null"), "ok"},
      {Patched(kTiny, R"({"auto_map": {"AutoModel": "x.y"}})"), "\"auto_map\""},
      {Patched(kTiny, R"({"mlp_bias": true, "attention_bias": true})"), "ok"},
      {Patched(kMistral_7b_v03, R"({"attention_bias": true})"), "attention_bias = true"},
      {Patched(kMistral_7b_v03, R"({"sliding_window": 4096})"), "sliding_window = 4096"},
      {Patched(kMistral_7b_v03, R"({"sliding_window": 32768})"), "ok"},
      {Patched(kQwen2_7b, R"({"use_sliding_window": true, "sliding_window": 4096})"),
       "sliding_window = 4096"},
      {Patched(kQwen2_7b, R"({"use_sliding_window": true, "sliding_window": null})"),
       "use_sliding_window = true"},
      {Patched(kQwen2_7b, R"({"sliding_window": 4096})"), "ok"},
      {Patched(kQwen2_7b, R"({"layer_types": ["full_attention", "sliding_attention"]})"),
       "layer_types: \"sliding_attention\""},
      {Patched(kTiny, R"({"rope_scaling": {"type": "linear", "factor": 2.0}})"),
       "rope_scaling.rope_type \"linear\" is not implemented"},
      {Patched(kTiny, R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})"), "\"yarn\""},
      {Patched(kTiny, R"({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}})"),
       "rope_scaling.low_freq_factor is missing"},
      {Patched(kTiny, R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})"),
       "rope_scaling.\"factor\" = 2.0"},
      {Patched(kTiny, R"({"rope_scaling": 2})"), "rope_scaling must be an object"},
      {Patched(kTiny, R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})"),
       "rope_theta is given twice"},
      {Patched(kTiny,
               R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})"),
       "rope_parameters.partial_rotary_factor = 0.5"},
  };
  for (const Case& each : cases) {
    INFO(each.config);
    CHECK_THAT(Message(each.config), Contains(each.message));
  }
}

TEST_CASE("all problems are named at once", "[model_description]") {
  const std::string message =
      Message(Patched(kTiny, R"({"hidden_act": "relu", "one": 1, "two": 2})"));
  CHECK_THAT(message, Contains("hidden_act") && Contains("\"one\"") && Contains("\"two\""));
}

}  // namespace
}  // namespace lorad::storage
