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
      {kLlama2_7b, 6'738'415'616},      {kLlama31_8b, 8'030'261'248},
      {kLlama32_1b, 1'235'814'400},     {kTinyLlama, 1'100'048'384},
      {kQwen25_05b, 494'032'768},       {kQwen2_7b, 7'615'616'512},
      {kMistral_7b_v03, 7'248'023'552}, {kSmolLm2_135m, 134'515'008},
      {kQwen3_8b, 8'190'735'360},       {kGemma_7b, 8'537'680'896},
      {kGemma2_2b, 2'614'341'888},      {kGemma3_12b, 11'766'034'176},
      {kPhi3_mini, 3'821'079'552},      {kPhi4, 14'659'507'200},
      {kSmolLm3_3b, 3'075'098'624},     {kOlmo2_7b, 7'298'617'344},
      {kGranite33_8b, 8'170'864'640},   {kMistral_7b_v01, 7'241'732'096},
      {kPhi35_mini, 3'821'079'552},     {kPhi4_mini, 3'836'021'760},
      {kOlmo3_7b, 7'298'011'136},       {kMistral3_24b, 23'572'403'200},
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
  CHECK(attention.norm->tensor == "model.layers.1.input_layernorm.weight");
  CHECK(attention.in.out_features() == 896 + 2 * 128);
  CHECK(attention.in.parts[1].bias == "model.layers.1.self_attn.k_proj.bias");
  CHECK(attention.out.parts[0].bias.empty());
  CHECK(attention.in.parts[0].path == "model.layers.1.self_attn.q_proj");
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

void CheckFrequencies(const std::vector<float>& got,
                      const std::vector<std::pair<int, float>>& expected) {
  for (const auto& [index, value] : expected) {
    INFO(index);
    CHECK(got[static_cast<size_t>(index)] == Approx(value).epsilon(3e-7));
  }
}

const RopeSpec& RopeOf(const ModelDescription& model, int layer) {
  return std::get<AttentionSpec>(model.blocks[static_cast<size_t>(2 * layer)].mixer).rope;
}

TEST_CASE("yarn's and longrope's frequencies are those of transformers", "[model_description]") {
  // Printed by transformers 5.17.
  const auto yarn = DescribeModel(Patched(kQwen3_8b, R"({"rope_scaling": {"rope_type": "yarn",
    "factor": 4.0, "original_max_position_embeddings": 32768}})"));
  REQUIRE(yarn.ok());
  CHECK(RopeOf(*yarn, 0).factor == Approx(1.138629436111989).epsilon(1e-12));
  CheckFrequencies(RopeOf(*yarn, 0).inverse_frequencies, {{0, 1.0f},
                                                          {20, 0.01333521492779255f},
                                                          {30, 0.0010643609566614032f},
                                                          {40, 4.4456985051510856e-05f},
                                                          {63, 3.102344408034696e-07f}});
  nlohmann::json table = {{"type", "longrope"}};
  for (int i = 0; i < 48; ++i) {
    table["short_factor"].push_back(1.0 + 0.01 * i);
    table["long_factor"].push_back(1.0 + 0.25 * i);
  }
  nlohmann::json config = nlohmann::json::parse(kPhi4);
  config.merge_patch({{"hidden_size", 3072},
                      {"num_attention_heads", 24},
                      {"num_key_value_heads", 8},
                      {"max_position_embeddings", 131072},
                      {"original_max_position_embeddings", 4096},
                      {"partial_rotary_factor", 0.75},
                      {"rope_theta", 10000.0},
                      {"rope_scaling", table}});
  const auto longrope = DescribeModel(config.dump());
  REQUIRE(longrope.ok());
  const RopeSpec& rope = RopeOf(*longrope, 0);
  CHECK(rope.original_positions == 4096);
  // Phi3Config has 4096 where the config says nothing, and that goes before the table's own.
  config.erase("original_max_position_embeddings");
  config["rope_scaling"]["original_max_position_embeddings"] = 2048;
  const auto usual = DescribeModel(config.dump());
  REQUIRE(usual.ok());
  CHECK(RopeOf(*usual, 0) == rope);
  CHECK(rope.factor == Approx(1.1902380714238083).epsilon(1e-12));
  CheckFrequencies(
      rope.inverse_frequencies,
      {{1, 0.8172318339347839f}, {20, 0.017953623086214066f}, {47, 8.24168382678181e-05f}});
  CheckFrequencies(rope.long_frequencies,
                   {{1, 0.6603233218193054f}, {20, 0.0035907248966395855f}, {47, 9.502177e-06f}});
}

TEST_CASE("layers differ as the config says", "[model_description]") {
  const auto gemma = DescribeModel(kGemma3_12b);
  REQUIRE(gemma.ok());
  CHECK(gemma->embedding_tensor == "model.language_model.embed_tokens.weight");
  CHECK(gemma->blocks[0].in.parts[0].path == "model.language_model.layers.0.self_attn.q_proj");
  CHECK(gemma->vocabulary == 262208);
  for (const int layer : {0, 4, 5, 11, 12}) {
    INFO(layer);
    const Block& block = gemma->blocks[static_cast<size_t>(2 * layer)];
    const bool full = (layer + 1) % 6 == 0;
    CHECK(std::get<AttentionSpec>(block.mixer).window == (full ? 0 : 1024));
    CHECK(RopeOf(*gemma, layer).theta == (full ? 1e6 : 1e4));
    CHECK(RopeOf(*gemma, layer).type == (full ? "linear" : "default"));
    CHECK(block.norm->offset == 1);
    CHECK(block.out_norm->tensor == "model.language_model.layers." + std::to_string(layer) +
                                        ".post_attention_layernorm.weight");
  }
  const auto smol = DescribeModel(kSmolLm3_3b);
  REQUIRE(smol.ok());
  CHECK(RopeOf(*smol, 2).inverse_frequencies.size() == 64);
  CHECK(RopeOf(*smol, 3).inverse_frequencies.empty());
  const auto phi = DescribeModel(kPhi3_mini);
  REQUIRE(phi.ok());
  CHECK(TargetModules(*phi) ==
        std::vector<std::string>{"qkv_proj", "o_proj", "gate_up_proj", "down_proj"});
  CHECK(std::get<AttentionSpec>(phi->blocks[0].mixer).window == 2047);
  const auto olmo = DescribeModel(kOlmo2_7b);
  REQUIRE(olmo.ok());
  CHECK_FALSE(olmo->blocks[0].norm.has_value());
  CHECK(std::get<AttentionSpec>(olmo->blocks[0].mixer).qk_norm->k.size == 4096);
  const auto olmo3 = DescribeModel(kOlmo3_7b);
  REQUIRE(olmo3.ok());
  for (const int layer : {0, 2, 3, 7, 8}) {
    INFO(layer);
    const bool full = (layer + 1) % 4 == 0;
    CHECK(std::get<AttentionSpec>(olmo3->blocks[static_cast<size_t>(2 * layer)].mixer).window ==
          (full ? 0 : 4096));
    CHECK(RopeOf(*olmo3, layer).type == (full ? "yarn" : "default"));
    CHECK(RopeOf(*olmo3, layer).factor == (full ? 1.2079441541679836 : 1));
  }
  const auto mini = DescribeModel(kPhi4_mini);
  REQUIRE(mini.ok());
  CHECK(LongRopeBorder(*mini) == 4096);
  CHECK(RopeOf(*mini, 0).inverse_frequencies.size() == 48);
  CHECK(std::get<AttentionSpec>(mini->blocks[0].mixer).head_size == 128);
  const auto mistral3 = DescribeModel(kMistral3_24b);
  REQUIRE(mistral3.ok());
  CHECK(mistral3->in_tower);
  CHECK_FALSE(mistral3->tied_head);
  CHECK(mistral3->blocks[0].in.parts[0].path == "model.language_model.layers.0.self_attn.q_proj");
  // x is kept divided by the residual's factor.
  const auto granite = DescribeModel(kGranite33_8b);
  REQUIRE(granite.ok());
  CHECK(granite->embedding_factor == Approx(12 / 0.22));
  CHECK(granite->blocks[0].norm->eps == Approx(1e-5 / (0.22 * 0.22)));
  CHECK(granite->final_norm.factor == Approx(1.0 / 16));
  CHECK(std::get<AttentionSpec>(granite->blocks[0].mixer).scale == 0.0078125);
}

TEST_CASE("caps are those that transformers applies", "[model_description]") {
  const auto cap_of = [](const ModelDescription& model) {
    return std::get<AttentionSpec>(model.blocks[0].mixer).cap;
  };
  const auto gemma2 = DescribeModel(kGemma2_2b);
  REQUIRE(gemma2.ok());
  CHECK(cap_of(*gemma2) == 50);
  CHECK(gemma2->logit_cap == 30);
  // Gemma 3 has the field of scores and does not read it; beside a tower it caps no logits either.
  nlohmann::json config = nlohmann::json::parse(kGemma3_12b);
  config["text_config"].merge_patch(
      {{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}});
  const auto tower = DescribeModel(config.dump());
  REQUIRE(tower.ok());
  CHECK(cap_of(*tower) == 0);
  CHECK(tower->logit_cap == 0);
  const auto text = DescribeModel(config["text_config"].dump());
  INFO(text.status().ToString());
  REQUIRE(text.ok());
  CHECK(cap_of(*text) == 0);
  CHECK(text->logit_cap == 30);
}

TEST_CASE("kinds of layers turn alike in both spellings", "[model_description]") {
  const auto older = DescribeModel(kGemma3_12b);
  const auto newer = DescribeModel(Patched(kGemma3_12b, R"({"text_config": {"rope_scaling": null,
    "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}})"));
  REQUIRE(older.ok());
  INFO(newer.status().ToString());
  REQUIRE(newer.ok());
  for (const int layer : {0, 5}) CHECK(RopeOf(*older, layer) == RopeOf(*newer, layer));
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
      {Patched(kTiny, R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"})"),
       "MODEL_UNSUPPORTED: architecture \"MixtralForCausalLM\" (model_type \"mixtral\") is not "
       "implemented (mixtures of experts are not implemented); these are: LlamaForCausalLM"},
      {Patched(kTiny, R"({"architectures": ["Qwen3NextForCausalLM"], "model_type": null})"),
       "linear attention and state spaces are not implemented"},
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
       "MODEL_UNSUPPORTED: hidden_act = \"gelu\" is not implemented (\"silu\" and "
       "\"gelu_pytorch_tanh\" are)"},
      {Patched(kGemma2_2b, R"({"hidden_act": null, "hidden_activation": "gelu"})"),
       "hidden_activation = \"gelu\" is not implemented"},
      {Patched(kGemma2_2b, R"({"hidden_act": "gelu"})"), "both given, and differ"},
      {Patched(kGemma2_2b, R"({"use_bidirectional_attention": true})"),
       "use_bidirectional_attention = true is not implemented"},
      {Patched(kTiny, R"({"attention_dropout": 0.1})"), "attention_dropout = 0.1"},
      {Patched(kTiny, R"({"quantization_config": {"bits": 4}})"), "\"quantization_config\" = {"},
      {Patched(kTiny, R"({"attn_logit_softcapping": 50.0})"), "\"attn_logit_softcapping\" = 50.0"},
      {With(kTiny, "attn_logit_softcapping", "null"), "ok"},
      {Patched(kTiny, R"({"auto_map": {"AutoModel": "x.y"}})"), "\"auto_map\""},
      {Patched(kTiny, R"({"mlp_bias": true, "attention_bias": true})"), "ok"},
      {Patched(kMistral_7b_v03, R"({"attention_bias": true})"), "attention_bias = true"},
      {Patched(kMistral_7b_v03, R"({"sliding_window": 4096})"), "ok"},
      {Patched(kMistral_7b_v03, R"({"sliding_window": 0})"),
       "sliding_window is 0; it must be a whole number from 1"},
      {Patched(kTiny, R"({"sliding_window": 16})"), "this architecture has no window"},
      {Patched(kQwen2_7b, R"({"use_sliding_window": true, "sliding_window": 4096})"), "ok"},
      {Patched(kQwen2_7b, R"({"layer_types": ["full_attention", "sliding_attention"]})"),
       "layer_types has 2 entries, num_hidden_layers is 28"},
      {Patched(kTiny, R"({"layer_types": ["full_attention", "sliding_attention"]})"),
       "layer_types names sliding_attention, but there is no sliding_window"},
      {Patched(kTiny, R"({"layer_types": ["full_attention", "linear_attention"]})"),
       "layer_types: \"linear_attention\" is not implemented (full_attention and "
       "sliding_attention are)"},
      {Patched(kSmolLm3_3b, R"({"no_rope_layers": [1, 0]})"),
       "no_rope_layers has 2 entries, num_hidden_layers is 36"},
      {Patched(kSmolLm3_3b, R"({"num_hidden_layers": 2, "no_rope_layers": [1, 0, 1]})"), "ok"},
      {Patched(kTiny, R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})"),
       "rope_scaling.rope_type \"dynamic\" is not implemented (default, linear, llama3, yarn and "
       "longrope are)"},
      {Patched(kPhi4, R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 2]}})"),
       "short_factor must be a list of 64 numbers over 0"},
      {Patched(kGemma3_12b, R"({"text_config": {"rope_scaling": {"rope_type": "dynamic"}}})"),
       "text_config: rope_scaling.rope_type \"dynamic\" is not implemented"},
      {Patched(kGemma3_12b, R"({"text_config": {"model_type": "gemma4_text"}})"),
       "(model_type \"gemma4_text\") is not implemented"},
      {Patched(kGemma3_12b, R"({"text_config": null})"), "text_config is missing"},
      {Patched(kTiny, R"({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}})"),
       "rope_scaling.low_freq_factor is missing"},
      {Patched(kTiny, R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})"),
       "rope_scaling.\"factor\" = 2.0"},
      {Patched(kTiny, R"({"rope_scaling": 2})"), "rope_scaling must be an object"},
      {Patched(kTiny, R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})"),
       "rope_theta is given twice"},
      {Patched(kPhi3_mini, R"({"partial_rotary_factor": 0.33})"),
       "partial_rotary_factor: 31 of a head's 96 features cannot turn in pairs"},
      {Patched(kTiny,
               R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})"),
       "partial_rotary_factor = 0.5: heads of this architecture turn whole (1 is accepted)"},
      {Patched(kTiny, R"({"partial_rotary_factor": 1.0})"), "ok"},
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
