#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/config_reader.h"
#include "storage/files/errors.h"
#include "storage/files/json.h"
#include "storage/models/config_fields.h"
#include "storage/models/families.h"
#include "storage/models/layer_kinds.h"
#include "storage/models/model_description.h"
#include "storage/models/rope.h"

namespace lorad::storage {
namespace {

constexpr char kUnsupported[] = "MODEL_UNSUPPORTED";
constexpr char kInvalid[] = "MODEL_INVALID";

// What the blocks of every layer are built from.
struct Shape {
  std::string prefix;  // of tensors and paths: "model." or "model.language_model."
  int64_t hidden = 0;
  int64_t ffn = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  double eps = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  Activation activation = Activation::kSilu;
  double scale = 0;  // of scores
  double cap = 0;
  double residual_factor = 1;
};

// A layer that is being built.
struct Layer {
  const Family& family;
  const Shape& shape;
  int number = 0;

  std::string Path(std::string_view module) const {
    return absl::StrCat(shape.prefix, "layers.", number, ".", Absl(module));
  }
  LinearPart Part(std::string_view parent, std::string_view target, bool bias,
                  int64_t out_features) const {
    LinearPart part;
    part.path = absl::StrCat(Path(parent), ".", Absl(target));
    part.target = std::string(target);
    part.tensor = part.path + ".weight";
    if (bias) part.bias = part.path + ".bias";
    part.out_features = out_features;
    return part;
  }
  NormSpec Norm(std::string_view module, int64_t size, double eps) const {
    return {Path(module) + ".weight", size, eps, family.norm_offset};
  }
  // Before a block. The residual stream is kept divided by residual_factor, which the norm undoes
  // but for its eps: with x = r x', x' = x' + f(norm(r x')), and norm of r x' is that of x' with
  // eps / r^2.
  NormSpec NormBefore(std::string_view module) const {
    const double r = shape.residual_factor;
    return Norm(module, shape.hidden, shape.eps / (r * r));
  }
  NormSpec NormBehind(std::string_view module) const {
    return Norm(module, shape.hidden, shape.eps);
  }
};

void SetNorms(const Layer& layer, bool attention, Block& block) {
  const Family::Norms norms = layer.family.norms;
  if (norms != Family::Norms::kBehind) {
    block.norm = layer.NormBefore(attention                         ? "input_layernorm"
                                  : norms == Family::Norms::kAround ? "pre_feedforward_layernorm"
                                                                    : "post_attention_layernorm");
  }
  if (norms != Family::Norms::kBefore) {
    block.out_norm =
        layer.NormBehind(attention ? "post_attention_layernorm" : "post_feedforward_layernorm");
  }
}

Block AttentionBlock(const Layer& layer, const LayerKind& kind, const Ropes& ropes) {
  const Shape& shape = layer.shape;
  const int64_t q = int64_t{shape.heads} * shape.head_size;
  const int64_t kv = int64_t{shape.kv_heads} * shape.head_size;
  Block block;
  block.layer = layer.number;
  SetNorms(layer, true, block);
  block.in.in_features = shape.hidden;
  if (layer.family.fused) {
    block.in.parts = {layer.Part("self_attn", "qkv_proj", shape.qkv_bias, q + 2 * kv)};
  } else {
    block.in.parts = {layer.Part("self_attn", "q_proj", shape.qkv_bias, q),
                      layer.Part("self_attn", "k_proj", shape.qkv_bias, kv),
                      layer.Part("self_attn", "v_proj", shape.qkv_bias, kv)};
  }
  AttentionSpec spec{.heads = shape.heads,
                     .kv_heads = shape.kv_heads,
                     .head_size = shape.head_size,
                     .scale = shape.scale,
                     .rope = {},
                     .window = kind.window,
                     .cap = shape.cap,
                     .qk_norm = {}};
  if (kind.rope) spec.rope = kind.sliding ? ropes.sliding : ropes.full;
  if (layer.family.qk_norms != Family::QkNorms::kNone) {
    const bool of_heads = layer.family.qk_norms == Family::QkNorms::kOfHeads;
    spec.qk_norm = {layer.Norm("self_attn.q_norm", of_heads ? shape.head_size : q, shape.eps),
                    layer.Norm("self_attn.k_norm", of_heads ? shape.head_size : kv, shape.eps)};
  }
  block.mixer = std::move(spec);
  block.out.in_features = q;
  block.out.parts = {layer.Part("self_attn", "o_proj", shape.output_bias, shape.hidden)};
  return block;
}

Block MlpBlock(const Layer& layer) {
  const Shape& shape = layer.shape;
  Block block;
  block.layer = layer.number;
  SetNorms(layer, false, block);
  block.in.in_features = shape.hidden;
  if (layer.family.fused) {
    block.in.parts = {layer.Part("mlp", "gate_up_proj", shape.mlp_bias, 2 * shape.ffn)};
  } else {
    block.in.parts = {layer.Part("mlp", "gate_proj", shape.mlp_bias, shape.ffn),
                      layer.Part("mlp", "up_proj", shape.mlp_bias, shape.ffn)};
  }
  block.mixer = GatedMlpSpec{shape.activation, shape.ffn};
  block.out.in_features = shape.ffn;
  block.out.parts = {layer.Part("mlp", "down_proj", shape.mlp_bias, shape.hidden)};
  return block;
}

void ReadBiases(ConfigReader& config, const Family& family, Shape& shape) {
  using Biases = Family::Biases;
  if (family.biases == Biases::kConfigured || family.biases == Biases::kAttention) {
    shape.qkv_bias = shape.output_bias = config.Boolean("attention_bias", false);
  } else {
    shape.qkv_bias = family.biases == Biases::kQkv;
    if (family.biases == Biases::kNone) config.OnlyNeutral("attention_bias", false);
  }
  if (family.biases == Biases::kConfigured) {
    shape.mlp_bias = config.Boolean("mlp_bias", false);
  } else if (family.biases != Biases::kQkv) {
    config.OnlyNeutral("mlp_bias", false);
  }
}

// hidden_activation, or hidden_act: both where they say the same.
void ReadActivation(ConfigReader& config, Shape& shape) {
  const std::string older = config.String("hidden_act", "");
  const std::string newer = config.String("hidden_activation", older);
  const std::string name = config.Has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string act = newer.empty() ? "silu" : newer;
  if (!older.empty() && older != newer) {
    config.Problem("hidden_act and hidden_activation are both given, and differ");
  } else if (act == "gelu_pytorch_tanh") {
    shape.activation = Activation::kGeluTanh;
  } else if (act != "silu") {
    config.Problem(absl::StrCat(name, " = ", Quoted(act),
                                " is not implemented (\"silu\" and \"gelu_pytorch_tanh\" are)"));
  }
}

Shape ReadShape(ConfigReader& config, const Family& family) {
  Shape shape;
  shape.hidden = config.Integer("hidden_size", 1, 1 << 17);
  shape.ffn = config.Integer("intermediate_size", 1, 1 << 20);
  shape.heads = static_cast<int>(config.Integer("num_attention_heads", 1, 1024));
  const std::optional<int64_t> kv_default =
      family.kv_heads_default_to_heads ? std::optional<int64_t>(shape.heads) : std::nullopt;
  shape.kv_heads = static_cast<int>(config.Integer("num_key_value_heads", 1, 1024, kv_default));
  if (!config.Has("head_dim") && shape.hidden % shape.heads != 0) {
    config.Problem("hidden_size is no multiple of num_attention_heads, and head_dim is not given");
  }
  shape.head_size =
      static_cast<int>(config.Integer("head_dim", 1, 1024, shape.hidden / shape.heads));
  if (shape.head_size % 2 != 0) {
    config.Problem(
        absl::StrCat("the head size is ", shape.head_size, "; rotary embeddings need an even one"));
  }
  if (shape.heads % shape.kv_heads != 0) {
    config.Problem("num_attention_heads is no multiple of num_key_value_heads");
  }
  shape.eps = config.Number("rms_norm_eps", 0, 1, 1e-6);
  ReadBiases(config, family, shape);
  return shape;
}

// How scores, embeddings and logits are scaled and capped.
void ReadFactors(ConfigReader& config, const Family& family, Shape& shape,
                 ModelDescription& model) {
  constexpr double kLeast = 1e-9, kMost = 1e9;
  shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_size));
  if (family.scores_scaled) {
    const double size = shape.head_size;
    shape.scale = 1.0 / std::sqrt(config.Number("query_pre_attn_scalar", kLeast, kMost, size));
    const double cap = config.Number("attn_logit_softcapping", kLeast, kMost, 0.0);
    if (family.scores_capped) shape.cap = cap;
    model.logit_cap = config.Number("final_logit_softcapping", kLeast, kMost, 0.0);
  }
  if (family.embeds_by_root) {
    model.embedding_factor = std::sqrt(static_cast<double>(shape.hidden));
    model.embedding_factor_rounds = true;
  }
  if (family.multipliers) {
    shape.scale = config.Number("attention_multiplier", kLeast, kMost, 1.0);
    shape.residual_factor = config.Number("residual_multiplier", kLeast, kMost, 1.0);
    model.embedding_factor =
        config.Number("embedding_multiplier", kLeast, kMost, 1.0) / shape.residual_factor;
    // Logits are linear in what the last norm leaves.
    model.final_norm.factor = 1.0 / config.Number("logits_scaling", kLeast, kMost, 1.0);
  }
}

// Names and blocks, once everything is read.
void Build(const Family& family, const Shape& shape, const std::vector<LayerKind>& kinds,
           const Ropes& ropes, ModelDescription& model) {
  const double r = shape.residual_factor;
  model.hidden = shape.hidden;
  model.embedding_tensor = shape.prefix + "embed_tokens.weight";
  model.final_norm = {shape.prefix + "norm.weight", shape.hidden, shape.eps / (r * r),
                      family.norm_offset, model.final_norm.factor};
  model.head_tensor = model.tied_head ? model.embedding_tensor : "lm_head.weight";
  for (int number = 0; number < model.layers; ++number) {
    const Layer layer{family, shape, number};
    model.blocks.push_back(AttentionBlock(layer, kinds[static_cast<size_t>(number)], ropes));
    model.blocks.push_back(MlpBlock(layer));
  }
}

// `json`: with the family's defaults; of a tower its text_config.
absl::StatusOr<ModelDescription> DescribeText(const nlohmann::json& json, const Family& family,
                                              std::string_view prefix) {
  ConfigReader config(json, "");
  config.Ignore({"architectures", "model_type"});
  if (family.takes_longrope) config.Ignore({"auto_map"});  // code that transformers has itself
  ModelDescription model;
  model.declared_type = config.String("dtype", config.String("torch_dtype", ""));
  model.layers = static_cast<int>(config.Integer("num_hidden_layers", 1, 1024));
  model.vocabulary = config.Integer("vocab_size", 1, 1 << 24);
  model.max_positions = config.Integer("max_position_embeddings", 1, 1 << 30);
  model.tied_head = config.Boolean("tie_word_embeddings", false);
  Shape shape = ReadShape(config, family);
  shape.prefix = std::string(prefix);
  if (!config.problems().empty()) return config.Result(kInvalid);

  ReadActivation(config, shape);
  ReadFactors(config, family, shape, model);
  const Ropes ropes = ReadRopes(config, family, shape.head_size, model.max_positions);
  const std::vector<LayerKind> kinds =
      ReadLayerKinds(config, family, model.layers, model.max_positions);
  CheckOtherFields(config);
  config.RefuseRest();
  if (!config.problems().empty()) return config.Result(kUnsupported);
  Build(family, shape, kinds, ropes, model);
  return model;
}

// What a config says over what its family takes where it says nothing.
nlohmann::json Completed(const Family& family, const nlohmann::json& config) {
  nlohmann::json whole = nlohmann::json::parse(family.defaults);
  whole.update(config);
  return whole;
}

// The text model of a config that has one beside a tower for images.
absl::StatusOr<ModelDescription> DescribeTower(ConfigReader& config) {
  const nlohmann::json* text = config.Find("text_config");
  if (text == nullptr || !text->is_object()) {
    return Refuse(kInvalid, "text_config is missing, or no object");
  }
  const std::string type = config.String("dtype", config.String("torch_dtype", ""));
  const bool tied_there = config.Has("tie_word_embeddings");
  const bool tied = config.Boolean("tie_word_embeddings", false);
  IgnoreTowerFields(config);
  config.RefuseRest();
  if (!config.problems().empty()) return config.Result(kUnsupported);
  ConfigReader fields(*text, "text_config.");
  const absl::StatusOr<const Family*> family = FindTextFamily(fields);
  if (!family.ok()) return family.status();
  nlohmann::json whole = Completed(**family, *text);
  if (tied_there) whole["tie_word_embeddings"] = tied;
  absl::StatusOr<ModelDescription> model = DescribeText(whole, **family, "model.language_model.");
  if (!model.ok()) return At("text_config", model.status());
  if (model->declared_type.empty()) model->declared_type = type;
  model->logit_cap = 0;  // beside a tower transformers caps no logits
  model->in_tower = true;
  return model;
}

}  // namespace

absl::StatusOr<ModelDescription> DescribeModel(std::string_view config_json) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(config_json, kInvalid);
  if (!json.ok()) return json.status();
  if (!json->is_object()) return Refuse(kInvalid, "the config must be a JSON object, {...}");
  ConfigReader config(*json, "");
  const absl::StatusOr<const Family*> family = FindFamily(config);
  if (!family.ok()) return family.status();
  absl::StatusOr<ModelDescription> model =
      (*family)->tower ? DescribeTower(config)
                       : DescribeText(Completed(**family, *json), **family, "model.");
  if (model.ok()) model->architecture = std::string((*family)->architecture);
  return model;
}

}  // namespace lorad::storage
