#include "server/validation/adapter.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"
#include "storage/adapters/peft.h"
#include "storage/files/errors.h"

namespace lorad::server {
namespace {

constexpr char kAllLinear[] = "all-linear";
constexpr char kTargets[] = "adapter.target_modules";
constexpr char kTargetRegex[] = "adapter.target_regex";
constexpr char kExcluded[] = "adapter.exclude_modules";
constexpr char kExcludeRegex[] = "adapter.exclude_regex";
constexpr char kLayers[] = "adapter.layers_to_transform";
constexpr char kPeftConfig[] = "adapter.peft_config";

bool SaysAllLinear(const v1::AdapterConfig& adapter) {
  return std::ranges::count(adapter.target_modules(), kAllLinear) > 0;
}

bool SaysTargets(const v1::AdapterConfig& adapter) {
  return adapter.target_modules_size() > 0 || !adapter.target_regex().empty();
}

// Which modules are meant is one thought: it is said here, or all of it is taken.
bool SaysModules(const v1::AdapterConfig& adapter) {
  return SaysTargets(adapter) || adapter.exclude_modules_size() > 0 ||
         !adapter.exclude_regex().empty() || adapter.layers_to_transform_size() > 0;
}

void TakeModules(const v1::AdapterConfig& from, v1::AdapterConfig* adapter) {
  if (SaysModules(*adapter)) return;
  *adapter->mutable_target_modules() = from.target_modules();
  adapter->set_target_regex(from.target_regex());
  *adapter->mutable_exclude_modules() = from.exclude_modules();
  adapter->set_exclude_regex(from.exclude_regex());
  *adapter->mutable_layers_to_transform() = from.layers_to_transform();
}

// What `adapter` does not say it takes from another. Patterns belong to rank and alpha.
void TakeUnset(const v1::AdapterConfig& from, v1::AdapterConfig* adapter) {
  TakeModules(from, adapter);
  if (adapter->rank_pattern().empty()) *adapter->mutable_rank_pattern() = from.rank_pattern();
  if (adapter->alpha_pattern().empty()) *adapter->mutable_alpha_pattern() = from.alpha_pattern();
  if (!adapter->has_rank()) adapter->set_rank(from.rank());
  if (!adapter->has_alpha()) adapter->set_alpha(from.alpha());
  if (!adapter->has_use_rslora()) adapter->set_use_rslora(from.use_rslora());
}

// A job has no such pattern: layers are numbers here. PEFT trains nothing where none matches.
void CheckLayersPattern(Checker& checker, const storage::PeftConfig& config,
                        const storage::ModelDescription& description) {
  if (config.layers_pattern.empty()) return;
  storage::PeftConfig without = config;
  without.layers_pattern.clear();
  const storage::ResolvedTargets targets = storage::ResolveTargets(config, description);
  if (targets.modules.size() == storage::ResolveTargets(without, description).modules.size()) {
    return;
  }
  checker.Add(
      kPeftConfig,
      absl::StrCat("layers_pattern '",
                   Quotable(absl::StrJoin(config.layers_pattern, "', '"), kNameBytesMax),
                   "' matches no layer of the model: it must be the name before the number, "
                   "which is layers in ",
                   description.blocks.front().in.parts.front().path, ", or be left out"));
}

void TakePeftConfig(Checker& checker, const JobReferences& references, v1::AdapterConfig* adapter) {
  const std::string text = std::exchange(*adapter->mutable_peft_config(), "");
  if (text.empty()) return;
  const auto config = storage::ParsePeftConfig(text, /*needs_targets=*/false);
  if (!config.ok()) return checker.Add(kPeftConfig, std::string(config.status().message()));
  if (!config->usual_start && adapter->init_from().empty()) {
    checker.Add(kPeftConfig,
                "init_lora_weights must be true: other kinds of initialization are not "
                "implemented; import the adapter as PEFT makes it and name it in init_from");
  }
  if (references.description && !SaysModules(*adapter)) {
    CheckLayersPattern(checker, *config, *references.description);
  }
  TakeUnset(AdapterConfigOf(*config), adapter);
  if (adapter->dropout() == 0) adapter->set_dropout(config->dropout);
}

void TakeDefaultTargets(Checker& checker, const JobReferences& references,
                        v1::AdapterConfig* adapter) {
  if (SaysTargets(*adapter) || !references.model_known) return;
  const std::string& architecture = references.model.architecture;
  const std::vector<std::string> targets = storage::DefaultTargetModules(architecture);
  adapter->mutable_target_modules()->Add(targets.begin(), targets.end());
  if (!targets.empty() || !adapter->init_from().empty()) return;
  checker.Add(kTargets,
              absl::StrCat("must be said: as in PEFT there is no default for ", architecture,
                           "; name some of ", absl::StrJoin(references.model.target_modules, ", "),
                           ", or \"", kAllLinear, "\""));
}

// Names of a list, each once.
void CheckNames(Checker& checker, const char* field,
                const google::protobuf::RepeatedPtrField<std::string>& names) {
  if (names.size() > storage::kModuleNamesMax) {
    return checker.Add(
        field, absl::StrCat("must be at most ", storage::kModuleNamesMax, ", got ", names.size()));
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    const std::string shown = Quotable(name, kNameBytesMax);
    if (!seen.insert(name).second) {
      return checker.Add(field, absl::StrCat("names '", shown, "' twice"));
    }
    if (storage::IsModuleName(name) || (field == kTargets && name == kAllLinear)) continue;
    return checker.Add(
        field, absl::StrCat("must be names such as q_proj, paths or ends of paths, got '", shown,
                            "'", field == kTargets ? "; an expression is a target_regex" : ""));
  }
}

// Lists, expressions and layers by themselves.
void CheckWords(Checker& checker, const v1::AdapterConfig& adapter) {
  CheckNames(checker, kTargets, adapter.target_modules());
  CheckNames(checker, kExcluded, adapter.exclude_modules());
  const bool all = SaysAllLinear(adapter);
  if (all && adapter.target_modules_size() > 1) {
    checker.Add(kTargets, "must be \"all-linear\" alone, or names");
  }
  const bool regex = !adapter.target_regex().empty();
  if (regex && adapter.target_modules_size() > 0) {
    checker.Add(kTargetRegex, "cannot stand beside target_modules: leave one out");
  }
  if (!adapter.exclude_regex().empty() && adapter.exclude_modules_size() > 0) {
    checker.Add(kExcludeRegex, "cannot stand beside exclude_modules: leave one out");
  }
  if (adapter.layers_to_transform().empty()) return;
  if (regex || all) {
    checker.Add(kLayers,
                "needs target_modules as names: write the layers into target_regex, or "
                "name the modules, as PEFT wants it");
  }
  if (std::ranges::min(adapter.layers_to_transform()) < 0) {
    checker.Add(kLayers, absl::StrCat("must be numbers of layers from 0 on, got ",
                                      std::ranges::min(adapter.layers_to_transform())));
  }
}

// Their keys are looked at with the base model's modules.
void CheckPatterns(Checker& checker, const v1::AdapterConfig& adapter) {
  const auto field_of = [](const char* table, const std::string& pattern) {
    return absl::StrCat("adapter.", table, ".", Quotable(pattern, kNameBytesMax));
  };
  if (std::max(adapter.rank_pattern_size(), adapter.alpha_pattern_size()) >
      storage::kModuleNamesMax) {
    return checker.Add("adapter.rank_pattern",
                       absl::StrCat("and alpha_pattern must have at most ",
                                    storage::kModuleNamesMax, " patterns each"));
  }
  const std::map<std::string, int32_t> ranks(adapter.rank_pattern().begin(),
                                             adapter.rank_pattern().end());
  for (const auto& [pattern, rank] : ranks) {
    const std::string field = field_of("rank_pattern", pattern);
    checker.Between(field, rank, 1, kRankMax);
    if (pattern.empty()) checker.Add(field, "must be a pattern such as q_proj, got an empty one");
  }
  const std::map<std::string, double> alphas(adapter.alpha_pattern().begin(),
                                             adapter.alpha_pattern().end());
  for (const auto& [pattern, alpha] : alphas) {
    const std::string field = field_of("alpha_pattern", pattern);
    checker.Real(field, alpha, storage::kAlphaMin, storage::kAlphaMax, ' ');
    if (pattern.empty()) checker.Add(field, "must be a pattern such as q_proj, got an empty one");
  }
}

// Names of modules that are in all layers: what a model says of itself is enough.
void CheckPlainTargets(Checker& checker, const v1::AdapterConfig& adapter,
                       const JobReferences& references) {
  if (!references.model_known) return;
  const std::vector<std::string>& own = references.model.target_modules;
  std::set<std::string> unknown;
  std::string meant;
  for (const std::string& target : adapter.target_modules()) {
    if (std::ranges::count(own, target) > 0) continue;
    if (unknown.empty()) meant = storage::DidYouMean(target, own);
    unknown.insert(Quotable(target, kNameBytesMax));
  }
  if (unknown.empty()) return;
  checker.Add(kTargets, absl::StrCat("must be among the model's ", absl::StrJoin(own, ", "),
                                     ", got '", absl::StrJoin(unknown, "', '"), "'", meant));
}

// The API's name for a field of a PEFT config.
std::string FieldOf(const std::string& peft_field, const v1::AdapterConfig& adapter) {
  if (peft_field == "target_modules" && !adapter.target_regex().empty()) return kTargetRegex;
  if (peft_field == "exclude_modules" && !adapter.exclude_regex().empty()) return kExcludeRegex;
  return absl::StrCat("adapter.", peft_field);
}

// What names and patterns mean on the base model. A table of patterns that is not in `said` is one
// that PEFT wrote: its order is known.
void Resolve(Checker& checker, const storage::ModelDescription& description,
             const std::set<std::string>& said, v1::AdapterConfig* adapter) {
  const storage::PeftConfig config = PeftConfigOf(*adapter);
  const storage::ResolvedTargets targets = storage::ResolveTargets(config, description);
  for (const storage::PeftFieldProblem& problem : targets.problems) {
    checker.Add(FieldOf(problem.field, *adapter), problem.what);
  }
  for (const storage::PeftFieldProblem& contradiction : targets.contradictions) {
    if (!said.contains(contradiction.field)) continue;
    checker.Add(FieldOf(contradiction.field, *adapter), contradiction.what);
  }
  if (config.has_patterns()) SetModules(targets.modules, description.layers, adapter);
}

void CheckModules(Checker& checker, const JobReferences& references,
                  const std::set<std::string>& said, v1::AdapterConfig* adapter) {
  if (!PeftConfigOf(*adapter).has_patterns()) {
    CheckPlainTargets(checker, *adapter, references);
  } else if (references.description) {
    Resolve(checker, *references.description, said, adapter);
  }
}

std::set<std::string> AsSet(const v1::AdapterConfig& adapter) {
  return {adapter.target_modules().begin(), adapter.target_modules().end()};
}

// The module and its rank, and what the source has of it: the first where they differ.
void CheckSameModules(Checker& checker, const v1::AdapterConfig& adapter,
                      const JobReferences& references) {
  const auto ranks_of = [&references](const v1::AdapterConfig& config) {
    std::map<std::string, int> ranks;
    for (const auto& module :
         storage::ResolveTargets(PeftConfigOf(config), *references.description).modules) {
      ranks[module.path] = module.rank;
    }
    return ranks;
  };
  const std::map<std::string, int> own = ranks_of(adapter), source = ranks_of(references.source);
  const auto text = [](int rank) {
    return rank == 0 ? std::string("does not train it")
                     : absl::StrCat("trains it with rank ", rank);
  };
  std::set<std::string> paths;
  for (const auto* ranks : {&own, &source}) {
    for (const auto& [path, rank] : *ranks) paths.insert(path);
  }
  for (const std::string& path : paths) {
    const int here = own.contains(path) ? own.at(path) : 0;
    const int there = source.contains(path) ? source.at(path) : 0;
    if (here == there) continue;
    return checker.Add(here == 0 || there == 0 ? kTargets : "adapter.rank_pattern",
                       absl::StrCat("must mean the modules and ranks of '", adapter.init_from(),
                                    "': this job ", text(here), " (", path, "), and the adapter ",
                                    text(there), "; leave the fields out to take its own"));
  }
}

void CheckSource(Checker& checker, const v1::AdapterConfig& adapter,
                 const JobReferences& references) {
  if (adapter.init_from().empty()) return;
  if (!references.source_known) {
    checker.Add("adapter.init_from",
                absl::StrCat("there is no adapter or checkpoint '",
                             Quotable(adapter.init_from(), 2 * kNameBytesMax),
                             "': name an imported adapter, or a checkpoint as JOB/STEP"));
    return;
  }
  const v1::AdapterConfig& source = references.source;
  const bool patterns = PeftConfigOf(adapter).has_patterns() || PeftConfigOf(source).has_patterns();
  if (patterns) {
    if (references.description) CheckSameModules(checker, adapter, references);
    return;
  }
  if (adapter.rank() != source.rank()) {
    checker.Add("adapter.rank", absl::StrCat("must be ", source.rank(), " as in '",
                                             adapter.init_from(), "', got ", adapter.rank()));
  }
  if (AsSet(adapter) != AsSet(source)) {
    checker.Add(kTargets, absl::StrCat("must be ", absl::StrJoin(source.target_modules(), ", "),
                                       " as in '", adapter.init_from(), "', got ",
                                       absl::StrJoin(adapter.target_modules(), ", ")));
  }
}

}  // namespace

storage::PeftConfig PeftConfigOf(const v1::AdapterConfig& adapter) {
  storage::PeftConfig config;
  config.rank = adapter.rank();
  config.alpha = adapter.alpha();
  config.dropout = adapter.dropout();
  config.rslora = adapter.use_rslora();
  config.all_linear = SaysAllLinear(adapter);
  if (!config.all_linear) {
    config.target_modules = {adapter.target_modules().begin(), adapter.target_modules().end()};
  }
  config.target_regex = adapter.target_regex();
  config.exclude_modules = {adapter.exclude_modules().begin(), adapter.exclude_modules().end()};
  config.exclude_regex = adapter.exclude_regex();
  const std::set<int> layers(adapter.layers_to_transform().begin(),
                             adapter.layers_to_transform().end());
  config.layers_to_transform = {layers.begin(), layers.end()};
  config.rank_pattern = {adapter.rank_pattern().begin(), adapter.rank_pattern().end()};
  config.alpha_pattern = {adapter.alpha_pattern().begin(), adapter.alpha_pattern().end()};
  std::ranges::sort(config.target_modules);
  std::ranges::sort(config.exclude_modules);
  return config;
}

v1::AdapterConfig AdapterConfigOf(const storage::PeftConfig& config) {
  v1::AdapterConfig adapter;
  adapter.set_rank(config.rank);
  adapter.set_alpha(config.alpha);
  adapter.set_use_rslora(config.rslora);
  adapter.mutable_target_modules()->Add(config.target_modules.begin(), config.target_modules.end());
  if (config.all_linear) adapter.add_target_modules(kAllLinear);
  adapter.set_target_regex(config.target_regex);
  adapter.mutable_exclude_modules()->Add(config.exclude_modules.begin(),
                                         config.exclude_modules.end());
  adapter.set_exclude_regex(config.exclude_regex);
  adapter.mutable_layers_to_transform()->Add(config.layers_to_transform.begin(),
                                             config.layers_to_transform.end());
  adapter.mutable_rank_pattern()->insert(config.rank_pattern.begin(), config.rank_pattern.end());
  adapter.mutable_alpha_pattern()->insert(config.alpha_pattern.begin(), config.alpha_pattern.end());
  return adapter;
}

void SetModules(const std::vector<storage::TargetModule>& modules, int layers,
                v1::AdapterConfig* adapter) {
  std::map<std::tuple<std::string, int, double>, v1::AdapterModules*> known;
  for (const storage::TargetModule& module : modules) {
    v1::AdapterModules*& entry = known[{module.target, module.rank, module.alpha}];
    if (entry == nullptr) {
      entry = adapter->add_modules();
      entry->set_target(module.target);
      entry->set_rank(module.rank);
      entry->set_alpha(module.alpha);
    }
    entry->add_layers(module.layer);
  }
  for (v1::AdapterModules& entry : *adapter->mutable_modules()) {
    if (entry.layers_size() == layers) entry.clear_layers();
  }
}

v1::AdapterConfig PlainIfAlike(const storage::PeftConfig& config,
                               const storage::ModelDescription& description) {
  const std::vector<storage::TargetModule> modules =
      storage::ResolveTargets(config, description).modules;
  std::map<std::string, int> layers_of;
  bool alike = !modules.empty();
  for (const storage::TargetModule& module : modules) {
    ++layers_of[module.target];
    alike = alike && module.rank == modules[0].rank && module.alpha == modules[0].alpha;
  }
  storage::PeftConfig plain;
  for (const auto& [target, layers] : layers_of) {
    alike = alike && layers == description.layers;
    plain.target_modules.push_back(target);
  }
  if (!alike) return AdapterConfigOf(config);
  plain.rank = modules[0].rank;
  plain.alpha = modules[0].alpha;
  plain.rslora = config.rslora;
  return AdapterConfigOf(plain);
}

bool NeedsDescription(const v1::AdapterConfig& adapter) {
  return !adapter.init_from().empty() || !adapter.peft_config().empty() ||
         PeftConfigOf(adapter).has_patterns();
}

void CompleteAdapter(Checker& checker, const JobReferences& references,
                     v1::AdapterConfig* adapter) {
  adapter->clear_modules();
  TakePeftConfig(checker, references, adapter);
  std::set<std::string> said;
  if (!adapter->rank_pattern().empty()) said.insert("rank_pattern");
  if (!adapter->alpha_pattern().empty()) said.insert("alpha_pattern");
  if (!adapter->init_from().empty() && references.source_known) {
    TakeUnset(references.source, adapter);
  }
  if (!adapter->has_rank()) adapter->set_rank(8);
  if (!adapter->has_alpha()) adapter->set_alpha(8);
  if (!adapter->has_use_rslora()) adapter->set_use_rslora(false);
  if (!adapter->has_seed()) adapter->set_seed(0);
  TakeDefaultTargets(checker, references, adapter);

  checker.Between("adapter.rank", adapter->rank(), 1, kRankMax);
  checker.Real("adapter.alpha", adapter->alpha(), storage::kAlphaMin, storage::kAlphaMax, ' ');
  checker.Real("adapter.dropout", adapter->dropout(), 0, storage::kDropoutMax, ' ');
  Checker words;
  CheckWords(words, *adapter);
  CheckPatterns(words, *adapter);
  const bool understood = words.empty();
  for (const FieldViolation& violation : words.Take()) {
    checker.Add(violation.field, violation.description);
  }
  if (!understood) return;
  if (SaysTargets(*adapter)) CheckModules(checker, references, said, adapter);
  CheckSource(checker, *adapter, references);
}

}  // namespace lorad::server
