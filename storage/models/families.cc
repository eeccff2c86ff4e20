#include "storage/models/families.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/models/model_description.h"

namespace lorad::storage {
namespace {

constexpr char kUnsupported[] = "MODEL_UNSUPPORTED";
constexpr char kInvalid[] = "MODEL_INVALID";

constexpr std::string_view kGemmaDefaults =
    R"({"head_dim": 256, "tie_word_embeddings": true, "hidden_act": "gelu_pytorch_tanh"})";
constexpr std::string_view kGemma2Defaults =
    R"({"head_dim": 256, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0})";
// Published text_configs leave out nearly everything.
constexpr std::string_view kGemma3Defaults =
    R"({"head_dim": 256, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 262208,
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072})";
constexpr std::string_view kMistralDefaults = R"({"sliding_window": 4096})";
constexpr std::string_view kQwenDefaults =
    R"({"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": false})";
constexpr std::string_view kQwen3Defaults =
    R"({"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": false,
        "head_dim": 128})";
constexpr std::string_view kSmolLm3Defaults =
    R"({"tie_word_embeddings": true, "no_rope_layer_interval": 4})";
constexpr std::string_view kPhi3Defaults =
    R"({"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096})";
constexpr std::string_view kOlmo2Defaults = R"({"rms_norm_eps": 1e-5})";
constexpr std::string_view kOlmo3Defaults = R"({"rms_norm_eps": 1e-5, "sliding_window": 4096})";

using Biases = Family::Biases;
using Norms = Family::Norms;
using QkNorms = Family::QkNorms;
using Windows = Family::Windows;

constexpr std::array<Family, 14> kFamilies = {{
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .biases = Biases::kConfigured,
     .kv_heads_default_to_heads = true,
     .default_targets = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .defaults = kMistralDefaults,
     .windows = Windows::kAll,
     .default_targets = true},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .defaults = kQwenDefaults,
     .biases = Biases::kQkv,
     .windows = Windows::kSwitched,
     .default_targets = true},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .defaults = kQwen3Defaults,
     .biases = Biases::kAttention,
     .qk_norms = QkNorms::kOfHeads,
     .windows = Windows::kSwitched,
     .default_targets = true},
    {.architecture = "GemmaForCausalLM",
     .model_type = "gemma",
     .defaults = kGemmaDefaults,
     .biases = Biases::kAttention,
     .norm_offset = 1,
     .embeds_by_root = true,
     .default_targets = true},
    {.architecture = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .defaults = kGemma2Defaults,
     .biases = Biases::kAttention,
     .norms = Norms::kAround,
     .windows = Windows::kPattern,
     .window_pattern = 2,
     .norm_offset = 1,
     .embeds_by_root = true,
     .scores_scaled = true,
     .scores_capped = true,
     .default_targets = true},
    {.architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .defaults = kGemma3Defaults,
     .biases = Biases::kAttention,
     .norms = Norms::kAround,
     .qk_norms = QkNorms::kOfHeads,
     .windows = Windows::kPattern,
     .window_pattern = 6,
     .norm_offset = 1,
     .embeds_by_root = true,
     .scores_scaled = true,
     .rope_theta = 1e6,
     .rope_local_theta = 1e4,
     .rope_by_layer_type = true,
     .default_targets = true},
    {.architecture = "Gemma3ForConditionalGeneration", .model_type = "gemma3", .tower = true},
    {.architecture = "Mistral3ForConditionalGeneration", .model_type = "mistral3", .tower = true},
    {.architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .defaults = kPhi3Defaults,
     .kv_heads_default_to_heads = true,
     .windows = Windows::kAll,
     .fused = true,
     .turns_part = true,
     .takes_longrope = true},
    {.architecture = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .defaults = kSmolLm3Defaults,
     .biases = Biases::kConfigured,
     .windows = Windows::kNoPe,
     .rope_theta = 2e6},
    {.architecture = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .defaults = kOlmo2Defaults,
     .biases = Biases::kAttention,
     .kv_heads_default_to_heads = true,
     .norms = Norms::kBehind,
     .qk_norms = QkNorms::kOfRows},
    {.architecture = "Olmo3ForCausalLM",
     .model_type = "olmo3",
     .defaults = kOlmo3Defaults,
     .biases = Biases::kAttention,
     .kv_heads_default_to_heads = true,
     .norms = Norms::kBehind,
     .qk_norms = QkNorms::kOfRows,
     .windows = Windows::kPattern,
     .window_pattern = 4,
     .rope_theta = 5e5,
     .rope_local_theta = 5e5,
     .rope_by_layer_type = true},
    {.architecture = "GraniteForCausalLM",
     .model_type = "granite",
     .biases = Biases::kConfigured,
     .kv_heads_default_to_heads = true,
     .multipliers = true},
}};

// Why a config that none of these families has is refused, where there is more to say.
std::string_view Hint(std::string_view architecture) {
  const auto has = [architecture](std::string_view part) {
    return absl::StrContains(Absl(architecture), Absl(part));
  };
  if (has("Moe") || has("Mixtral") || has("GptOss") || has("DeepseekV")) {
    return " (mixtures of experts are not implemented)";
  }
  if (has("Mamba") || has("Jamba") || has("Next") || has("Hybrid") || has("Lfm") || has("Bamba")) {
    return " (linear attention and state spaces are not implemented)";
  }
  return "";
}

absl::StatusOr<const Family*> Find(std::string_view named, std::string_view type, bool towers) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.tower && !towers) continue;
    const bool named_so = named.empty() || named == family.architecture;
    const bool typed_so = type.empty() || type == family.model_type;
    if (named_so && typed_so) return &family;
    absl::StrAppend(&known, known.empty() ? "" : ", ", Absl(family.architecture));
  }
  return Refuse(kUnsupported,
                absl::StrCat("architecture ", Quoted(named), " (model_type ", Quoted(type),
                             ") is not implemented", Absl(Hint(named)), "; these are: ", known));
}

}  // namespace

std::vector<std::string> DefaultTargetModules(std::string_view architecture) {
  const auto family = std::ranges::find(kFamilies, architecture, &Family::architecture);
  if (family == kFamilies.end() || !family->default_targets) return {};
  return {"q_proj", "v_proj"};
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
  return Find(named, type, true);
}

absl::StatusOr<const Family*> FindTextFamily(ConfigReader& config) {
  const std::string type = config.String("model_type", "");
  if (type.empty()) return Refuse(kInvalid, "text_config.model_type is missing");
  config.Find("architectures");
  return Find("", type, false);
}

}  // namespace lorad::storage
