#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// A base model as a table of blocks that the engine runs; no family is known by name behind this
// point. Letters: V vocabulary, H hidden, F feed-forward, N heads, D head size. Page:
// docs/formats/hf_config.md.

// y = x * rsqrt(mean(x^2) + eps) * weight
struct NormSpec {
  std::string tensor;  // {H}
  double eps = 0;
};

// Rotary embedding of the first `2 * inverse_frequencies.size()` features of a head, in halves:
// feature i turns with feature i + D/2 by the angle position * inverse_frequencies[i].
struct RopeSpec {
  double theta = 0;
  std::string type;  // "default", "llama3"
  std::vector<float>
      inverse_frequencies;  // {D/2}, scaling applied, float32 as transformers computes them
};

// One product of a linear group: y = x W^T + bias. Its PEFT path is
// "model.layers.{layer}.{module}".
struct LinearPart {
  std::string module;  // "self_attn.q_proj"
  std::string target;  // "q_proj": what target_modules calls it
  std::string tensor;  // {out_features, in_features}
  std::string bias;    // {out_features}, or "" for none
  int64_t out_features = 0;
};

// Products that share one input; their outputs lie side by side.
struct LinearGroup {
  std::vector<LinearPart> parts;
  int64_t in_features = 0;

  int64_t out_features() const;
};

// Causal attention; in: q {N*D}, k {KV*D}, v {KV*D}; out: {N*D}.
struct AttentionSpec {
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  double scale = 0;  // D^-0.5
  RopeSpec rope;
};

enum class Activation { kSilu };

// in: gate {F}, up {F}; out: activation(gate) * up {F}.
struct GatedMlpSpec {
  Activation activation = Activation::kSilu;
  int64_t ffn = 0;
};

// x += out(mixer(in(norm(x))))
struct Block {
  int layer = 0;
  NormSpec norm;
  LinearGroup in;
  std::variant<AttentionSpec, GatedMlpSpec> mixer;
  LinearGroup out;
};

struct ModelDescription {
  std::string architecture;      // "LlamaForCausalLM"
  std::string declared_type;     // "bfloat16"; informative, weight files say their own
  std::string embedding_tensor;  // {V, H}
  std::vector<Block> blocks;     // attention and MLP of layer 0, of layer 1, ...
  NormSpec final_norm;
  std::string head_tensor;  // {V, H}; the embedding's name if tied
  bool tied_head = false;
  int layers = 0;
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  int64_t max_positions = 0;
};

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Llama, Qwen2 and Mistral (no window). A feature that is not implemented or not known is refused
// by name: reason MODEL_UNSUPPORTED, or MODEL_INVALID where the config contradicts itself.
absl::StatusOr<ModelDescription> DescribeModel(std::string_view config_json);

// Every tensor that the weight files must hold (a tied head once), sorted by name.
std::vector<NamedShape> AllTensors(const ModelDescription& description);
// The names that adapter.target_modules may have: "q_proj", "k_proj", ... in the order of the first
// layer.
std::vector<std::string> TargetModules(const ModelDescription& description);
int64_t ParameterCount(const ModelDescription& description);

// "model.layers.3.self_attn.q_proj"
std::string ModulePath(const Block& block, const LinearPart& part);

}  // namespace lorad::storage
