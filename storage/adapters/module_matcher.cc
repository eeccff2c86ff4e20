#include "storage/adapters/module_matcher.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr char kTargets[] = "target_modules";
constexpr char kExcluded[] = "exclude_modules";
constexpr char kLayers[] = "layers_to_transform";
constexpr char kLayersPattern[] = "layers_pattern";
constexpr char kRanks[] = "rank_pattern";
constexpr char kAlphas[] = "alpha_pattern";
// Each may take as long as kMatchLimit of module_regex.cc allows on each of a thousand modules.
constexpr std::size_t kExpressionsMax = 32;

bool MeansModule(std::string_view name, std::string_view path) {
  return path == name || absl::EndsWith(Absl(path), absl::StrCat(".", Absl(name)));
}

// Whether `path` ends with `pattern`, whose dots stand for any character, behind a dot or whole:
// what PEFT's (.*\.)?(pattern)$ gives for a pattern without other signs of an expression.
bool HasEnding(std::string_view path, std::string_view pattern) {
  if (pattern.size() > path.size()) return false;
  const std::size_t begin = path.size() - pattern.size();
  if (begin > 0 && path[begin - 1] != '.') return false;
  return std::equal(pattern.begin(), pattern.end(),
                    path.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](char want, char have) { return want == '.' || want == have; });
}

// Where the number of a path's layer stands: the first name of digits alone that follows two others
// and is not the last. PEFT: .*?\.[^.]*\.(\d+)\.
struct LayerPlace {
  std::string_view before;  // "model.layers"
  int number = -1;          // -1: there is none
};

LayerPlace LayerOf(std::string_view path) {
  std::size_t begin = path.find('.');
  begin = begin == std::string_view::npos ? begin : path.find('.', begin + 1);
  while (begin != std::string_view::npos) {
    const std::size_t end = path.find('.', begin + 1);
    if (end == std::string_view::npos) break;
    const std::string_view name = path.substr(begin + 1, end - begin - 1);
    int number = 0;
    if (!name.empty() && std::ranges::all_of(name, absl::ascii_isdigit) &&
        absl::SimpleAtoi(Absl(name), &number)) {
      return {path.substr(0, begin), number};
    }
    begin = end;
  }
  return {};
}

}  // namespace

ModuleMatcher::ModuleMatcher(const PeftConfig& config) : config_(config) {
  for (const std::string& name : config.target_modules) {
    targets_.push_back(Compile(kTargets, name, Kind::kName));
  }
  if (!config.target_regex.empty()) {
    targets_.push_back(Compile(kTargets, config.target_regex, Kind::kExpression));
  }
  for (const std::string& name : config.exclude_modules) {
    excluded_.push_back(Compile(kExcluded, name, Kind::kName));
  }
  if (!config.exclude_regex.empty()) {
    excluded_.push_back(Compile(kExcluded, config.exclude_regex, Kind::kExpression));
  }
  for (const int layer : config.layers_to_transform) {
    layers_.push_back(Compile(kLayers, absl::StrCat(layer), Kind::kName));
  }
  for (const std::string& pattern : config.layers_pattern) {
    layers_pattern_.push_back(Compile(kLayersPattern, pattern, Kind::kEnding));
  }
  for (const auto& [pattern, rank] : config.rank_pattern) {
    ranks_.emplace_back(Compile(kRanks, pattern, Kind::kEnding), rank);
  }
  for (const auto& [pattern, alpha] : config.alpha_pattern) {
    alphas_.emplace_back(Compile(kAlphas, pattern, Kind::kEnding), alpha);
  }
  if (expressions_ > kExpressionsMax) {
    problems_.push_back(
        {kRanks, absl::StrCat("there are ", expressions_, " regular expressions in all; at most ",
                              kExpressionsMax, " are read: use names")});
  }
}

ModuleMatcher::Word ModuleMatcher::Compile(const char* field, const std::string& text, Kind kind) {
  Word word{.text = text, .regex = {}};
  if (kind == Kind::kName || (kind == Kind::kEnding && IsModuleName(text))) return word;
  word.plain = false;
  if (++expressions_ > kExpressionsMax) {
    word.broken = true;
    return word;
  }
  auto regex = ModuleRegex::Compile(
      text, kind == Kind::kEnding ? ModuleRegex::Extent::kEnding : ModuleRegex::Extent::kWhole);
  if (regex.ok()) {
    word.regex = *std::move(regex);
  } else {
    word.broken = true;
    problems_.push_back({field, std::string(regex.status().message())});
  }
  return word;
}

// Whether the expression matches all of `subject`, of the module at `path`.
bool ModuleMatcher::Matches(const char* field, Word& word, std::string_view path,
                            std::string_view subject) {
  if (word.broken) return false;
  if (word.plain) return HasEnding(subject, word.text);
  const absl::StatusOr<bool> matches = word.regex->Matches(subject);
  if (matches.ok()) return *matches;
  word.broken = true;
  problems_.push_back(
      {field, absl::StrCat(std::string(matches.status().message()), " (module ", Absl(path), ")")});
  return false;
}

bool ModuleMatcher::HasLayer(std::string_view path, std::vector<Word*>* used) {
  const LayerPlace place = LayerOf(path);
  if (place.number < 0) return false;
  bool placed = layers_pattern_.empty();
  for (Word& pattern : layers_pattern_) {
    if (!Matches(kLayersPattern, pattern, path, place.before)) continue;
    used->push_back(&pattern);
    placed = true;
  }
  if (!placed) return false;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config_.layers_to_transform[i] != place.number) continue;
    used->push_back(&layers_[i]);
    return true;
  }
  return false;
}

bool ModuleMatcher::IsTargeted(std::string_view path, std::vector<Word*>* used) {
  if (config_.all_linear) return true;
  bool named_whole = false;
  for (Word& word : targets_) {
    const bool means =
        word.plain ? MeansModule(word.text, path) : Matches(kTargets, word, path, path);
    if (!means) continue;
    used->push_back(&word);
    named_whole = named_whole || (word.plain && word.text == path);
  }
  if (used->empty()) return false;
  return layers_.empty() || named_whole || HasLayer(path, used);
}

// What it means is used where the module `counts`.
bool ModuleMatcher::IsExcluded(std::string_view path, bool counts) {
  bool excluded = false;
  for (Word& word : excluded_) {
    const bool means =
        word.plain ? MeansModule(word.text, path) : Matches(kExcluded, word, path, path);
    word.used = word.used || (means && counts);
    excluded = excluded || means;
  }
  return excluded;
}

template <class Value>
std::optional<Value> ModuleMatcher::Pattern(const char* field,
                                            std::vector<std::pair<Word, Value>>& table,
                                            std::string_view path) {
  const std::pair<Word, Value>* first = nullptr;
  for (auto& entry : table) {
    if (!Matches(field, entry.first, path, path)) continue;
    entry.first.used = true;
    if (first == nullptr) {
      first = &entry;
    } else if (entry.second != first->second &&
               contradicted_.insert(field + entry.first.text).second) {
      contradictions_.push_back(
          {field,
           absl::StrCat(Quoted(first->first.text), " says ", first->second, " and ",
                        Quoted(entry.first.text), " says ", entry.second, " for ", Absl(path),
                        ", and PEFT takes the one that stands first: write "
                        "patterns that leave no module to two of them")});
    }
  }
  if (first == nullptr) return std::nullopt;
  return first->second;
}

std::optional<ModuleLora> ModuleMatcher::Match(std::string_view path) {
  std::vector<Word*> used;
  const bool targeted = IsTargeted(path, &used);
  const bool excluded = IsExcluded(path, true);
  if (!targeted) return std::nullopt;
  for (Word* word : used) word->used = true;
  if (excluded) return std::nullopt;
  const std::optional<int> rank = Pattern(kRanks, ranks_, path);
  const std::optional<double> alpha = Pattern(kAlphas, alphas_, path);
  return ModuleLora{.rank = rank.value_or(config_.rank),
                    .alpha = alpha.value_or(config_.alpha),
                    .patterned = rank.has_value()};
}

bool ModuleMatcher::MeansOther(std::string_view path, bool is_often_excluded) {
  std::vector<Word*> used;
  const bool targeted = !config_.all_linear && IsTargeted(path, &used);
  return !IsExcluded(path, targeted || is_often_excluded) && targeted;
}

std::vector<std::pair<std::string, std::string>> ModuleMatcher::Unused() const {
  std::vector<std::pair<std::string, std::string>> unused;
  const auto add = [&unused](const char* field, const Word& word) {
    if (!word.used && !word.broken) unused.emplace_back(field, word.text);
  };
  for (const Word& word : targets_) add(kTargets, word);
  for (const Word& word : excluded_) add(kExcluded, word);
  for (const Word& word : layers_) add(kLayers, word);
  for (const auto& [word, rank] : ranks_) add(kRanks, word);
  for (const auto& [word, alpha] : alphas_) add(kAlphas, word);
  return unused;
}

}  // namespace lorad::storage
