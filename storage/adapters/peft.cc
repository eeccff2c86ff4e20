#include "storage/adapters/peft.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sizes/batch.h"
#include "storage/adapters/module_regex.h"
#include "storage/files/config_reader.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/files/json.h"

namespace lorad::storage {
namespace {

constexpr char kInvalid[] = "ADAPTER_INVALID";
constexpr char kUnsupported[] = "ADAPTER_UNSUPPORTED";
constexpr char kKeyPrefix[] = "base_model.model.";
constexpr uint64_t kConfigLimit = uint64_t{1} << 20;
constexpr size_t kTargetLimit = 1000;

// The last name of a module path: what target_modules matches.
std::string_view Leaf(std::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? module : module.substr(dot + 1);
}

// Of a module, or of several with dots between.
bool IsModuleName(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.back() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.';
         });
}

bool MeansModule(std::string_view name, std::string_view path) {
  return path == name || absl::EndsWith(Absl(path), absl::StrCat(".", Absl(name)));
}

// Which of some modules the config means. Problems: a name or an expression that means none.
class Targets {
 public:
  static absl::StatusOr<Targets> Of(const PeftConfig& config) {
    Targets targets(config);
    if (config.target_regex.empty()) return targets;
    absl::StatusOr<ModuleRegex> regex = ModuleRegex::Compile(config.target_regex);
    if (!regex.ok()) return regex.status();
    targets.regex_ = *std::move(regex);
    return targets;
  }

  absl::StatusOr<bool> Mean(std::string_view path) {
    if (config_->all_linear) return true;
    if (regex_) {
      absl::StatusOr<bool> matches = regex_->Matches(path);
      if (matches.ok() && *matches) used_.insert(config_->target_regex);
      return matches;
    }
    bool mean = false;
    for (const std::string& name : config_->target_modules) {
      if (!MeansModule(name, path)) continue;
      used_.insert(name);
      mean = true;
    }
    return mean;
  }

  // Names, or the expression, that meant none of the modules so far.
  std::vector<std::string> Unused() const {
    std::vector<std::string> unused;
    if (regex_ && used_.empty()) unused.push_back(config_->target_regex);
    for (const std::string& name : config_->target_modules) {
      if (used_.count(name) == 0) unused.push_back(name);
    }
    return unused;
  }

 private:
  explicit Targets(const PeftConfig& config) : config_(&config) {}

  const PeftConfig* config_;
  std::optional<ModuleRegex> regex_;
  std::set<std::string> used_;
};

void ReadTargets(ConfigReader& config, PeftConfig* out) {
  const nlohmann::json* targets = config.Find("target_modules");
  if (targets == nullptr) {
    config.Problem("target_modules is missing");
    return;
  }
  if (targets->is_string()) {
    const std::string text = targets->get<std::string>();
    if (text == "all-linear") {
      out->all_linear = true;
    } else {
      out->target_regex = text;
    }
    return;
  }
  if (!targets->is_array() || targets->empty() || targets->size() > kTargetLimit) {
    config.Problem("target_modules must be a list of module names");
    return;
  }
  std::set<std::string> names;
  for (const nlohmann::json& target : *targets) {
    const std::string name = target.is_string() ? target.get<std::string>() : "";
    if (!IsModuleName(name)) {
      config.Problem(absl::StrCat("target_modules has ", Quoted(name),
                                  "; give names such as q_proj, or paths"));
      return;
    }
    names.insert(name);
  }
  out->target_modules.assign(names.begin(), names.end());
}

// Kinds of initialization that leave the base model's weights as they are. The others (PiSSA,
// OLoRA, CorDA, LoftQ, LoRA-GA) train against changed weights that the adapter does not hold.
void CheckInitialization(ConfigReader& config) {
  const nlohmann::json* init = config.Find("init_lora_weights");
  if (init == nullptr || init->is_boolean()) return;
  for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
    if (*init == harmless) return;
  }
  config.OnlyNeutral("init_lora_weights", true);
}

// Splits "base_model.model.PATH.lora_A.weight"; false if the key is none of these.
bool SplitKey(std::string_view key, std::string_view* module, char* matrix) {
  constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
  const std::string_view prefix = kKeyPrefix;
  if (key.size() <= prefix.size() + kA.size() || key.substr(0, prefix.size()) != prefix)
    return false;
  const std::string_view tail = key.substr(key.size() - kA.size());
  if (tail != kA && tail != kB) return false;
  *module = key.substr(prefix.size(), key.size() - prefix.size() - kA.size());
  *matrix = tail == kA ? 'A' : 'B';
  return true;
}

// One matrix: type, dimensions, rank, and its partner.
void CheckMatrix(const PeftConfig& config, const SafetensorsHeader& header,
                 const TensorInfo& tensor, std::string_view module, char matrix,
                 Problems* problems) {
  const char other = matrix == 'A' ? 'B' : 'A';
  if (!IsFloatType(tensor.type)) {
    problems->Add(absl::StrCat("tensor ", Quoted(tensor.name), " has type ",
                               Absl(TensorTypeName(tensor.type)), "; F32, F16 and BF16 are read"));
  }
  const size_t rank_axis = matrix == 'A' ? 0 : 1;
  if (tensor.shape.size() != 2 || tensor.shape[rank_axis] != config.rank ||
      tensor.shape[1 - rank_axis] < 1) {
    problems->Add(absl::StrCat("tensor ", Quoted(tensor.name), " has shape ",
                               ShapeString(tensor.shape), ", but r is ", config.rank));
  }
  if (header.Find(PeftKey(module, other)) == nullptr) {
    problems->Add(absl::StrCat("missing tensor ", Quoted(PeftKey(module, other))));
  }
}

}  // namespace

double PeftConfig::scale() const {
  return rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / rank;
}

absl::StatusOr<PeftConfig> ParsePeftConfig(std::string_view adapter_config_json) {
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
  out.alpha = config.Number("lora_alpha", kAlphaMin, 1e9);
  out.dropout = config.Number("lora_dropout", 0, kDropoutMax, 0.0);
  out.rslora = config.Boolean("use_rslora", false);
  out.base_model = config.String("base_model_name_or_path", "");
  if (!config.problems().empty()) return config.Result(kInvalid);

  ReadTargets(config, &out);
  CheckInitialization(config);
  config.OnlyNeutral("bias", "none");
  config.OnlyNeutral("task_type", "CAUSAL_LM");
  for (const char* field : {"alora_invocation_tokens",
                            "alpha_pattern",
                            "arrow_config",
                            "corda_config",
                            "ensure_weight_tying",
                            "exclude_modules",
                            "fan_in_fan_out",
                            "kasa_config",
                            "layer_replication",
                            "layers_pattern",
                            "layers_to_transform",
                            "loftq_config",
                            "lora_bias",
                            "lora_ga_config",
                            "megatron_config",
                            "modules_to_save",
                            "monteclora_config",
                            "rank_pattern",
                            "target_parameters",
                            "trainable_token_indices",
                            "use_bdlora",
                            "use_dora",
                            "use_qalora",
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
  nlohmann::json json = {
      {"alora_invocation_tokens", nullptr},
      {"alpha_pattern", nlohmann::json::object()},
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
      {"lora_alpha", config.alpha},
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
      {"rank_pattern", nlohmann::json::object()},
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
  // PEFT's own files have a whole alpha as an integer; vLLM's reader wants it so.
  if (config.alpha == std::floor(config.alpha)) {
    json["lora_alpha"] = static_cast<int64_t>(config.alpha);
  }
  if (!config.base_model.empty()) json["base_model_name_or_path"] = config.base_model;
  if (config.all_linear) json["target_modules"] = "all-linear";
  if (!config.target_regex.empty()) json["target_modules"] = config.target_regex;
  return json.dump(2) + "\n";
}

absl::StatusOr<std::vector<std::string>> ResolveTargets(const PeftConfig& config,
                                                        const ModelDescription& description) {
  const std::vector<std::string> modules = TargetModules(description);
  // PEFT's "all-linear" leaves the output head out, as TargetModules does.
  if (config.all_linear) return modules;
  absl::StatusOr<Targets> targets = Targets::Of(config);
  if (!targets.ok()) return targets.status();
  std::set<std::string> meant, others;
  for (const Block& block : description.blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        const absl::StatusOr<bool> mean = targets->Mean(part.path);
        if (!mean.ok()) return mean.status();
        (*mean ? meant : others).insert(part.target);
      }
    }
  }
  for (const std::string& name : targets->Unused()) {
    return Refuse(kInvalid, absl::StrCat("the model has no target module ", Quoted(name),
                                         "; it has: ", absl::StrJoin(modules, ", ")));
  }
  std::vector<std::string> resolved;
  for (const std::string& module : modules) {
    if (meant.count(module) == 0) continue;
    if (others.count(module) != 0) {
      return Refuse(kUnsupported, absl::StrCat("target_modules means ", Quoted(module),
                                               " of some layers alone, which is not implemented"));
    }
    resolved.push_back(module);
  }
  return resolved;
}

PeftConfig ForTensors(const PeftConfig& config, const SafetensorsHeader& header) {
  constexpr std::string_view kText = "model.language_model.layers.";
  std::string_view module;
  char matrix = 0;
  if (header.tensors.empty() || !SplitKey(header.tensors.front().name, &module, &matrix) ||
      module.substr(0, kText.size()) != kText) {
    return config;
  }
  PeftConfig precise = config;
  precise.target_regex = absl::StrCat(R"(model\.language_model\.layers\.\d+\.\w+\.()",
                                      absl::StrJoin(config.target_modules, "|"), ")");
  precise.target_modules.clear();
  return precise;
}

std::string PeftKey(std::string_view module_path, char matrix) {
  assert(matrix == 'A' || matrix == 'B');
  return absl::StrCat(kKeyPrefix, Absl(module_path), matrix == 'A' ? ".lora_A" : ".lora_B",
                      ".weight");
}

std::vector<NamedShape> PeftTensors(const ModelDescription& description, int rank,
                                    const std::vector<std::string>& targets) {
  std::vector<NamedShape> tensors;
  for (const Block& block : description.blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        if (std::find(targets.begin(), targets.end(), part.target) == targets.end()) continue;
        const std::string& path = part.path;
        tensors.push_back({PeftKey(path, 'A'), {rank, group->in_features}});
        tensors.push_back({PeftKey(path, 'B'), {part.out_features, rank}});
      }
    }
  }
  return tensors;
}

absl::StatusOr<std::vector<std::string>> CheckAdapterTensors(const PeftConfig& config,
                                                             const SafetensorsHeader& header) {
  absl::StatusOr<Targets> targets = Targets::Of(config);
  if (!targets.ok()) return targets.status();
  Problems problems;
  std::set<std::string, std::less<>> modules, strangers;
  for (const TensorInfo& tensor : header.tensors) {
    std::string_view module;
    char matrix = 0;
    if (!SplitKey(tensor.name, &module, &matrix)) {
      problems.Add(absl::StrCat("tensor ", Quoted(tensor.name),
                                " is not named as PEFT names LoRA matrices (", PeftKey("PATH", 'A'),
                                ")"));
      continue;
    }
    CheckMatrix(config, header, tensor, module, matrix, &problems);
    const absl::StatusOr<bool> mean = targets->Mean(module);
    if (!mean.ok()) return mean.status();
    modules.emplace(Leaf(module));
    if (!*mean) strangers.emplace(Leaf(module));
  }
  for (const std::string& name : targets->Unused()) {
    problems.Add(absl::StrCat("no tensors for target module ", Quoted(name)));
  }
  for (const std::string& module : strangers) {
    problems.Add(absl::StrCat("tensors for ", Quoted(module), ", which target_modules lacks"));
  }
  if (header.tensors.empty()) problems.Add("no tensors at all");
  if (absl::Status status = problems.Result(kInvalid); !status.ok()) return status;
  return std::vector<std::string>(modules.begin(), modules.end());
}

PeftAdapter::PeftAdapter(PeftConfig config, SafetensorsReader file,
                         std::vector<std::string> modules)
    : config_(std::move(config)), file_(std::move(file)), modules_(std::move(modules)) {}

absl::StatusOr<PeftAdapter> PeftAdapter::Open(const std::string& directory, Files& files) {
  const std::string config_path = JoinPath(directory, kAdapterConfigFile);
  const absl::StatusOr<std::string> text = files.ReadAll(config_path, kConfigLimit);
  if (!text.ok()) return text.status();
  absl::StatusOr<PeftConfig> config = ParsePeftConfig(*text);
  if (!config.ok()) return At(config_path, config.status());
  absl::StatusOr<SafetensorsReader> file =
      SafetensorsReader::Open(JoinPath(directory, kAdapterModelFile), files);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::vector<std::string>> modules = CheckAdapterTensors(*config, file->header());
  if (!modules.ok()) return At(file->path(), modules.status());
  return PeftAdapter(*std::move(config), *std::move(file), *std::move(modules));
}

absl::Status PeftAdapter::CheckFits(const ModelDescription& description) const {
  const absl::StatusOr<std::vector<std::string>> targets = ResolveTargets(config_, description);
  if (!targets.ok()) return targets.status();
  Problems problems;
  std::set<std::string> known;
  for (const NamedShape& expected : PeftTensors(description, config_.rank, *targets)) {
    known.insert(expected.name);
    const TensorInfo* tensor = file_.Find(expected.name);
    if (tensor == nullptr) {
      problems.Add(absl::StrCat("missing tensor ", Quoted(expected.name)));
    } else if (tensor->shape != expected.shape) {
      problems.Add(absl::StrCat("tensor ", Quoted(expected.name), " has shape ",
                                ShapeString(tensor->shape), ", the base model asks for ",
                                ShapeString(expected.shape)));
    }
  }
  for (const TensorInfo& tensor : file_.tensors()) {
    if (known.count(tensor.name) == 0) {
      problems.Add(absl::StrCat("surplus tensor ", Quoted(tensor.name)));
    }
  }
  return problems.Result(kInvalid);
}

absl::Status PeftAdapter::CheckFinite() const {
  std::array<float, 4096> values;
  for (const TensorInfo& tensor : file_.tensors()) {
    const size_t size = static_cast<size_t>(TensorTypeBytes(tensor.type));
    const absl::Status status = file_.Stream(tensor, [&](std::string_view piece) {
      for (size_t at = 0; at < piece.size(); at += values.size() * size) {
        const size_t count = std::min(values.size(), (piece.size() - at) / size);
        ConvertToFloat(tensor.type, piece.data() + at, static_cast<int64_t>(count), values.data());
        if (!std::all_of(values.begin(), values.begin() + count,
                         [](float value) { return std::isfinite(value); })) {
          return Refuse(kInvalid, absl::StrCat(file_.path(), ": tensor ", Quoted(tensor.name),
                                               " holds a value that is not finite"));
        }
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace lorad::storage
