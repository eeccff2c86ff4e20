#include "storage/adapters/peft_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "sizes/batch.h"
#include "storage/files/config_reader.h"
#include "storage/files/errors.h"
#include "storage/files/json.h"

namespace lorad::storage {
namespace {

constexpr char kInvalid[] = "ADAPTER_INVALID";
constexpr char kUnsupported[] = "ADAPTER_UNSUPPORTED";
constexpr int kLayersMax = 1 << 16;

// A list of module names as PEFT has it, or one text.
struct NamesOrText {
  std::vector<std::string> names;  // sorted, no doubles
  std::string text;
};

NamesOrText ReadModules(ConfigReader& config, const char* field, const nlohmann::json& value) {
  NamesOrText out;
  if (value.is_string()) {
    out.text = value.get<std::string>();
    return out;
  }
  if (!value.is_array() || value.empty() || value.size() > kModuleNamesMax) {
    config.Problem(absl::StrCat(field, " must be a list of 1 to ", kModuleNamesMax,
                                " module names, or a regular expression"));
    return out;
  }
  std::set<std::string> names;
  for (const nlohmann::json& item : value) {
    const std::string name = item.is_string() ? item.get<std::string>() : "";
    if (!IsModuleName(name)) {
      config.Problem(
          absl::StrCat(field, " has ", Quoted(name), "; give names such as q_proj, or paths"));
      return out;
    }
    names.insert(name);
  }
  out.names.assign(names.begin(), names.end());
  return out;
}

void ReadTargets(ConfigReader& config, bool needs_targets, PeftConfig* out) {
  const nlohmann::json* targets = config.Find("target_modules");
  if (targets == nullptr) {
    if (needs_targets) config.Problem("target_modules is missing");
    return;
  }
  if (*targets == "") {  // in PEFT an expression that matches nothing
    config.Problem("target_modules is empty: name modules such as q_proj, or leave it out");
    return;
  }
  NamesOrText read = ReadModules(config, "target_modules", *targets);
  out->all_linear = absl::AsciiStrToLower(read.text) == "all-linear";
  if (!out->all_linear) out->target_regex = std::move(read.text);
  out->target_modules = std::move(read.names);
}

bool IsEmpty(const nlohmann::json& value) {
  return value == "" || (value.is_structured() && value.empty());
}

void ReadExcluded(ConfigReader& config, PeftConfig* out) {
  const nlohmann::json* excluded = config.Find("exclude_modules");
  if (excluded == nullptr || IsEmpty(*excluded)) return;
  NamesOrText read = ReadModules(config, "exclude_modules", *excluded);
  out->exclude_modules = std::move(read.names);
  out->exclude_regex = std::move(read.text);
}

// A number or a list of them; a name or a list of them.
void ReadLayers(ConfigReader& config, PeftConfig* out) {
  if (const nlohmann::json* layers = config.Find("layers_to_transform"); layers != nullptr) {
    std::set<int> numbers;
    for (const nlohmann::json& layer :
         layers->is_array() ? *layers : nlohmann::json::array({*layers})) {
      const bool fits = layer.is_number_unsigned() && layer.get<uint64_t>() < kLayersMax;
      if (!fits) config.Problem("layers_to_transform must be numbers of layers, from 0 on");
      if (fits) numbers.insert(layer.get<int>());
    }
    out->layers_to_transform.assign(numbers.begin(), numbers.end());
  }
  const nlohmann::json* pattern = config.Find("layers_pattern");
  if (pattern == nullptr || IsEmpty(*pattern)) return;
  for (const nlohmann::json& item :
       pattern->is_array() ? *pattern : nlohmann::json::array({*pattern})) {
    if (!item.is_string()) {
      config.Problem("layers_pattern must be names such as layers");
      return;
    }
    out->layers_pattern.push_back(item.get<std::string>());
  }
}

// As PEFT refuses to read them, too.
void CheckLayers(ConfigReader& config, const PeftConfig& read) {
  const bool by_text = read.all_linear || !read.target_regex.empty();
  if (by_text && !read.layers_to_transform.empty()) {
    config.Problem(
        "layers_to_transform needs target_modules as a list of names: write the layers into the "
        "regular expression, or list the names");
  }
  if (!read.layers_pattern.empty() && read.layers_to_transform.empty()) {
    config.Problem("layers_pattern needs layers_to_transform");
  }
}

// {"q_proj": 16}, with numbers that `read` takes or complains of.
template <class Value, class Read>
void ReadPattern(ConfigReader& config, const char* field, Read read,
                 std::map<std::string, Value>* out) {
  const nlohmann::json* table = config.Find(field);
  if (table == nullptr) return;
  if (!table->is_object() || table->size() > kModuleNamesMax) {
    config.Problem(absl::StrCat(field, " must be an object of at most ", kModuleNamesMax,
                                " module names with their numbers"));
    return;
  }
  ConfigReader entries(*table, absl::StrCat(field, "."));
  for (const auto& [pattern, value] : table->items()) {
    if (pattern.empty()) entries.Problem(absl::StrCat(field, " has an empty name"));
    out->emplace(pattern, read(entries, pattern));
  }
  config.Append(entries.problems());
}

void ReadPatterns(ConfigReader& config, PeftConfig* out) {
  ReadPattern(
      config, "rank_pattern",
      [](ConfigReader& entries, const std::string& pattern) {
        return static_cast<int>(entries.Integer(pattern, 1, sizes::kRankMax));
      },
      &out->rank_pattern);
  ReadPattern(
      config, "alpha_pattern",
      [](ConfigReader& entries, const std::string& pattern) {
        return entries.Number(pattern, kAlphaMin, kAlphaMax);
      },
      &out->alpha_pattern);
}

// Kinds of initialization that leave the base model's weights as they are. The others (PiSSA,
// OLoRA, CorDA, LoftQ, LoRA-GA) train against changed weights that the adapter does not hold.
void CheckInitialization(ConfigReader& config, PeftConfig* out) {
  const nlohmann::json* init = config.Find("init_lora_weights");
  out->usual_start = init == nullptr || *init == true;
  if (init == nullptr || init->is_boolean()) return;
  for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
    if (*init == harmless) return;
  }
  config.OnlyNeutral("init_lora_weights", true);
}

// PEFT's own files have a whole alpha as an integer; vLLM's reader wants it so.
nlohmann::json AlphaJson(double alpha) {
  if (alpha == std::floor(alpha)) return static_cast<int64_t>(alpha);
  return alpha;
}

}  // namespace

bool PeftConfig::has_patterns() const {
  const auto is_path = [](const std::string& name) { return name.find('.') != std::string::npos; };
  return all_linear || !target_regex.empty() || !exclude_modules.empty() ||
         !exclude_regex.empty() || !layers_to_transform.empty() || !rank_pattern.empty() ||
         !alpha_pattern.empty() || std::ranges::any_of(target_modules, is_path);
}

double LoraScale(double alpha, int64_t rank, bool rslora) {
  const auto ranks = static_cast<double>(rank);
  return rslora ? alpha / std::sqrt(ranks) : alpha / ranks;
}

bool IsModuleName(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.back() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.';
         });
}

absl::StatusOr<PeftConfig> ParsePeftConfig(std::string_view adapter_config_json,
                                           bool needs_targets) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(adapter_config_json, kInvalid);
  if (!json.ok()) return json.status();
  if (!json->is_object()) return Refuse(kInvalid, "the config must be a JSON object, {...}");
  ConfigReader config(*json, "");
  PeftConfig out;
  const std::string type = config.String("peft_type", "");
  if (type != "LORA") {
    return Refuse(kUnsupported,
                  absl::StrCat("peft_type ", Quoted(type), " is not implemented (LORA is)"));
  }
  out.rank = static_cast<int>(config.Integer("r", 1, sizes::kRankMax));
  out.alpha = config.Number("lora_alpha", kAlphaMin, kAlphaMax);
  out.dropout = config.Number("lora_dropout", 0, kDropoutMax, 0.0);
  out.rslora = config.Boolean("use_rslora", false);
  out.base_model = config.String("base_model_name_or_path", "");
  if (!config.problems().empty()) return config.Result(kInvalid);

  ReadTargets(config, needs_targets, &out);
  ReadExcluded(config, &out);
  ReadLayers(config, &out);
  CheckLayers(config, out);
  ReadPatterns(config, &out);
  if (!config.problems().empty()) return config.Result(kInvalid);

  CheckInitialization(config, &out);
  config.OnlyNeutral("bias", "none");
  config.OnlyNeutral("task_type", "CAUSAL_LM");
  for (const char* field :
       {"alora_invocation_tokens", "arrow_config", "corda_config", "ensure_weight_tying",
        "fan_in_fan_out", "kasa_config", "layer_replication", "loftq_config", "lora_bias",
        "lora_ga_config", "megatron_config", "modules_to_save", "monteclora_config",
        "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
        "velora_config"}) {
    config.OnlyEmpty(field);
  }
  // Notes, and settings of options that are refused when they are on.
  config.Ignore({"auto_mapping", "eva_config", "inference_mode", "megatron_core", "peft_version",
                 "qalora_group_size", "revision"});
  config.RefuseRest();
  if (!config.problems().empty()) return config.Result(kUnsupported);
  return out;
}

std::string WritePeftConfig(const PeftConfig& config) {
  nlohmann::json alphas = nlohmann::json::object();
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas[pattern] = AlphaJson(alpha);
  nlohmann::json json = {
      {"alora_invocation_tokens", nullptr},
      {"alpha_pattern", std::move(alphas)},
      {"arrow_config", nullptr},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", nullptr},
      {"bias", "none"},
      {"corda_config", nullptr},
      {"ensure_weight_tying", false},
      {"eva_config", nullptr},
      {"exclude_modules", nullptr},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"kasa_config", nullptr},
      {"layer_replication", nullptr},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"loftq_config", nlohmann::json::object()},
      {"lora_alpha", AlphaJson(config.alpha)},
      {"lora_bias", false},
      {"lora_dropout", config.dropout},
      {"lora_ga_config", nullptr},
      {"megatron_config", nullptr},
      {"megatron_core", "megatron.core"},
      {"modules_to_save", nullptr},
      {"monteclora_config", nullptr},
      {"peft_type", "LORA"},
      {"peft_version", "0.21.0"},
      {"qalora_group_size", 16},
      {"r", config.rank},
      {"rank_pattern", config.rank_pattern},
      {"revision", nullptr},
      {"target_modules", config.target_modules},
      {"target_parameters", nullptr},
      {"task_type", "CAUSAL_LM"},
      {"trainable_token_indices", nullptr},
      {"use_bdlora", nullptr},
      {"use_dora", false},
      {"use_qalora", false},
      {"use_rslora", config.rslora},
      {"velora_config", nullptr},
  };
  if (!config.base_model.empty()) json["base_model_name_or_path"] = config.base_model;
  if (config.all_linear) json["target_modules"] = "all-linear";
  if (!config.target_regex.empty()) json["target_modules"] = config.target_regex;
  if (!config.exclude_modules.empty()) json["exclude_modules"] = config.exclude_modules;
  if (!config.exclude_regex.empty()) json["exclude_modules"] = config.exclude_regex;
  if (!config.layers_to_transform.empty()) json["layers_to_transform"] = config.layers_to_transform;
  if (!config.layers_pattern.empty()) json["layers_pattern"] = config.layers_pattern;
  return json.dump(2) + "\n";
}

}  // namespace lorad::storage
