#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/adapters/module_regex.h"
#include "storage/adapters/peft_config.h"

namespace lorad::storage {

// A mistake in one field of a config, by PEFT's name for it.
struct PeftFieldProblem {
  std::string field;  // "rank_pattern"
  std::string what;   // what is wrong, and how to mend it
};

// The LoRA of one module.
struct ModuleLora {
  int rank = 0;
  double alpha = 0;
  bool patterned = false;  // the rank is rank_pattern's
};

// Which modules a config means, as PEFT 0.21 decides (check_target_module_exists,
// get_pattern_key). A module is trained if
//   its path is a name of target_modules, whatever its layer; or
//   its path ends with "." and such a name, and layers_to_transform is empty or has the number of
//   its layer; or all of its path matches target_regex; or all_linear is set;
// and neither exclude_modules nor exclude_regex means it. Its rank is that of the first pattern of
// rank_pattern which all of its path, or the part behind a dot, matches; else r. Its alpha
// likewise. PEFT passes over what means nothing; this remembers it. Threads: one.
class ModuleMatcher {
 public:
  // `config` is copied. Regular expressions that do not compile, and too many, are problems.
  explicit ModuleMatcher(const PeftConfig& config);

  // Nothing if the config does not train this module. REQUIRES: a linear module's path, and not the
  // output head's.
  std::optional<ModuleLora> Match(std::string_view path);

  // Whether the config means a module that is not such a one: a norm, an embedding, a block. PEFT
  // refuses these, or trains what we do not. One that `is_often_excluded` (the head) may be
  // excluded where it is not meant.
  bool MeansOther(std::string_view path, bool is_often_excluded);

  // What was wrong so far: expressions that do not compile or backtrack without end (they are not
  // tried again).
  const std::vector<PeftFieldProblem>& problems() const { return problems_; }
  // Patterns that say different things of one module so far. In PEFT the first counts, and the
  // order of its files is not always that of the config that it trained by.
  const std::vector<PeftFieldProblem>& contradictions() const { return contradictions_; }
  // (field, name, pattern or number) that meant none of the modules that were asked for: in
  // rank_pattern and alpha_pattern none that is trained, in exclude_modules none of the others that
  // counts either.
  // A name in target_modules may mean excluded ones alone: PEFT writes "all-linear" out as names.
  std::vector<std::pair<std::string, std::string>> Unused() const;

 private:
  // A name or an expression, and whether it meant something.
  struct Word {
    std::string text;
    std::optional<ModuleRegex> regex;
    bool plain = true;  // to be compared as a text
    bool broken = false;
    bool used = false;
  };
  // What to do with a word's text: names are compared, the others are expressions.
  enum class Kind { kName, kExpression, kEnding };

  Word Compile(const char* field, const std::string& text, Kind kind);
  bool Matches(const char* field, Word& word, std::string_view path, std::string_view subject);
  bool IsTargeted(std::string_view path, std::vector<Word*>* used);
  bool IsExcluded(std::string_view path, bool counts);
  bool HasLayer(std::string_view path, std::vector<Word*>* used);
  template <class Value>
  std::optional<Value> Pattern(const char* field, std::vector<std::pair<Word, Value>>& table,
                               std::string_view path);

  PeftConfig config_;
  std::vector<Word> targets_;
  std::vector<Word> excluded_;
  std::vector<Word> layers_;
  std::vector<Word> layers_pattern_;
  std::vector<std::pair<Word, int>> ranks_;
  std::vector<std::pair<Word, double>> alphas_;
  std::size_t expressions_ = 0;
  std::set<std::string> contradicted_;  // patterns that were told of
  std::vector<PeftFieldProblem> problems_;
  std::vector<PeftFieldProblem> contradictions_;
};

}  // namespace lorad::storage
