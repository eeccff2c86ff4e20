#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/files/files.h"
#include "storage/models/model_description.h"
#include "storage/tensors/safetensors_reader.h"

namespace lorad::storage {

// LoRA adapters in the layout of Hugging Face PEFT 0.21: adapter_config.json and
// adapter_model.safetensors. Page: docs/formats/peft.md. Errors about content: INVALID_ARGUMENT,
// reason ADAPTER_INVALID (broken or not fitting), ADAPTER_UNSUPPORTED (an option we do not
// implement).

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterModelFile[] = "adapter_model.safetensors";

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
  std::string base_model;  // base_model_name_or_path; "" = null

  double scale() const;  // alpha / rank, or alpha / sqrt(rank)
};

// Adapters that are trained and those that are read have the same limits. float32 rounds a dropout
// nearer to 1 up.
inline constexpr double kAlphaMin = 1e-9;
inline constexpr double kDropoutMax = 0.999999;

absl::StatusOr<PeftConfig> ParsePeftConfig(std::string_view adapter_config_json);
// Every field that PEFT 0.21 writes, keys sorted; ends with a newline. Deterministic.
std::string WritePeftConfig(const PeftConfig& config);

// Target modules of `config` on this model, by their last names. Refused: a name or an expression
// that none of its modules has, one that means a module in some layers and not in others.
absl::StatusOr<std::vector<std::string>> ResolveTargets(const PeftConfig& config,
                                                        const ModelDescription& description);

// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; `matrix` is 'A' or 'B'.
std::string PeftKey(std::string_view module_path, char matrix);

// What target_modules must be for PEFT to find the same modules again, of an adapter with these
// tensors: beside a tower for images, whose modules have the same names, a regular expression.
PeftConfig ForTensors(const PeftConfig& config, const SafetensorsHeader& header);

// Tensors of an adapter with these targets (any order): A {rank, in}, B {out, rank}; by layer, then
// in the order of the model's modules, A before B.
std::vector<NamedShape> PeftTensors(const ModelDescription& description, int rank,
                                    const std::vector<std::string>& targets);

// Checks the tensors of an adapter without a model: keys, pairs of A and B of the config's rank,
// types F32/F16/BF16, modules and target_modules covering each other. Returns the last names of the
// modules, sorted.
absl::StatusOr<std::vector<std::string>> CheckAdapterTensors(const PeftConfig& config,
                                                             const SafetensorsHeader& header);

// An adapter directory at rest.
class PeftAdapter {
 public:
  // Checks all that can be checked without a model: config, keys, pairs of A and B of the config's
  // rank, types F32/F16/BF16, at least one target. Values are not read.
  // `files` must outlive it.
  static absl::StatusOr<PeftAdapter> Open(const std::string& directory, Files& files = RealFiles());

  const PeftConfig& config() const { return config_; }
  const SafetensorsReader& file() const { return file_; }
  // Leaf names of the modules that have matrices, sorted.
  const std::vector<std::string>& modules() const { return modules_; }

  // Every matrix that `description` and the config's targets ask for is there in its shape, and no
  // other.
  absl::Status CheckFits(const ModelDescription& description) const;
  // Reads all values: an infinite or NaN one is refused with its tensor.
  absl::Status CheckFinite() const;

 private:
  PeftAdapter(PeftConfig config, SafetensorsReader file, std::vector<std::string> modules);
  PeftConfig config_;
  SafetensorsReader file_;
  std::vector<std::string> modules_;
};

}  // namespace lorad::storage
