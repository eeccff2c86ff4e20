#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// A base model as a table of blocks that the engine runs; no family is known by name behind this
// point. Letters: V vocabulary, H hidden, F feed-forward, N heads, D head size, R features of a
// head that turn. Page: docs/formats/hf_config.md.

// y = x * rsqrt(mean(x^2) + eps) * weight,  weight = factor * (tensor + offset)
struct NormSpec {
  std::string tensor;  // {size}
  int64_t size = 0;
  double eps = 0;
  double offset = 0;  // 1 where files hold what is to be added to 1
  double factor = 1;
};

// Rotary embedding of the first R = 2 * inverse_frequencies.size() features of a head, in halves:
// feature i turns with feature i + R/2 by the angle position * inverse_frequencies[i], cosine and
// sine times `factor`. No frequencies: nothing turns.
struct RopeSpec {
  double theta = 0;
  std::string type;                        // "default", "linear", "llama3", "yarn", "longrope"
  std::vector<float> inverse_frequencies;  // {R/2}, scaling applied, float32 as transformers has it
  double factor = 1;
  // Of sequences longer than original_positions; empty: the same.
  std::vector<float> long_frequencies;  // {R/2}
  int64_t original_positions = 0;

  bool operator==(const RopeSpec&) const = default;
};

// One product of a linear group: y = x W^T + bias.
struct LinearPart {
  std::string path;    // as PEFT has it: "model.layers.3.self_attn.q_proj"
  std::string target;  // "q_proj": what target_modules calls it
  std::string tensor;  // {out_features, in_features}
  std::string bias;    // {out_features}, or "" for none
  int64_t out_features = 0;
};

// Products that share one input; their outputs lie side by side. Files may hold several as one.
struct LinearGroup {
  std::vector<LinearPart> parts;
  int64_t in_features = 0;

  int64_t out_features() const;
};

// The norms of q and k before they turn: of every head (size D), or of all of q and all of k.
struct QkNormSpec {
  NormSpec q;
  NormSpec k;
};

// Causal attention; in: q {N*D}, k {KV*D}, v {KV*D}; out: {N*D}.
struct AttentionSpec {
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  double scale = 0;  // of q k^T; D^-0.5 as a rule
  RopeSpec rope;
  int64_t window = 0;  // keys that a query sees, its own the last; 0: all before it
  double cap = 0;      // of the scaled scores, by a tanh; 0: none
  std::optional<QkNormSpec> qk_norm;
};

enum class Activation { kSilu, kGeluTanh };

// in: gate {F}, up {F}; out: activation(gate) * up {F}.
struct GatedMlpSpec {
  Activation activation = Activation::kSilu;
  int64_t ffn = 0;
};

// x += out_norm(out(mixer(in(norm(x))))), without a norm where there is none
struct Block {
  int layer = 0;
  std::optional<NormSpec> norm;
  LinearGroup in;
  std::variant<AttentionSpec, GatedMlpSpec> mixer;
  LinearGroup out;
  std::optional<NormSpec> out_norm;
};

struct ModelDescription {
  std::string architecture;      // "LlamaForCausalLM"
  std::string declared_type;     // "bfloat16"; informative, weight files say their own
  std::string embedding_tensor;  // {V, H}
  // x of the first block = embedding_factor * embedding.
  double embedding_factor = 1;
  bool embedding_factor_rounds = false;  // to the type of the weights, before it multiplies
  std::vector<Block> blocks;             // attention and MLP of layer 0, of layer 1, ...
  NormSpec final_norm;
  std::string head_tensor;  // {V, H}; the embedding's name if tied
  bool tied_head = false;
  double logit_cap = 0;  // by a tanh; 0: none
  int layers = 0;
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  int64_t max_positions = 0;
  // Beside a tower for images, whose tensors are not read.
  bool in_tower = false;
};

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Of the families of families.h. A feature that is not implemented or not known is refused by name:
// reason MODEL_UNSUPPORTED, or MODEL_INVALID where the config contradicts itself.
absl::StatusOr<ModelDescription> DescribeModel(std::string_view config_json);

// The positions beyond which a sequence's rope takes the long frequencies; 0: none does.
int64_t LongRopeBorder(const ModelDescription& description);
// Every norm of the model.
std::vector<NormSpec> AllNorms(const ModelDescription& description);
// Every tensor that the weight files must hold (a tied head once), sorted by name.
std::vector<NamedShape> AllTensors(const ModelDescription& description);
// The names that adapter.target_modules may have: "q_proj", "k_proj", ... in the order of the first
// layer.
std::vector<std::string> TargetModules(const ModelDescription& description);
// Those that PEFT 0.21 trains of a model of this architecture where a config names none (its
// TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING); empty where it wants them named.
std::vector<std::string> DefaultTargetModules(std::string_view architecture);
int64_t ParameterCount(const ModelDescription& description);

}  // namespace lorad::storage
