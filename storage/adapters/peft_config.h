#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::storage {

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";

// adapter_config.json of a LoRA, as PEFT 0.21 has it. Which modules it means, and with which rank
// and alpha, says module_matcher.h. Page: docs/formats/peft.md.
struct PeftConfig {
  int rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rslora = false;
  // Names ("q_proj"), paths and endings of paths ("self_attn.q_proj"), sorted, no doubles: a module
  // is meant if its path is one of them or ends with "." and one. "all-linear" in a file is kept as
  // all_linear, a regular expression as target_regex, which all of a path must match; the list is
  // empty then.
  std::vector<std::string> target_modules;
  bool all_linear = false;
  std::string target_regex;
  // Modules that are left out: names as above, or a regular expression.
  std::vector<std::string> exclude_modules;
  std::string exclude_regex;
  // The layers whose modules are meant, where target_modules are names; empty: all. Sorted.
  std::vector<int> layers_to_transform;
  // Regular expressions for the name before a layer's number ("layers"); empty: any.
  std::vector<std::string> layers_pattern;
  // Regular expressions for an ending of a path, and the rank or alpha of modules that have it. Of
  // several the first counts; PEFT's files have them sorted, as this has.
  std::map<std::string, int> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  bool usual_start = true;  // init_lora_weights is true: A is drawn by Kaiming, B is zero
  std::string base_model;   // base_model_name_or_path; "" = null

  // Means more than modules of some last names in all layers, of one rank and alpha.
  bool has_patterns() const;
};

// What a product of A and B is multiplied by: alpha / rank, or alpha / sqrt(rank).
double LoraScale(double alpha, int64_t rank, bool rslora);

// Adapters that are trained and those that are read have the same limits. float32 rounds a dropout
// nearer to 1 up.
inline constexpr double kAlphaMin = 1e-9, kAlphaMax = 1e9;
inline constexpr double kDropoutMax = 0.999999;
// Names in a list, patterns in a table.
inline constexpr int kModuleNamesMax = 1000;

// Of a module, or of several with dots between.
bool IsModuleName(std::string_view name);

// INVALID_ARGUMENT, reason ADAPTER_INVALID (broken) or ADAPTER_UNSUPPORTED (an option we do not
// implement, by name). Without `needs_targets` target_modules may be missing, as in a config before
// PEFT has seen its model.
absl::StatusOr<PeftConfig> ParsePeftConfig(std::string_view adapter_config_json,
                                           bool needs_targets = true);
// Every field that PEFT 0.21 writes, keys sorted; ends with a newline. Deterministic.
std::string WritePeftConfig(const PeftConfig& config);

}  // namespace lorad::storage
