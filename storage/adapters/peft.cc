#include "storage/adapters/peft.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/adapters/manifest.h"
#include "storage/files/config_reader.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"

namespace lorad::storage {
namespace {

constexpr char kInvalid[] = "ADAPTER_INVALID";
constexpr char kHead[] = "lm_head";
constexpr char kKeyPrefix[] = "base_model.model.";
constexpr uint64_t kConfigLimit = uint64_t{1} << 20;

// The last name of a module path.
std::string_view Leaf(std::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? module : module.substr(dot + 1);
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

// One matrix: type, dimensions, rank, and its partner. `lora` is what the config says of its
// module.
void CheckMatrix(const ModuleLora& lora, const SafetensorsHeader& header, const TensorInfo& tensor,
                 std::string_view module, char matrix, Problems* problems) {
  const char other = matrix == 'A' ? 'B' : 'A';
  if (!IsFloatType(tensor.type)) {
    problems->Add(absl::StrCat("tensor ", Quoted(tensor.name), " has type ",
                               Absl(TensorTypeName(tensor.type)), "; F32, F16 and BF16 are read"));
  }
  const size_t rank_axis = matrix == 'A' ? 0 : 1;
  if (tensor.shape.size() != 2 || tensor.shape[rank_axis] != lora.rank ||
      tensor.shape[1 - rank_axis] < 1) {
    problems->Add(absl::StrCat(
        "tensor ", Quoted(tensor.name), " has shape ", ShapeString(tensor.shape), ", but ",
        lora.patterned ? "its rank in rank_pattern" : "r", " is ", lora.rank));
  }
  if (header.Find(PeftKey(module, other)) == nullptr) {
    problems->Add(absl::StrCat("missing tensor ", Quoted(PeftKey(module, other))));
  }
}

std::string WithoutWeight(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return absl::EndsWith(tensor, Absl(kWeight)) ? tensor.substr(0, tensor.size() - kWeight.size())
                                               : tensor;
}

// Modules that PEFT also looks at: what holds the linear ones, activations, norms, embedding and
// head. Beside a tower, where files name tensors in another way, the first two.
std::set<std::string> OtherModules(const ModelDescription& description) {
  std::set<std::string> others = {kHead};
  for (const Block& block : description.blocks) {
    const std::string& path = block.in.parts.front().path;
    for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      others.insert(path.substr(0, dot));
    }
    if (std::holds_alternative<GatedMlpSpec>(block.mixer)) {
      others.insert(absl::StrCat(path.substr(0, path.rfind('.')), ".act_fn"));
    }
  }
  if (description.in_tower) return others;
  others.insert(WithoutWeight(description.embedding_tensor));
  for (const NormSpec& norm : AllNorms(description)) others.insert(WithoutWeight(norm.tensor));
  return others;
}

// Whether the last name of a path is a module's.
bool IsKnown(const std::string& name, const ModelDescription& description) {
  const std::vector<std::string> own = TargetModules(description);
  return std::ranges::count(own, std::string(Leaf(name))) > 0;
}

// Why a name, an expression or a number meant no module that is trained.
std::string WhyUnused(const std::string& field, const std::string& text, const PeftConfig& config,
                      const ModelDescription& description) {
  const std::vector<std::string> own = TargetModules(description);
  const std::string has = absl::StrCat("; it has: ", absl::StrJoin(own, ", "));
  if (field == "layers_to_transform") {
    return absl::StrCat("layer ", text,
                        " has no module that is trained; the model has layers 0 to ",
                        description.layers - 1);
  }
  if (field == "exclude_modules") {
    return absl::StrCat("the model has no module ", Quoted(text), " to leave out",
                        DidYouMean(text, own), has);
  }
  if (field != "target_modules") {
    const bool is_known = IsKnown(text, description);
    return absl::StrCat(Quoted(text), " matches no module that is trained",
                        is_known ? ", though the model has such a one" : DidYouMean(text, own),
                        "; a pattern is the end of a path, such as q_proj or layers.0.self_attn."
                        "q_proj, or an expression for one");
  }
  if (text == config.target_regex) {
    return absl::StrCat("the expression ", Quoted(text),
                        " matches no module that is trained; it must match all of a path, such as ",
                        description.blocks.front().in.parts.front().path);
  }
  if (IsKnown(text, description)) {
    return absl::StrCat(Quoted(text),
                        " means no module: the model has none of this path, or all "
                        "are in other layers than layers_to_transform has");
  }
  return absl::StrCat("the model has no target module ", Quoted(text), DidYouMean(text, own), has);
}

// By last name the layers in which there is one, of the modules that have tensors.
std::map<std::string, std::set<int>> LayersOfTargets(const SafetensorsHeader& header,
                                                     std::string_view before) {
  std::map<std::string, std::set<int>> layers;
  for (const TensorInfo& tensor : header.tensors) {
    std::string_view module;
    char matrix = 0;
    if (!SplitKey(tensor.name, &module, &matrix) || !absl::StartsWith(Absl(module), Absl(before))) {
      continue;
    }
    const std::string_view rest = module.substr(before.size());
    int layer = 0;
    if (!absl::SimpleAtoi(Absl(rest.substr(0, rest.find('.'))), &layer)) continue;
    layers[std::string(Leaf(module))].insert(layer);
  }
  return layers;
}

}  // namespace

ResolvedTargets ResolveTargets(const PeftConfig& config, const ModelDescription& description) {
  ResolvedTargets resolved;
  ModuleMatcher matcher(config);
  for (const Block& block : description.blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        const std::optional<ModuleLora> lora = matcher.Match(part.path);
        if (!lora) continue;
        resolved.modules.push_back({.layer = block.layer,
                                    .path = part.path,
                                    .target = part.target,
                                    .in_features = group->in_features,
                                    .out_features = part.out_features,
                                    .rank = lora->rank,
                                    .alpha = lora->alpha});
      }
    }
  }
  std::string stranger;
  const std::string embedding = WithoutWeight(description.embedding_tensor);
  for (const std::string& other : OtherModules(description)) {
    const bool is_often_excluded = other == kHead || other == embedding;
    if (matcher.MeansOther(other, is_often_excluded) && stranger.empty()) stranger = other;
  }
  resolved.problems = matcher.problems();
  resolved.contradictions = matcher.contradictions();
  const std::vector<std::pair<std::string, std::string>> unused = matcher.Unused();
  const bool lacks_layer = std::ranges::any_of(
      unused, [](const auto& word) { return word.first == "layers_to_transform"; });
  for (const auto& [field, text] : unused) {
    // Names that mean modules of other layers alone: the layers are wrong.
    if (field == "target_modules" && lacks_layer && IsKnown(text, description)) continue;
    // The modules of a tower are not in the description.
    if (field == "exclude_modules" && description.in_tower) continue;
    resolved.problems.push_back({field, WhyUnused(field, text, config, description)});
  }
  if (!stranger.empty() && unused.empty()) {
    resolved.problems.push_back(
        {"target_modules", absl::StrCat("means ", stranger, " too, and LoRA is for ",
                                        absl::StrJoin(TargetModules(description), ", "),
                                        ": let all of a path match, as in .*\\.q_proj")});
  }
  if (resolved.modules.empty() && resolved.problems.empty()) {
    resolved.problems.push_back({"exclude_modules", "leaves no module to train"});
  }
  return resolved;
}

PeftConfig ForTensors(const PeftConfig& config, const SafetensorsHeader& header) {
  constexpr std::string_view kText = "model.language_model.layers.";
  constexpr char kPattern[] = R"(model\.language_model\.layers\.)";
  const std::map<std::string, std::set<int>> layers = LayersOfTargets(header, kText);
  if (layers.empty()) return config;
  PeftConfig precise = config;
  precise.target_modules.clear();
  if (!config.has_patterns()) {
    precise.target_regex =
        absl::StrCat(kPattern, R"(\d+\.\w+\.()", absl::StrJoin(config.target_modules, "|"), ")");
    return precise;
  }
  precise.all_linear = false;
  precise.exclude_modules.clear();
  precise.exclude_regex.clear();
  precise.layers_to_transform.clear();
  precise.layers_pattern.clear();
  std::map<std::set<int>, std::vector<std::string>> targets;
  for (const auto& [target, in] : layers) targets[in].push_back(target);
  std::vector<std::string> alternatives;
  for (const auto& [in, names] : targets) {
    alternatives.push_back(
        absl::StrCat("(", absl::StrJoin(in, "|"), R"()\.\w+\.()", absl::StrJoin(names, "|"), ")"));
  }
  precise.target_regex = absl::StrCat(kPattern, "(", absl::StrJoin(alternatives, "|"), ")");
  return precise;
}

std::string PeftKey(std::string_view module_path, char matrix) {
  assert(matrix == 'A' || matrix == 'B');
  return absl::StrCat(kKeyPrefix, Absl(module_path), matrix == 'A' ? ".lora_A" : ".lora_B",
                      ".weight");
}

std::vector<NamedShape> PeftTensors(const std::vector<TargetModule>& modules) {
  std::vector<NamedShape> tensors;
  for (const TargetModule& module : modules) {
    tensors.push_back({PeftKey(module.path, 'A'), {module.rank, module.in_features}});
    tensors.push_back({PeftKey(module.path, 'B'), {module.out_features, module.rank}});
  }
  return tensors;
}

absl::StatusOr<std::vector<std::string>> CheckAdapterTensors(const PeftConfig& config,
                                                             const SafetensorsHeader& header) {
  ModuleMatcher matcher(config);
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
    const std::optional<ModuleLora> lora = matcher.Match(module);
    CheckMatrix(lora.value_or(ModuleLora{.rank = config.rank}), header, tensor, module, matrix,
                &problems);
    modules.emplace(Leaf(module));
    if (!lora) strangers.emplace(Leaf(module));
  }
  for (const PeftFieldProblem& problem : matcher.problems()) {
    problems.Add(absl::StrCat(problem.field, ": ", problem.what));
  }
  const bool excludes = !config.exclude_modules.empty() || !config.exclude_regex.empty();
  for (const auto& [field, text] : matcher.Unused()) {
    const bool target = field == "target_modules";
    // What is left out has no tensors.
    if (field == "exclude_modules" || (target && excludes)) continue;
    problems.Add(target ? absl::StrCat("no tensors for target module ", Quoted(text))
                        : absl::StrCat("no tensors for ", Quoted(text), " of ", field));
  }
  for (const std::string& module : strangers) {
    problems.Add(absl::StrCat(
        "tensors for ", Quoted(module), ", which target_modules lacks",
        config.layers_to_transform.empty() && !excludes ? "" : " or other fields leave out"));
  }
  if (header.tensors.empty()) problems.Add("no tensors at all");
  if (absl::Status status = problems.Result(kInvalid); !status.ok()) return status;
  return std::vector<std::string>(modules.begin(), modules.end());
}

PeftAdapter::PeftAdapter(PeftConfig config, SafetensorsFile file, std::vector<std::string> modules)
    : config_(std::move(config)), file_(std::move(file)), modules_(std::move(modules)) {}

absl::StatusOr<PeftAdapter> PeftAdapter::Open(const std::string& directory, Files& files) {
  const std::string config_path = JoinPath(directory, kAdapterConfigFile);
  const absl::StatusOr<std::string> text = files.ReadAll(config_path, kConfigLimit);
  if (!text.ok()) return text.status();
  const absl::StatusOr<std::string> listed = ListedSha256(files, directory, kAdapterConfigFile);
  if (!listed.ok()) return listed.status();
  if (absl::Status same = CheckListed(config_path, Sha256::Of(*text), *listed); !same.ok()) {
    return same;
  }
  absl::StatusOr<PeftConfig> config = ParsePeftConfig(*text);
  if (!config.ok()) return At(config_path, config.status());
  absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Open(JoinPath(directory, kAdapterModelFile), files);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::vector<std::string>> modules = CheckAdapterTensors(*config, file->header());
  if (!modules.ok()) return At(file->path(), modules.status());
  return PeftAdapter(*std::move(config), *std::move(file), *std::move(modules));
}

std::vector<TargetModule> PeftAdapter::Trained() const {
  constexpr std::string_view kLayers = ".layers.";
  ModuleMatcher matcher(config_);
  std::vector<TargetModule> trained;
  for (const TensorInfo& tensor : file_.tensors()) {
    std::string_view path;
    char matrix = 0;
    if (!SplitKey(tensor.name, &path, &matrix) || matrix != 'A') continue;
    const size_t before = path.find(kLayers);
    if (before == std::string_view::npos) continue;
    const std::string_view rest = path.substr(before + kLayers.size());
    int layer = 0;
    if (!absl::SimpleAtoi(Absl(rest.substr(0, rest.find('.'))), &layer)) continue;
    const std::optional<ModuleLora> lora = matcher.Match(path);
    const TensorInfo* b = file_.Find(PeftKey(path, 'B'));
    assert(lora && b != nullptr);  // Open
    trained.push_back({.layer = layer,
                       .path = std::string(path),
                       .target = std::string(Leaf(path)),
                       .in_features = tensor.shape[1],
                       .out_features = b->shape[0],
                       .rank = lora->rank,
                       .alpha = lora->alpha});
  }
  std::ranges::sort(trained, {},
                    [](const TargetModule& module) { return std::tie(module.layer, module.path); });
  return trained;
}

absl::Status PeftAdapter::CheckFits(const ModelDescription& description) const {
  const ResolvedTargets targets = ResolveTargets(config_, description);
  Problems problems;
  for (const PeftFieldProblem& problem : targets.problems) {
    problems.Add(absl::StrCat(problem.field, ": ", problem.what));
  }
  if (!problems.empty()) return problems.Result(kInvalid);
  std::set<std::string> known;
  for (const NamedShape& expected : PeftTensors(targets.modules)) {
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
