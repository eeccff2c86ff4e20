#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/adapters/module_matcher.h"
#include "storage/adapters/peft_config.h"
#include "storage/files/files.h"
#include "storage/models/model_description.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::storage {

// LoRA adapters in the layout of Hugging Face PEFT 0.21: adapter_config.json and
// adapter_model.safetensors. Page: docs/formats/peft.md. Errors about content: INVALID_ARGUMENT,
// reason ADAPTER_INVALID (broken or not fitting), ADAPTER_UNSUPPORTED (an option we do not
// implement).

inline constexpr char kAdapterModelFile[] = "adapter_model.safetensors";

// A linear module that an adapter trains.
struct TargetModule {
  int layer = 0;
  std::string path;    // "model.layers.3.self_attn.q_proj"
  std::string target;  // "q_proj"
  int64_t in_features = 0;
  int64_t out_features = 0;
  int rank = 0;
  double alpha = 0;
};

struct ResolvedTargets {
  std::vector<TargetModule> modules;  // by layer, then in the order of the model's modules
  // By field: names, expressions and numbers that mean nothing on this model (PEFT passes over
  // them), or that mean what is no linear module of a layer.
  std::vector<PeftFieldProblem> problems;
  // Patterns that say different things of one module; the first counts.
  std::vector<PeftFieldProblem> contradictions;
};

// What `config` means on this model.
ResolvedTargets ResolveTargets(const PeftConfig& config, const ModelDescription& description);

// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; `matrix` is 'A' or 'B'.
std::string PeftKey(std::string_view module_path, char matrix);

// What target_modules must be for PEFT to find the same modules again, of an adapter with these
// tensors: beside a tower for images, whose modules have the same names, a regular expression.
PeftConfig ForTensors(const PeftConfig& config, const SafetensorsHeader& header);

// Tensors of an adapter with these modules: A {rank, in}, B {out, rank}; A before B.
std::vector<NamedShape> PeftTensors(const std::vector<TargetModule>& modules);

// Checks the tensors of an adapter without a model: keys, pairs of A and B of the module's rank,
// types F32/F16/BF16; target_modules and the modules covering each other, and every layer and
// pattern meaning one. Returns the last names of the modules, sorted.
absl::StatusOr<std::vector<std::string>> CheckAdapterTensors(const PeftConfig& config,
                                                             const SafetensorsHeader& header);

// An adapter directory at rest.
class PeftAdapter {
 public:
  // Checks all that can be checked without a model: config and tensors. Values are not read. Where
  // the directory has a manifest, a config that is not the listed one is CHECKPOINT_CORRUPT.
  // `files` must outlive it.
  static absl::StatusOr<PeftAdapter> Open(const std::string& directory, Files& files = RealFiles());

  const PeftConfig& config() const { return config_; }
  const SafetensorsFile& file() const { return file_; }
  // Leaf names of the modules that have matrices, sorted.
  const std::vector<std::string>& modules() const { return modules_; }

  // Each module that has matrices, with what the config says of it: by layer, then by path. Those
  // whose path has no layer's number are left out: no model has such.
  std::vector<TargetModule> Trained() const;

  // Every matrix that `description` and the config's targets ask for is there in its shape, and no
  // other.
  absl::Status CheckFits(const ModelDescription& description) const;
  // Reads all values: an infinite or NaN one is refused with its tensor.
  absl::Status CheckFinite() const;

 private:
  PeftAdapter(PeftConfig config, SafetensorsFile file, std::vector<std::string> modules);
  PeftConfig config_;
  SafetensorsFile file_;
  std::vector<std::string> modules_;
};

}  // namespace lorad::storage
