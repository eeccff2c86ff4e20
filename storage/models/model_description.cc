#include "storage/models/model_description.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/config_reader.h"
#include "storage/files/errors.h"
#include "storage/files/json.h"
#include "storage/models/rope.h"

namespace lorad::storage {
namespace {

constexpr char kUnsupported[] = "MODEL_UNSUPPORTED";
constexpr char kInvalid[] = "MODEL_INVALID";

enum class Biases { kNone, kQkv, kAsConfigured };

// The differences between the families; all else is shared.
struct Family {
  std::string_view architecture;
  std::string_view model_type;
  Biases biases;
  bool kv_heads_default_to_heads;
};

constexpr std::array<Family, 3> kFamilies = {{
    {"LlamaForCausalLM", "llama", Biases::kAsConfigured, true},
    {"MistralForCausalLM", "mistral", Biases::kNone, false},
    {"Qwen2ForCausalLM", "qwen2", Biases::kQkv, false},
}};

// Fields of published configs that change nothing that training computes: ids that the tokenizer's
// files settle, settings of generation, of initialization, of transformers' own working.
const std::vector<std::string_view>& HarmlessFields() {
  static const auto* const fields = new std::vector<std::string_view>{
      "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
      "_flash_attn_2_enabled", "_name_or_path", "attn_implementation", "bad_words_ids",
      "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "diversity_penalty",
      "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
      "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
      "forced_eos_token_id", "id2label", "initializer_range", "is_llama_config", "label2id",
      "length_penalty", "max_length", "max_sequence_length", "min_length", "name_or_path",
      "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
      "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix",
      "pretraining_tp", "problem_type", "remove_invalid_values", "repetition_penalty",
      "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
      "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torchscript",
      "transformers.js_config", "transformers_version", "typical_p", "unk_token_id",
      "unsloth_fixed", "unsloth_version", "use_cache",
      // Only with a window, which is refused by itself.
      "max_window_layers"};
  return *fields;
}

// Fields that mean something else than we compute, unless they say what is usual.
void CheckNeutralFields(ConfigReader& config) {
  config.OnlyNeutral("add_cross_attention", false);
  config.OnlyNeutral("attention_dropout", 0.0);
  config.OnlyNeutral("chunk_size_feed_forward", 0);
  config.OnlyNeutral("cross_attention_hidden_size", nullptr);
  config.OnlyNeutral("hidden_act", "silu");
  config.OnlyNeutral("hidden_dropout", 0.0);
  config.OnlyNeutral("is_decoder", false);
  config.OnlyNeutral("is_encoder_decoder", false);
  config.OnlyNeutral("partial_rotary_factor", 1.0);
  config.OnlyNeutral("pruned_heads", nlohmann::json::object());
  config.OnlyNeutral("resid_pdrop", 0.0);
  config.OnlyNeutral("rope_interleaved", false);
  config.OnlyNeutral("tie_encoder_decoder", false);
  config.OnlyNeutral("tf_legacy_loss", false);
  config.OnlyNeutral("use_bfloat16", false);
  config.OnlyNeutral("use_mrope", false);
}

void CheckNoWindow(ConfigReader& config, const Family& family, int64_t max_positions) {
  const nlohmann::json* window = config.Find("sliding_window");
  // Qwen2 carries a window that use_sliding_window switches off; Mistral's is on when it is there.
  const bool used = config.Boolean("use_sliding_window", family.model_type != "qwen2");
  const bool harmless =
      window == nullptr || (window->is_number_integer() && window->get<int64_t>() >= max_positions);
  if (used && !harmless) {
    config.Problem(absl::StrCat("sliding_window = ", window->dump(),
                                " is not implemented (null, or no shorter than "
                                "max_position_embeddings, is accepted)"));
  } else if (family.model_type == "qwen2" && used && window == nullptr) {
    // transformers then takes its default window of 4096.
    config.Problem("use_sliding_window = true is not implemented");
  }
  const nlohmann::json* types = config.Find("layer_types");
  if (types == nullptr) return;
  for (const nlohmann::json& type : *types) {
    if (type != "full_attention") {
      config.Problem(absl::StrCat(
          "layer_types: ",
          type.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 100),
          " is not implemented (full_attention is)"));
      return;
    }
  }
}

absl::StatusOr<const Family*> FindFamily(ConfigReader& config) {
  std::string named;
  if (const nlohmann::json* list = config.Find("architectures"); list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
      return Refuse(kInvalid, "architectures must be a list of one name");
    }
    named = (*list)[0].get<std::string>();
  }
  const std::string type = config.String("model_type", "");
  if (named.empty() && type.empty()) {
    return Refuse(kInvalid, "neither architectures nor model_type is given");
  }
  for (const Family& family : kFamilies) {
    const bool named_so = named.empty() || named == family.architecture;
    const bool typed_so = type.empty() || type == family.model_type;
    if (named_so && typed_so) return &family;
  }
  std::string known;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", Absl(family.architecture));
  }
  return Refuse(kUnsupported,
                absl::StrCat("architecture ", Quoted(named), " (model_type ", Quoted(type),
                             ") is not implemented; these are: ", known));
}

// The sizes from which the blocks of every layer are built.
struct Shape {
  int64_t hidden = 0;
  int64_t ffn = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  double eps = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
};

LinearPart MakePart(int layer, std::string_view parent, std::string_view target, bool bias,
                    int64_t out_features) {
  LinearPart part;
  part.module = absl::StrCat(Absl(parent), ".", Absl(target));
  part.target = std::string(target);
  const std::string path = absl::StrCat("model.layers.", layer, ".", part.module);
  part.tensor = path + ".weight";
  if (bias) part.bias = path + ".bias";
  part.out_features = out_features;
  return part;
}

Block AttentionBlock(int layer, const Shape& shape, const RopeSpec& rope) {
  const int64_t q = int64_t{shape.heads} * shape.head_size;
  const int64_t kv = int64_t{shape.kv_heads} * shape.head_size;
  Block block;
  block.layer = layer;
  block.norm = {absl::StrCat("model.layers.", layer, ".input_layernorm.weight"), shape.eps};
  block.in.in_features = shape.hidden;
  block.in.parts = {MakePart(layer, "self_attn", "q_proj", shape.qkv_bias, q),
                    MakePart(layer, "self_attn", "k_proj", shape.qkv_bias, kv),
                    MakePart(layer, "self_attn", "v_proj", shape.qkv_bias, kv)};
  block.mixer = AttentionSpec{shape.heads, shape.kv_heads, shape.head_size,
                              1.0 / std::sqrt(static_cast<double>(shape.head_size)), rope};
  block.out.in_features = q;
  block.out.parts = {MakePart(layer, "self_attn", "o_proj", shape.output_bias, shape.hidden)};
  return block;
}

Block MlpBlock(int layer, const Shape& shape) {
  Block block;
  block.layer = layer;
  block.norm = {absl::StrCat("model.layers.", layer, ".post_attention_layernorm.weight"),
                shape.eps};
  block.in.in_features = shape.hidden;
  block.in.parts = {MakePart(layer, "mlp", "gate_proj", shape.mlp_bias, shape.ffn),
                    MakePart(layer, "mlp", "up_proj", shape.mlp_bias, shape.ffn)};
  block.mixer = GatedMlpSpec{Activation::kSilu, shape.ffn};
  block.out.in_features = shape.ffn;
  block.out.parts = {MakePart(layer, "mlp", "down_proj", shape.mlp_bias, shape.hidden)};
  return block;
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
  if (shape.head_size < 2 || shape.head_size % 2 != 0) {
    config.Problem(
        absl::StrCat("the head size is ", shape.head_size, "; rotary embeddings need an even one"));
  }
  if (shape.heads % shape.kv_heads != 0) {
    config.Problem("num_attention_heads is no multiple of num_key_value_heads");
  }
  shape.eps = config.Number("rms_norm_eps", 0, 1, 1e-6);
  if (family.biases == Biases::kAsConfigured) {
    shape.qkv_bias = shape.output_bias = config.Boolean("attention_bias", false);
    shape.mlp_bias = config.Boolean("mlp_bias", false);
  } else if (family.biases == Biases::kQkv) {
    shape.qkv_bias = true;
  } else {
    config.OnlyNeutral("attention_bias", false);
    config.OnlyNeutral("mlp_bias", false);
  }
  return shape;
}

}  // namespace

int64_t LinearGroup::out_features() const {
  int64_t sum = 0;
  for (const LinearPart& part : parts) sum += part.out_features;
  return sum;
}

absl::StatusOr<ModelDescription> DescribeModel(std::string_view config_json) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(config_json, kInvalid);
  if (!json.ok()) return json.status();
  if (!json->is_object()) return Refuse(kInvalid, "the config must be a JSON object, {...}");
  ConfigReader config(*json, "");
  const absl::StatusOr<const Family*> family = FindFamily(config);
  if (!family.ok()) return family.status();

  ModelDescription model;
  model.architecture = std::string((*family)->architecture);
  model.declared_type = config.String("dtype", config.String("torch_dtype", ""));
  model.layers = static_cast<int>(config.Integer("num_hidden_layers", 1, 1024));
  model.vocabulary = config.Integer("vocab_size", 1, 1 << 24);
  model.max_positions = config.Integer("max_position_embeddings", 1, 1 << 30);
  model.tied_head = config.Boolean("tie_word_embeddings", false);
  const Shape shape = ReadShape(config, **family);
  model.hidden = shape.hidden;
  if (!config.problems().empty()) return config.Result(kInvalid);

  const RopeSpec rope = ReadRope(config, shape.head_size);
  CheckNoWindow(config, **family, model.max_positions);
  CheckNeutralFields(config);
  config.Ignore(HarmlessFields());
  config.RefuseRest();
  if (!config.problems().empty()) return config.Result(kUnsupported);

  model.embedding_tensor = "model.embed_tokens.weight";
  model.final_norm = {"model.norm.weight", shape.eps};
  model.head_tensor = model.tied_head ? model.embedding_tensor : "lm_head.weight";
  for (int layer = 0; layer < model.layers; ++layer) {
    model.blocks.push_back(AttentionBlock(layer, shape, rope));
    model.blocks.push_back(MlpBlock(layer, shape));
  }
  return model;
}

std::vector<NamedShape> AllTensors(const ModelDescription& description) {
  std::vector<NamedShape> tensors = {
      {description.embedding_tensor, {description.vocabulary, description.hidden}},
      {description.final_norm.tensor, {description.hidden}}};
  if (!description.tied_head) {
    tensors.push_back({description.head_tensor, {description.vocabulary, description.hidden}});
  }
  for (const Block& block : description.blocks) {
    tensors.push_back({block.norm.tensor, {block.in.in_features}});
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        tensors.push_back({part.tensor, {part.out_features, group->in_features}});
        if (!part.bias.empty()) tensors.push_back({part.bias, {part.out_features}});
      }
    }
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedShape& a, const NamedShape& b) { return a.name < b.name; });
  return tensors;
}

std::vector<std::string> TargetModules(const ModelDescription& description) {
  std::vector<std::string> targets;
  for (const Block& block : description.blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        if (std::find(targets.begin(), targets.end(), part.target) == targets.end()) {
          targets.push_back(part.target);
        }
      }
    }
  }
  return targets;
}

int64_t ParameterCount(const ModelDescription& description) {
  int64_t count = 0;
  for (const NamedShape& tensor : AllTensors(description)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    count += elements;
  }
  return count;
}

std::string ModulePath(const Block& block, const LinearPart& part) {
  return absl::StrCat("model.layers.", block.layer, ".", part.module);
}

}  // namespace lorad::storage
